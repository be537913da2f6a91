// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/dtype.h"
#include "switchyard/ops/activation/activation_math.h"
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_prefill_sm90.h"

namespace switchyard::ops {
namespace {

using sm90::prefill::Board;
using sm90::prefill::Sums;

/// Gates of a magnitude up to this keep all of swiglu_near()'s steps among the normal numbers.
constexpr float kNear = 64.0f;

/// n / d for d in [1, 2] and n in [2^-100, 1], rounded correctly: the steps that the compiler takes
/// for a division, without its test for numbers at the ends of the range.
__device__ float divide_near(float n, float d) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
  float q = __fmul_rn(n, r);
  q = __fmaf_rn(r, __fmaf_rn(-d, q, n), q);
  return __fmaf_rn(r, __fmaf_rn(-d, q, n), q);
}

/// SwigluFormula without clamp for |gate| <= kNear, with the same bits in a third of the steps: it
/// tests for no underflow and scales by adding to the exponent.
__device__ float swiglu_near(float gate, float up) {
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
__device__ float most_of(float so_far, float x) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(so_far), "f"(fabsf(x)));
  return most;
}

/// Four neighbouring columns of a token.
struct Quad {
  float v[4];
};

__device__ Quad load_sums(const Board& board, int token, int row) {
  const float4 a = board.four(token, row);
  return {a.x, a.y, a.z, a.w};
}

/// Any kind; `gate` becomes the result. Kinds with one projection read `up`.
__device__ void activate_quad(const ActivationParams& p, Quad& gate, const Quad& up) {
  with_formula(p, [&](auto formula) {
#pragma unroll
    for (int i = 0; i < 4; ++i) gate.v[i] = decltype(formula)::eval(p, gate.v[i], up.v[i]);
  });
}

/// Stores four columns of a row as bf16; those past `inter` as 0.
__device__ void write_quad(const ActivationEnd& end, std::int64_t row, int col, const Quad& y) {
  std::uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = col + i < end.inter ? float_to_bf16(y.v[i]) : 0;
  *reinterpret_cast<uint2*>(end.out.at(row, col / 8) + col % 8 * 2) =
      make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
}

/// Hands the sums to `write(token, quad)`, by way of the warp's board: a lane gets a token of each
/// 16 and one half of its rows.
template <int size, class Write>
__device__ void for_each_token(const float (&acc)[size], int tokens, Board& board, Write&& write) {
#pragma unroll 1
  for (int at = 0; at * Board::kTokens < tokens; ++at) {
    sm90::prefill::lay_out(acc, at, board);
    __syncwarp();
    const int token = Sums::lane() / 2;
    if (at * Board::kTokens + token < tokens) write(at * Board::kTokens + token, token);
    __syncwarp();
  }
}

/// Two projections: eight rows of gate, then the same of up.
struct StoreGated {
  ActivationEnd end;

  /// First column of this warp's eight.
  __device__ static int column(const Sums& sums) {
    return sums.row_tile * int(kTileRows) / 2 + Sums::warp() * 8;
  }

  template <int size>
  __device__ void add_bias(float (&acc)[size], const Sums& sums) const {
    const std::int64_t at = sums.expert * end.stride;
    const int col = column(sums) + Sums::lane() / 4;
    const bool inside = col < end.inter;
    const float gate =
        inside && end.gate_bias ? reinterpret_cast<const float*>(end.gate_bias + at)[col] : 0;
    const float up =
        inside && end.up_bias ? reinterpret_cast<const float*>(end.up_bias + at)[col] : 0;
#pragma unroll
    for (int i = 0; i < size; ++i) acc[i] += i / 2 % 2 == 0 ? gate : up;
  }

  /// Whether swiglu_near() serves all sums of the warp: gates near 0, ups finite. Sums past the
  /// last token become 0: what they come from may be anything.
  template <int size>
  __device__ static bool all_near(float (&acc)[size], int tokens) {
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

  /// From the registers: a lane's pairs of tokens become pairs of columns.
  template <int size>
  __device__ void store_near(const float (&acc)[size], const Sums& sums) const {
    const int col = column(sums), token = Sums::lane() / 4, pair = Sums::lane() % 4;
    const bool inside = col + Sums::lane() / 4 < end.inter;
    std::byte* out = end.out.at(sums.first + token, col / 8) + pair * 4;
#pragma unroll
    for (int j = 0; j < size / 4; ++j) {
      if (j * 8 >= sums.tokens) return;
      const float low = swiglu_near(acc[4 * j], acc[4 * j + 2]);
      const float high = swiglu_near(acc[4 * j + 1], acc[4 * j + 3]);
      std::uint32_t bits;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
      bits = sm90::transpose_halves(inside ? bits : 0);
      if (j * 8 + token < sums.tokens)
        *reinterpret_cast<std::uint32_t*>(out + j * 8 * kTileRowBytes) = bits;
    }
  }

  template <int size>
  __device__ void store(float (&acc)[size], const Sums& sums, Board& board) const {
    if (end.gate_bias || end.up_bias) add_bias(acc, sums);
    const ActivationParams p = end.params[sums.expert];
    const bool plain = p.type == ActivationType::kSwiglu && !p.limit_after && !p.has_limit;
    if (plain && all_near(acc, sums.tokens)) return store_near(acc, sums);
    const int row = Sums::lane() % 2 * 4;  // of the gate; up's is 8 further
    for_each_token(acc, sums.tokens, board, [&](int token, int on_board) {
      const Quad up = load_sums(board, on_board, row + 8);
      Quad y = load_sums(board, on_board, row);
      activate_quad(p, y, up);
      write_quad(end, sums.first + token, column(sums) + row, y);
    });
  }
};

/// One projection.
struct StoreSingle {
  ActivationEnd end;

  template <int size>
  __device__ void store(float (&acc)[size], const Sums& sums, Board& board) const {
    const ActivationParams p = end.params[sums.expert];
    const float* bias = end.up_bias
                            ? reinterpret_cast<const float*>(end.up_bias + sums.expert * end.stride)
                            : nullptr;
    const int first = sums.row_tile * int(kTileRows) + Sums::warp() * 16;
    for_each_token(acc, sums.tokens, board, [&](int token, int on_board) {
#pragma unroll 1
      for (int row = Sums::lane() % 2 * 8, last = row + 8; row < last; row += 4) {
        Quad y = load_sums(board, on_board, row);
        const int col = first + row;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (bias && col + i < end.inter) y.v[i] += bias[col + i];
        activate_quad(p, y, y);
        write_quad(end, sums.first + token, col, y);
      }
    });
  }
};

}  // namespace

void gemm_activation_prefill_cuda(const DeviceGemm& gemm, const ActivationEnd& end, Stream stream) {
  const char* what = "grouped GEMM of FC1: launch";
  if (end.gated) return sm90::prefill::launch(what, gemm, StoreGated{end}, stream);
  sm90::prefill::launch(what, gemm, StoreSingle{end}, stream);
}

}  // namespace switchyard::ops
