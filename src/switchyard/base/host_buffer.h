// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace switchyard {

/// Anonymous memory of its own mapping: zeroed, page-aligned, large ones asked for in huge pages,
/// given back to the system on destruction. Movable, not copyable.
class HostBuffer {
 public:
  HostBuffer() = default;
  /// Maps `bytes` bytes (0 maps nothing). Errors: UsageError when the system refuses them.
  explicit HostBuffer(std::size_t bytes);
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  /// The mapping; stays in place until destruction.
  std::span<std::byte> bytes() const { return {data_, size_}; }
  /// First byte, or null when empty.
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace switchyard
