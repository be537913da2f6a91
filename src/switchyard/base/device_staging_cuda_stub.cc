// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/device_staging.h"
#include "switchyard/base/errors.h"

namespace switchyard {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("staging: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace

DeviceStaging::DeviceStaging(std::size_t bytes, std::size_t scratch) : device_(bytes + scratch) {
  refuse();
}
DeviceStaging::~DeviceStaging() = default;
std::byte* DeviceStaging::claim() { refuse(); }
void DeviceStaging::send(std::size_t, Stream) { refuse(); }
void DeviceStaging::send_to(void*, std::size_t, std::size_t, Stream) { refuse(); }
void DeviceStaging::release(Stream) { refuse(); }
void clear_on_device(void*, std::size_t, Stream) { refuse(); }

}  // namespace switchyard
