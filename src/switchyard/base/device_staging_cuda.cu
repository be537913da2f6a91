// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/base/cuda_check.h"
#include "switchyard/base/device_staging.h"

namespace switchyard {
namespace {

cudaStream_t handle_of(Stream s) { return static_cast<cudaStream_t>(s.handle); }
cudaEvent_t event_of(void* e) { return static_cast<cudaEvent_t>(e); }

std::byte* pinned_memory(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());  // no later launch inherits it
  cuda_check(status, "staging: pinned host memory");
  return static_cast<std::byte*>(memory);
}

}  // namespace

DeviceStaging::DeviceStaging(std::size_t bytes, std::size_t scratch)
    : device_(bytes + scratch), pinned_(pinned_memory(bytes)) {
  cudaEvent_t event = nullptr;
  const unsigned flags = cudaEventDisableTiming | cudaEventBlockingSync;
  const cudaError_t status = cudaEventCreateWithFlags(&event, flags);
  if (status != cudaSuccess) cudaFreeHost(pinned_);
  cuda_check(status, "staging: event");
  read_ = event;
}

DeviceStaging::~DeviceStaging() {
  cudaEventSynchronize(event_of(read_));
  cudaEventDestroy(event_of(read_));
  cudaFreeHost(pinned_);
}

std::byte* DeviceStaging::claim() {
  cuda_check(cudaEventSynchronize(event_of(read_)), "staging: wait for the device");
  return pinned_;
}

void DeviceStaging::send(std::size_t bytes, Stream stream) {
  send_to(device_.data(), 0, bytes, stream);
}

void DeviceStaging::send_to(void* to, std::size_t offset, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  cuda_check(
      cudaMemcpyAsync(to, pinned_ + offset, bytes, cudaMemcpyHostToDevice, handle_of(stream)),
      "staging: upload");
}

void DeviceStaging::release(Stream stream) {
  cuda_check(cudaEventRecord(event_of(read_), handle_of(stream)), "staging: event");
}

void clear_on_device(void* to, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  cuda_check(cudaMemsetAsync(to, 0, bytes, handle_of(stream)), "device memory: zeros");
}

}  // namespace switchyard
