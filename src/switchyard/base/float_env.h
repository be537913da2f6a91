// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace switchyard {

/// Gives a scope the IEEE default float environment (nearest even, no flush to zero), whatever the
/// caller had set, and restores the caller's at its end.
class FloatEnvScope {
 public:
#if defined(__x86_64__)
  FloatEnvScope() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatEnvScope() { _mm_setcsr(saved_); }
#else
  FloatEnvScope() = default;
#endif
  FloatEnvScope(const FloatEnvScope&) = delete;
  FloatEnvScope& operator=(const FloatEnvScope&) = delete;

 private:
  std::uint32_t saved_ = 0;
};

}  // namespace switchyard
