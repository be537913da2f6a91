// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/device_memory.h"
#include "switchyard/base/errors.h"

namespace switchyard {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("device memory: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace

DeviceMemory::DeviceMemory(std::size_t) { refuse(); }
DeviceMemory::~DeviceMemory() = default;
void DeviceMemory::upload(const void*) { refuse(); }
void DeviceMemory::upload_part(const void*, std::size_t, std::size_t) { refuse(); }
void DeviceMemory::copy_from(const DeviceMemory&) { refuse(); }
void DeviceMemory::place(const DeviceMemory&, std::size_t) { refuse(); }
void DeviceMemory::download(void*) const { refuse(); }
void wait_for_device() { refuse(); }

}  // namespace switchyard
