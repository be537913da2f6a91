// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard::test {

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

/// How often operator new was called by all threads of the process so far.
std::int64_t allocation_count();

}  // namespace switchyard::test
