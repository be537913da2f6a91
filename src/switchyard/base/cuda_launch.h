// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "switchyard/base/cuda_check.h"
#include "switchyard/base/device.h"

namespace switchyard {

/// Grid, block and dynamic shared memory of one launch.
struct LaunchShape {
  unsigned blocks = 1;
  unsigned blocks_y = 1;
  unsigned threads = 1;
  std::size_t shared_bytes = 0;
};

/// Enqueues `kernel`, which may start while the launch in front of it ends: it has to wait for that
/// one itself (griddepcontrol.wait) before it reads anything. For .cu files.
///
/// Errors:  DeviceError with `what` when the launch is refused.
template <class... Params, class... Args>
void launch_overlapped(const char* what, void (*kernel)(Params...), const LaunchShape& shape,
                       Stream stream, Args&&... args) {
  if (shape.shared_bytes > 48 * 1024)
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    int(shape.shared_bytes)),
               what);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks, shape.blocks_y);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.handle);
  config.attrs = &overlap;
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...), what);
}

}  // namespace switchyard
