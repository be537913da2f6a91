// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "switchyard/base/device_pointer.h"

namespace switchyard {

bool device_can_read(const void* p) {
  cudaPointerAttributes at{};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaPointerGetAttributes(&at, p) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // a later launch must not inherit it
    return false;
  }
  if (at.type == cudaMemoryTypeDevice) return at.device == device;
  return at.type == cudaMemoryTypeManaged ||
         (at.type == cudaMemoryTypeHost && at.devicePointer != nullptr);
}

}  // namespace switchyard
