// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "switchyard/base/device.h"
#include "switchyard/base/device_memory.h"

namespace switchyard {

/// A buffer of pinned host memory and one of the device behind it, through which bytes of any
/// number go up in pieces; with two of them the host fills one while the device reads the other.
/// For setup, never on a forward path.
///
/// Units:   bytes.
/// Errors:  DeviceError when the device or the system refuses, or when the build has no CUDA.
class DeviceStaging {
 public:
  /// Allocates `bytes` on both sides, and `scratch` more on the device behind them.
  DeviceStaging(std::size_t bytes, std::size_t scratch);
  /// Waits until nothing reads it any more.
  ~DeviceStaging();
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  /// The pinned buffer, to be filled: waits until the work in front of the last release() is done.
  std::byte* claim();
  /// Enqueues the copy of the first `bytes` bytes to device().
  void send(std::size_t bytes, Stream stream);
  /// Enqueues the copy of `bytes` bytes from `offset` on to `to`, in device memory.
  void send_to(void* to, std::size_t offset, std::size_t bytes, Stream stream);
  /// Nothing that is enqueued on `stream` from here on reads either buffer.
  void release(Stream stream);

  /// Where send() puts the bytes; the scratch follows `bytes` further.
  std::byte* device() const { return static_cast<std::byte*>(device_.data()); }

 private:
  DeviceMemory device_;
  [[maybe_unused]] std::byte* pinned_ = nullptr;
  [[maybe_unused]] void* read_ = nullptr;  // event
};

/// Enqueues zeros for `bytes` bytes of device memory.
void clear_on_device(void* to, std::size_t bytes, Stream stream);

}  // namespace switchyard
