// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/core/environment.h"

namespace switchyard::ops {

/// Lanes of a router product: lane l sums columns l, l + 16, ... of a chunk in order, then the
/// lanes fold in halves. Products and sums are rounded apart (no FMA), so every twin has the same
/// bits.
inline constexpr int kRouterLanes = 16;
/// Experts of one call of a twin.
inline constexpr int kRouterExperts = 8;

/// One row's chunk against up to kRouterExperts experts, whose weights lie `w_stride` floats apart:
/// adds each product to its sum.
///
/// Shapes:  x [count]; sums [experts].
struct RouterDots {
  const float* x = nullptr;
  const float* w = nullptr;
  std::int64_t w_stride = 0;
  std::int64_t count = 0;
  std::int64_t experts = 0;
  float* sums = nullptr;
};

/// Folds the lanes in halves and returns their sum; overwrites them.
[[gnu::always_inline]] inline float fold_router_lanes(float* lanes) {
  for (int half = kRouterLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

/// Plain C++; runs everywhere.
void router_dots_portable(const RouterDots& dots);
/// AVX-512; call it only where the environment has that tier.
void router_dots_avx512(const RouterDots& dots);

/// A twin.
using RouterDotsTwin = void (*)(const RouterDots& dots);
/// The widest twin up to `isa`.
inline RouterDotsTwin router_dots_twin(CpuIsa isa) {
  return isa >= CpuIsa::kAvx512 ? router_dots_avx512 : router_dots_portable;
}

}  // namespace switchyard::ops
