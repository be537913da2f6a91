// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "switchyard/base/errors.h"
#include "switchyard/base/text.h"

namespace switchyard {

/// Throws DeviceError with `what` and CUDA's own words unless `status` is success. For .cu files.
inline void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw DeviceError(
      cat(what, " failed: ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"));
}

}  // namespace switchyard
