// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/device_stream.h"
#include "switchyard/base/errors.h"

namespace switchyard {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("stream: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace

DeviceStream::DeviceStream() { refuse(); }
DeviceStream::~DeviceStream() = default;
void DeviceStream::wait() const { refuse(); }

struct DeviceGraph::Work {};

DeviceGraph::DeviceGraph(const DeviceStream&, const std::function<void()>&) { refuse(); }
DeviceGraph::~DeviceGraph() = default;
double DeviceGraph::run() { refuse(); }

double eager_us(const DeviceStream&, const std::function<void()>&) { refuse(); }

}  // namespace switchyard
