// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/base/cuda_check.h"
#include "switchyard/base/device_memory.h"

namespace switchyard {

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const cudaError_t status = cudaMalloc(&data_, bytes);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // a later launch must not inherit it
    throw DeviceError(cat("device memory: ", bytes, " bytes are not free on the GPU"));
  }
  cuda_check(status, "device memory: allocation");
}

DeviceMemory::~DeviceMemory() { cudaFree(data_); }

void DeviceMemory::upload(const void* host) { upload_part(host, 0, bytes_); }

void DeviceMemory::upload_part(const void* host, std::size_t offset, std::size_t bytes) {
  ensure(offset <= bytes_ && bytes <= bytes_ - offset, "device memory: an upload of ", bytes,
         " bytes at ", offset, " into ", bytes_);
  if (bytes == 0) return;
  cuda_check(cudaMemcpy(static_cast<char*>(data_) + offset, host, bytes, cudaMemcpyHostToDevice),
             "device memory: upload");
  // From pageable memory the call returns before the last bytes are there.
  cuda_check(cudaStreamSynchronize(cudaStreamLegacy), "device memory: upload");
}

void DeviceMemory::copy_from(const DeviceMemory& other) {
  ensure(other.bytes_ == bytes_, "device memory: a copy of ", other.bytes_, " bytes into ", bytes_);
  if (bytes_ == 0) return;
  cuda_check(cudaMemcpy(data_, other.data_, bytes_, cudaMemcpyDeviceToDevice),
             "device memory: copy");
  cuda_check(cudaStreamSynchronize(cudaStreamLegacy), "device memory: copy");
}

void DeviceMemory::place(const DeviceMemory& other, std::size_t offset) {
  ensure(offset <= bytes_ && other.bytes_ <= bytes_ - offset, "device memory: a copy of ",
         other.bytes_, " bytes to ", offset, " of ", bytes_);
  if (other.bytes_ == 0) return;
  cuda_check(cudaMemcpy(static_cast<char*>(data_) + offset, other.data_, other.bytes_,
                        cudaMemcpyDeviceToDevice),
             "device memory: copy");
  cuda_check(cudaStreamSynchronize(cudaStreamLegacy), "device memory: copy");
}

void wait_for_device() {
  cuda_check(cudaDeviceSynchronize(), "device memory: wait for the device");
}

void DeviceMemory::download(void* host) const {
  wait_for_device();
  if (bytes_ == 0) return;
  cuda_check(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost), "device memory: download");
}

}  // namespace switchyard
