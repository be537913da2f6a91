// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/route_held.h"

/// A GPU's warp for held::route(), and what a launch of it needs; for .cu files only.
namespace switchyard::ops::sm90 {

/// The 32 lanes of a warp. All of them call together.
struct WarpLanes {
  __device__ static int lane() { return int(threadIdx.x % 32); }
  __device__ static float of_lane(float x, int lane) { return __shfl_sync(~0u, x, lane); }
  __device__ static float of_neighbour(float x, int step) { return __shfl_xor_sync(~0u, x, step); }
  __device__ static std::uint32_t most(std::uint32_t x) { return __reduce_max_sync(~0u, x); }
  __device__ static std::uint32_t least(std::uint32_t x) { return __reduce_min_sync(~0u, x); }
  __device__ static std::uint32_t lanes_of(bool yes) { return __ballot_sync(~0u, yes); }
  __device__ static int lowest_lane(bool yes) { return __ffs(int(lanes_of(yes))) - 1; }
};

/// What a launch needs, by value: the spec lies in host memory.
struct HeldRoute {
  held::HeldSpec spec;
  Span2d<const float> logits;
  const float* bias = nullptr;
  Span2d<std::int32_t> ids;
  Span2d<float> weights;

  static HeldRoute of(const RouteArgs& a) {
    return {held::HeldSpec::of(*a.spec), a.logits, a.choice_bias, a.ids, a.weights};
  }
};

/// One token's scores in shared memory. Units: floats.
__host__ __device__ constexpr int score_floats(int held) { return (2 * 32 + 1) * held; }

/// As score_floats() lays them out.
__device__ inline held::HeldScores<float> scores_at(float* memory, int held) {
  return {memory, memory + 32 * held, memory + 64 * held};
}

/// The choices of token `t`, one in each lane below k.
template <RouterKind kind, int kHeld>
__device__ held::HeldChoice route_token(const HeldRoute& r, std::int64_t t, float* memory) {
  const held::HeldScores<float> s = scores_at(memory, kHeld);
  return held::route<kind, kHeld, WarpLanes>(r.spec, r.logits.row(t), {s.score, s.choice, s.group});
}

/// Calls `visit.template operator()<kHeld>()` for what a compiled router of `kind` holds.
template <RouterKind kind, class Visit>
void with_held(int held, Visit&& visit) {
  if constexpr (kind != RouterKind::kSigmoidGroups)
    if (held == kHeldSizes[0]) return visit.template operator()<kHeldSizes[0]>();
  if (held == kHeldSizes[1]) return visit.template operator()<kHeldSizes[1]>();
  visit.template operator()<kMostHeld>();
}

}  // namespace switchyard::ops::sm90
