// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/cuda_check.h"
#include "switchyard/base/device_memory.h"

namespace switchyard {

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) cuda_check(cudaMalloc(&data_, bytes), "device memory: allocation");
}

DeviceMemory::~DeviceMemory() { cudaFree(data_); }

void DeviceMemory::upload(const void* host) {
  if (bytes_ == 0) return;
  cuda_check(cudaMemcpy(data_, host, bytes_, cudaMemcpyHostToDevice), "device memory: upload");
}

void DeviceMemory::download(void* host) const {
  cuda_check(cudaDeviceSynchronize(), "device memory: wait for the device");
  if (bytes_ == 0) return;
  cuda_check(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "device memory: download");
}

}  // namespace switchyard
