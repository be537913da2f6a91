// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace switchyard::fuzz {

/// Measures the heap that this thread holds beyond what it held at construction, by a replaced
/// operator new or, in the fuzzer's binaries, by the sanitizer's hooks. One at a time.
class AllocationMeter {
 public:
  AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  /// The most that was held at once. Units: bytes.
  std::size_t peak_bytes() const;
};

}  // namespace switchyard::fuzz
