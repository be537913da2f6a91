// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/base/float_math.h"
#include "switchyard/ops/activation/activation_math.h"
#include "switchyard/ops/grouped_gemm/prefill_board_sm90.h"

/// Activations of FC1's sums in the prefill tier. For .cu files only.
namespace switchyard::ops::sm90::prefill {

/// Gates of a magnitude up to this keep all of swiglu_near()'s steps among the normal numbers.
inline constexpr float kNear = 64.0f;

/// n / d for d in [1, 2] and n in [2^-100, 1], rounded correctly: the steps that the compiler takes
/// for a division, without its test for numbers at the ends of the range.
__device__ inline float divide_near(float n, float d) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
  float q = __fmul_rn(n, r);
  q = __fmaf_rn(r, __fmaf_rn(-d, q, n), q);
  return __fmaf_rn(r, __fmaf_rn(-d, q, n), q);
}

/// SwigluFormula without clamp for |gate| <= kNear, with the same bits in a third of the steps: it
/// tests for no underflow and scales by adding to the exponent.
__device__ inline float swiglu_near(float gate, float up) {
  constexpr float kLog2e = 0x1.715476p+0f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kRound = 0x1.8p+23f;
  const float x = -fabsf(gate), shifted = x * kLog2e + kRound, n = shifted - kRound;
  const float r = __fmaf_rn(n, -kLn2High, x) - n * kLn2Low;  // n * kLn2High is exact
  float q = 0x1.6d10fcp-10f;
  q = q * r + 0x1.120b62p-7f;
  q = q * r + 0x1.55551ap-5f;
  q = q * r + 0x1.5554dep-3f;
  q = q * r + 0.5f;
  const float p = (q * (r * r) + r) + 1.0f;
  const float e = float_of(bits_of(p) + (bits_of(shifted) << 23));
  return gate * divide_near(gate < 0 ? e : 1.0f, 1.0f + e) * up;
}

/// The larger magnitude; NaN if either is.
__device__ inline float most_of(float so_far, float x) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(so_far), "f"(fabsf(x)));
  return most;
}

/// Whether an expert's activation is the one that swiglu_near() computes.
__device__ inline bool is_plain(const ActivationParams& p) {
  return p.type == ActivationType::kSwiglu && !p.limit_after && !p.has_limit;
}

/// Whether swiglu_near() serves all sums of the warp, pairs of gate and up: gates near 0, ups
/// finite. Sums past the last token become 0: what they come from may be anything.
template <int size>
__device__ bool all_near(float (&acc)[size], int tokens) {
  float gate = 0, up = 0;
#pragma unroll
  for (int j = 0; j < size / 4; ++j) {
    if (j * 8 >= tokens) break;
    if (j * 8 + 8 > tokens) {
      const int token = j * 8 + Sums::lane() % 4 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (token + i % 2 >= tokens) acc[4 * j + i] = 0;
    }
    gate = most_of(most_of(gate, acc[4 * j]), acc[4 * j + 1]);
    up = most_of(most_of(up, acc[4 * j + 2]), acc[4 * j + 3]);
  }
  return __all_sync(~0u, gate <= kNear && up < HUGE_VALF);
}

/// Adds the expert's biases to pairs of gate and up; `col` is the lane's column.
template <int size>
__device__ void add_pair_bias(float (&acc)[size], const ActivationEnd& end, int expert, int col) {
  const std::int64_t at = expert * end.stride;
  const bool inside = col < end.inter;
  const float gate =
      inside && end.gate_bias ? reinterpret_cast<const float*>(end.gate_bias + at)[col] : 0;
  const float up =
      inside && end.up_bias ? reinterpret_cast<const float*>(end.up_bias + at)[col] : 0;
#pragma unroll
  for (int i = 0; i < size; ++i) acc[i] += i / 2 % 2 == 0 ? gate : up;
}

/// Four neighbouring columns of a token.
struct Quad {
  float v[4];
};

/// Those of a token on a board.
__device__ inline Quad load_sums(const Board& board, int token, int row) {
  const float4 a = board.four(token, row);
  return {{a.x, a.y, a.z, a.w}};
}

/// Any kind; `gate` becomes the result. Kinds with one projection read `up`.
__device__ inline void activate_quad(const ActivationParams& p, Quad& gate, const Quad& up) {
  with_formula(p, [&](auto formula) {
#pragma unroll
    for (int i = 0; i < 4; ++i) gate.v[i] = decltype(formula)::eval(p, gate.v[i], up.v[i]);
  });
}

/// First column of a warp's eight, where gate and up are paired.
__device__ inline int pair_column(int row_tile) {
  return row_tile * int(kTileRows) / 2 + Sums::warp() * 8;
}

}  // namespace switchyard::ops::sm90::prefill
