// SPDX-License-Identifier: Apache-2.0
// Replaces the whole family of operator new and delete, so that no pair of a sanitizer's and ours
// meets on one block: every form that the standard library does not forward is given here.
#include "tests/meter/allocation_meter.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace switchyard::test {
namespace {

std::atomic<std::int64_t> calls{0};
// Signed: memory from before the meter may be freed under it.
thread_local std::int64_t held = 0, peak = 0;

void* counted_or_null(std::size_t size, std::size_t align) noexcept {
  align = std::max(align, alignof(std::max_align_t));
  // aligned_alloc wants a multiple of the alignment; ASan's checks it.
  void* p = std::aligned_alloc(align, (size + align - 1) / align * align);
  if (p == nullptr) return nullptr;
  calls.fetch_add(1, std::memory_order_relaxed);
  held += std::int64_t(malloc_usable_size(p));
  if (held > peak) peak = held;
  return p;
}

void* counted(std::size_t size, std::size_t align) {
  void* p = counted_or_null(size, align);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

void uncounted(void* p) noexcept {
  if (p != nullptr) held -= std::int64_t(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

AllocationMeter::AllocationMeter() { held = peak = 0; }

std::size_t AllocationMeter::peak_bytes() const { return std::size_t(peak); }

std::int64_t allocation_count() { return calls.load(std::memory_order_relaxed); }

}  // namespace switchyard::test

// noinline: GCC sees std::free under a delete-expression otherwise and warns of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return switchyard::test::counted(size, 1);
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t align) {
  return switchyard::test::counted(size, std::size_t(align));
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return switchyard::test::counted_or_null(size, 1);
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t align,
                                     const std::nothrow_t&) noexcept {
  return switchyard::test::counted_or_null(size, std::size_t(align));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { switchyard::test::uncounted(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  switchyard::test::uncounted(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  switchyard::test::uncounted(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  switchyard::test::uncounted(p);
}
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept {
  switchyard::test::uncounted(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  switchyard::test::uncounted(p);
}
[[gnu::noinline]] void* operator new[](std::size_t size) {
  return switchyard::test::counted(size, 1);
}
[[gnu::noinline]] void* operator new[](std::size_t size, std::align_val_t align) {
  return switchyard::test::counted(size, std::size_t(align));
}
[[gnu::noinline]] void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return switchyard::test::counted_or_null(size, 1);
}
[[gnu::noinline]] void* operator new[](std::size_t size, std::align_val_t align,
                                       const std::nothrow_t&) noexcept {
  return switchyard::test::counted_or_null(size, std::size_t(align));
}
[[gnu::noinline]] void operator delete[](void* p) noexcept { switchyard::test::uncounted(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept {
  switchyard::test::uncounted(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t) noexcept {
  switchyard::test::uncounted(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  switchyard::test::uncounted(p);
}
[[gnu::noinline]] void operator delete[](void* p, const std::nothrow_t&) noexcept {
  switchyard::test::uncounted(p);
}
[[gnu::noinline]] void operator delete[](void* p, std::align_val_t,
                                         const std::nothrow_t&) noexcept {
  switchyard::test::uncounted(p);
}
