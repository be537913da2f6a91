// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/host_buffer.h"

#include <sys/mman.h>

#include <utility>

#include "switchyard/base/check.h"

namespace switchyard {

HostBuffer::HostBuffer(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(p != MAP_FAILED, "cannot map ", bytes,
          " bytes of memory: the system refused them; use a "
          "smaller layer, a format with fewer bits, or a machine with more memory");
  // Only a hint: without huge pages a layer's stream costs more address translations. Small buffers
  // would only be rounded up by it.
  constexpr std::size_t kHugeFrom = std::size_t(32) << 20;
  if (bytes >= kHugeFrom) madvise(p, bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(p);
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace switchyard
