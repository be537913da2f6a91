// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/allocation_meter.h"

#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace switchyard::fuzz {
namespace {

// Signed: memory from before the meter may be freed under it.
thread_local std::int64_t held = 0, peak = 0;

void* counted(std::size_t size, std::size_t align) {
  // aligned_alloc wants a multiple of the alignment; ASan's checks it.
  void* p = std::aligned_alloc(align, (size + align - 1) / align * align);
  if (p == nullptr) throw std::bad_alloc();
  held += std::int64_t(malloc_usable_size(p));
  if (held > peak) peak = held;
  return p;
}

void uncounted(void* p) {
  if (p != nullptr) held -= std::int64_t(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

AllocationMeter::AllocationMeter() { held = peak = 0; }

std::size_t AllocationMeter::peak_bytes() const { return std::size_t(peak); }

}  // namespace switchyard::fuzz

// noinline: GCC sees std::free under a delete-expression otherwise and warns of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return switchyard::fuzz::counted(size, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return switchyard::fuzz::counted(size, alignof(std::max_align_t));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t align) {
  return switchyard::fuzz::counted(size, std::size_t(align));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { switchyard::fuzz::uncounted(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  switchyard::fuzz::uncounted(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  switchyard::fuzz::uncounted(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  switchyard::fuzz::uncounted(p);
}
