// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "switchyard/base/check.h"
#include "switchyard/resolve/probe_cuda.h"

namespace switchyard::resolve {
namespace {

// The runtime remembers an error until it is read; a later launch must not inherit this one.
bool succeeded(cudaError_t status) {
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  return status == cudaSuccess;
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  cudaError_t status = cudaDeviceGetAttribute(&value, which, 0);
  if (!succeeded(status))
    throw DeviceError(
        cat("reading attribute ", int(which), " of GPU 0: ", cudaGetErrorString(status)));
  return value;
}

}  // namespace

GpuFacts probe_gpus() {
  GpuFacts out{.built = true};
  if (!succeeded(cudaGetDeviceCount(&out.num_gpus))) out.num_gpus = 0;
  if (out.num_gpus > 0)
    out.sm = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
             attribute(cudaDevAttrComputeCapabilityMinor);
  if (out.num_gpus == 0) return out;
  out.l2_bytes = attribute(cudaDevAttrL2CacheSize);
  cudaDeviceProp properties{};
  if (succeeded(cudaGetDeviceProperties(&properties, 0))) {
    out.memory_bytes = std::int64_t(properties.totalGlobalMem);
    out.name = properties.name;
  }
  for (int gpu = 0; gpu < out.num_gpus; ++gpu)
    for (int peer = 0; peer < out.num_gpus; ++peer) {
      int able = 1;
      if (gpu != peer && succeeded(cudaDeviceCanAccessPeer(&able, gpu, peer)) && able == 0)
        out.gaps.push_back({gpu, peer});
    }
  return out;
}

}  // namespace switchyard::resolve
