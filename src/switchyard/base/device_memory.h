// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace switchyard {

/// Owns bytes on the current CUDA device. Copies wait until they are done: for setup and tests,
/// never on a forward path.
///
/// Units:   bytes.
/// Errors:  DeviceError when the device refuses, or when the build has no CUDA.
class DeviceMemory {
 public:
  /// Allocates `bytes`; 0 is legal and gives a null pointer.
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();  // NOLINT(performance-trivially-destructible): it is not where there is CUDA
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Address on the device.
  void* data() const { return data_; }
  /// Allocated size.
  std::size_t size() const { return bytes_; }
  /// Copies all size() bytes from host memory.
  void upload(const void* host);
  /// Copies `bytes` bytes from host memory to `offset`. Errors: InternalError past the end.
  void upload_part(const void* host, std::size_t offset, std::size_t bytes);
  /// Copies all size() bytes of `other`, on the same device. Errors: InternalError for other sizes.
  void copy_from(const DeviceMemory& other);
  /// Copies all bytes of `other`, on the same device, to `offset`. Errors: InternalError past the
  /// end.
  void place(const DeviceMemory& other, std::size_t offset);
  /// Copies all size() bytes to host memory, after all work queued on the device so far.
  void download(void* host) const;

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Waits for all work queued on the current device, whatever its stream.
///
/// Errors:  DeviceError for what that work failed with, or when the build has no CUDA.
void wait_for_device();

}  // namespace switchyard
