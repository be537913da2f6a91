// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "switchyard/base/check.h"

namespace switchyard {

/// Hands out aligned parts of a caller's buffer; never allocates.
///
/// Build it over an empty span to measure: parts are then null and used() tells the size, so the
/// size query and the call run the same code and cannot drift.
/// Errors: take() throws UsageError when the buffer is too small.
class Arena {
 public:
  /// Every part starts on such a boundary, counted from the buffer's start.
  static constexpr std::size_t kAlign = 64;

  /// A measuring arena.
  Arena() : measuring_(true) {}
  /// An arena over `bytes`, which must start on a kAlign boundary.
  explicit Arena(std::span<std::byte> bytes) : bytes_(bytes) {
    require(reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlign == 0,
            "workspace starts at an address that is not a multiple of ", kAlign,
            "; allocate it with that alignment");
  }

  /// The next part, of `count` elements of T; contents are undefined. May be of 0 elements.
  template <class T>
  std::span<T> take(std::size_t count) {
    std::size_t begin = (used_ + kAlign - 1) / kAlign * kAlign;
    used_ = begin + count * sizeof(T);
    if (measuring_) return {static_cast<T*>(nullptr), count};
    require(used_ <= bytes_.size(), "workspace holds ", bytes_.size(), " bytes, this call needs ",
            used_, " so far; query workspace_bytes() with the same problem and max_tokens");
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
