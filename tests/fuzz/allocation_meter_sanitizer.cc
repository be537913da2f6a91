// SPDX-License-Identifier: Apache-2.0
// The meter for the libFuzzer binaries: clang's address sanitizer links its own operator new, so it
// is asked instead of replaced.
#include <sanitizer/allocator_interface.h>

#include <cstdint>

#include "tests/meter/allocation_meter.h"

namespace switchyard::test {
namespace {

thread_local std::int64_t held = 0, peak = 0;

void allocated(const volatile void*, std::size_t bytes) {
  held += std::int64_t(bytes);
  if (held > peak) peak = held;
}

void freed(const volatile void* p) {
  if (p != nullptr) held -= std::int64_t(__sanitizer_get_allocated_size(const_cast<void*>(p)));
}

}  // namespace

AllocationMeter::AllocationMeter() {
  [[maybe_unused]] static const int hooks =
      __sanitizer_install_malloc_and_free_hooks(allocated, freed);
  held = peak = 0;
}

std::size_t AllocationMeter::peak_bytes() const { return std::size_t(peak); }

}  // namespace switchyard::test
