// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/prefill_activation_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_e4m3_sm90.h"

/// What the ends of the prefill tier of E4M3 do with their sums. For .cu files only.
namespace switchyard::ops::sm90::prefill {

/// Calls `visit(half, group)` for every eight columns of the sums.
template <class Visit>
__device__ __forceinline__ void for_groups(Visit&& visit) {
#pragma unroll
  for (int half = 0; half < TokenSums::kHalves; ++half)
#pragma unroll
    for (int group = 0; group < TokenSums::kGroups; ++group) visit(half, group);
}

/// Whether the block has the row tile of those columns.
__device__ inline bool has_tile(const Place& place, int half, int group) {
  return half * 2 + group / 8 < place.tiles;
}

/// Multiplies the sums by what belongs to their rows, and with `by_token` to their tokens.
template <bool by_token>
__device__ __forceinline__ void scale_by(TokenSums& acc, const float (&tokens)[2],
                                         const Place& place) {
  for_groups([&](int half, int group) {
    if (!has_tile(place, half, group)) return;
    const int row = place.row(half, group) - place.row_tile * int(kTileRows);
    const float2 f = *reinterpret_cast<const float2*>(place.asked.factors + row);
    float* v = acc.v[half] + group * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] *= i % 2 == 0 ? f.x : f.y;
      if (by_token) v[i] *= tokens[i / 2];
    }
  });
}

/// The same, where tokens have scales at all: a product by 1 changes nothing, and there are 128.
__device__ __forceinline__ void scale_sums(TokenSums& acc, const SumScales& s, const Place& place) {
  float tokens[2] = {1, 1};
  if (!s.tokens && !s.experts) return scale_by<false>(acc, tokens, place);
  for (int i = 0; i < 2; ++i) {
    const int token = Place::token() + 8 * i;
    if (s.tokens && place.has(token)) tokens[i] = s.tokens[place.first + token];
    if (s.experts) tokens[i] *= place.asked.expert_scale;
  }
  scale_by<true>(acc, tokens, place);
}

/// The lane's first column of FC2's input in those groups; gate and up are two of them.
template <bool gated>
__device__ int inter_column(const Place& place, int half, int group) {
  if (!gated) return place.row(half, group);
  const int groups = (place.row_tile * int(kTileRows) / 8 + half * TokenSums::kGroups + group) / 2;
  return groups * 8 + Place::column();
}

/// Adds the expert's biases to the columns below `inter`.
template <bool gated>
__device__ __forceinline__ void add_biases(TokenSums& acc, const ActivationEnd& end,
                                           const Place& place) {
  if (!end.gate_bias && !end.up_bias) return;
  const std::int64_t at = place.expert * end.stride;
  for_groups([&](int half, int group) {
    const std::byte* of = gated && group % 2 == 0 ? end.gate_bias : end.up_bias;
    const int col = inter_column<gated>(place, half, group);
    if (!of) return;
    const float* bias = reinterpret_cast<const float*>(of + at) + col;
    float* v = acc.v[half] + group * 4;
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (col + c < end.inter) v[c] += bias[c], v[c + 2] += bias[c];
  });
}

/// Sums of tokens that there are not become 0: what they come from may be anything.
__device__ __forceinline__ void clear_missing(TokenSums& acc, const Place& place) {
  if (place.tokens >= E4m3Operands::kWarpTokens) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (place.has(Place::token() + 8 * i)) continue;
    for_groups([&](int half, int group) {
      acc.v[half][group * 4 + 2 * i] = acc.v[half][group * 4 + 2 * i + 1] = 0;
    });
  }
}

/// Whether swiglu_near() serves all sums of the warp, pairs of gate and up.
__device__ __forceinline__ bool all_near(const TokenSums& acc) {
  float most[2] = {0, 0};
  for_groups([&](int half, int group) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      most[group % 2] = most_of(most[group % 2], acc.v[half][group * 4 + i]);
  });
  return __all_sync(~0u, most[0] <= kNear && most[1] < HUGE_VALF);
}

/// One formula's code for all sums: `at` counts runs of `count` of them.
template <int count>
struct Run {
  float v[count];

  /// How many there are.
  __device__ static constexpr int runs() { return TokenSums::kHalves * 64 / count; }
  /// A copy of them.
  __device__ __forceinline__ static Run take(const TokenSums& acc, int at) {
    Run run;
#pragma unroll
    for (int r = 0; r < runs(); ++r) {
      if (r != at) continue;  // the registers' numbers have to be constants
#pragma unroll
      for (int i = 0; i < count; ++i) run.v[i] = acc.v[r * count / 64][r * count % 64 + i];
    }
    return run;
  }
  /// The first four go back.
  __device__ __forceinline__ void put(TokenSums& acc, int at) const {
#pragma unroll
    for (int r = 0; r < runs(); ++r) {
      if (r != at) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) acc.v[r * count / 64][r * count % 64 + i] = v[i];
    }
  }
};

/// Any kind. With two projections the results stand where the gates were.
template <bool gated>
__device__ __forceinline__ void activate_any(TokenSums& acc, const ActivationParams& p) {
  constexpr int kCount = gated ? 8 : 4;
#pragma unroll 1
  for (int at = 0; at < Run<kCount>::runs(); ++at) {
    auto run = Run<kCount>::take(acc, at);
    Quad y{{run.v[0], run.v[1], run.v[2], run.v[3]}}, up = y;
    if constexpr (gated) up = {{run.v[4], run.v[5], run.v[6], run.v[7]}};
    activate_quad(p, y, up);
#pragma unroll
    for (int i = 0; i < 4; ++i) run.v[i] = y.v[i];
    run.put(acc, at);
  }
}

/// Scales, biases and activation; columns past `inter` become 0.
template <bool gated>
__device__ __forceinline__ void activate_sums(TokenSums& acc, const ActivationEnd& end,
                                              const Place& place) {
  const ActivationParams p = place.asked.params;
  scale_sums(acc, end.scales, place);
  add_biases<gated>(acc, end, place);
  clear_missing(acc, place);
  if (gated && is_plain(p) && all_near(acc)) {
    for_groups([&](int half, int group) {
      if (group % 2 == 1) return;
      float* v = acc.v[half] + group * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = swiglu_near(v[i], v[i + 4]);
    });
  } else {
    activate_any<gated>(acc, p);
  }
  if (inter_column<gated>(place, TokenSums::kHalves, 0) <= end.inter) return;
  for_groups([&](int half, int group) {
    const int col = inter_column<gated>(place, half, group);
    float* v = acc.v[half] + group * 4;
    if (col >= end.inter) v[0] = v[2] = 0;
    if (col + 1 >= end.inter) v[1] = v[3] = 0;
  });
}

}  // namespace switchyard::ops::sm90::prefill
