// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "switchyard/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace switchyard {

/// Hands out aligned parts of a caller's buffer; never allocates.
///
/// Build it over an empty span to measure: parts are then null and used() tells the size, so the
/// size query and the call run the same code and cannot drift.
/// Errors: take() throws UsageError when the buffer is too small.
///
/// Under the address sanitizer kGuard bytes behind each part are out of bounds while the arena
/// lives, so an arena lives as long as its parts are in use.
class Arena {
 public:
  /// Every part starts on such a boundary, counted from the buffer's start.
  static constexpr std::size_t kAlign = 64;
#if defined(__SANITIZE_ADDRESS__)
  /// Bytes behind each part that nobody may touch.
  static constexpr std::size_t kGuard = 64;
#else
  /// Bytes behind each part that nobody may touch; they exist under the address sanitizer.
  static constexpr std::size_t kGuard = 0;
#endif

  /// A measuring arena.
  Arena() : measuring_(true) {}
  /// An arena over `bytes`, which must start on a kAlign boundary.
  explicit Arena(std::span<std::byte> bytes) : bytes_(bytes) {
    require(reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlign == 0,
            "workspace starts at an address that is not a multiple of ", kAlign,
            "; allocate it with that alignment");
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
#if defined(__SANITIZE_ADDRESS__)
  ~Arena() {
    if (!measuring_) ASAN_UNPOISON_MEMORY_REGION(bytes_.data(), std::min(used_, bytes_.size()));
  }
#endif

  /// The next part, of `count` elements of T; contents are undefined. May be of 0 elements.
  template <class T>
  std::span<T> take(std::size_t count) {
    std::size_t begin = (used_ + kAlign - 1) / kAlign * kAlign;
    const std::size_t end = begin + count * sizeof(T);
    used_ = end + kGuard;
    if (measuring_) return {static_cast<T*>(nullptr), count};
    require(used_ <= bytes_.size(), "workspace holds ", bytes_.size(), " bytes, this call needs ",
            used_, " so far; query workspace_bytes() with the same problem and max_tokens");
#if defined(__SANITIZE_ADDRESS__)
    ASAN_POISON_MEMORY_REGION(bytes_.data() + end, kGuard);
#endif
    return {reinterpret_cast<T*>(bytes_.data() + begin), count};
  }

  /// Bytes handed out so far, alignment gaps included.
  std::size_t used() const { return used_; }
  /// True for an arena that only measures.
  bool measuring() const { return measuring_; }

 private:
  std::span<std::byte> bytes_;
  std::size_t used_ = 0;
  bool measuring_ = false;
};

}  // namespace switchyard
