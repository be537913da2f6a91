// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/activation/activation_math.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_sm90.h"
#include "switchyard/ops/quantize/quantize_sm90.h"

/// What the grouped GEMM does with its sums; for .cu files only.
namespace switchyard::ops::sm90 {

/// Any kind, out of line: one copy for all the elements of a tile.
__device__ __noinline__ inline float activate_any(const ActivationParams& p, float gate, float up) {
  return activate(p, gate, up);
}

/// One element; the common kind inline, where `plain` says so.
__device__ inline float activate_one(const ActivationParams& p, bool plain, float gate, float up) {
  return plain ? SwigluFormula::eval(p, gate, up) : activate_any(p, gate, up);
}

/// Four neighbouring columns of a token.
struct Quad {
  float v[4];
};

/// Four rows of weights of one token.
__device__ inline Quad load_sums(const Board& board, int token, int row) {
  const float4 a = board.four(token, row);
  return {{a.x, a.y, a.z, a.w}};
}

/// Asks for 64 words at `from`, or zeros where it is null or past `count`; by a warpgroup's threads
/// from `thread` on.
__device__ inline void fetch_words(float* to, const float* from, int thread, int count) {
  if (thread < 0 || thread >= int(kTileRows) || !from) return;
  copy_word(to + thread, from + min(thread, max(count - 1, 0)), thread < count);
}

/// Asks for one word, where there is one.
__device__ inline void fetch_word(float* to, const std::byte* from, int thread) {
  if (thread == 0 && from) copy_word(to, from, true);
}

/// Asks for what scales a row tile's sums.
__device__ inline void fetch_scales(const SumScales& s, std::int64_t at, int row_tile,
                                    EndOperands& to) {
  const int thread = threadIdx.x % 128;
  if (s.factors)
    fetch_words(to.factors, reinterpret_cast<const float*>(s.factors + at) + row_tile * kTileRows,
                thread, kTileRows);
  fetch_word(&to.expert_scale, s.experts ? s.experts + at : nullptr, thread - 64);
}

/// The scales of one tile's sums.
struct TileScales {
  const float* factors;  // of the tile's rows, or null
  const float* tokens;   // of all sorted rows, or null
  bool scaled;           // sums of a token share a scale
  float expert;

  /// Of what fetch_scales() asked for.
  __device__ TileScales(const SumScales& s, const EndOperands& operands)
      : factors(s.factors ? operands.factors : nullptr),
        tokens(s.tokens),
        scaled(s.tokens || s.experts),
        expert(s.experts ? operands.expert_scale : 1) {}
  /// Of a sorted row.
  __device__ float of_token(std::int64_t row) const {
    return tokens ? tokens[row] * expert : expert;
  }
  /// Four packed rows of one token.
  __device__ void scale(Quad& q, int row, float token) const {
    if (!factors && !scaled) return;
    const float4 f =
        factors ? *reinterpret_cast<const float4*>(factors + row) : make_float4(1, 1, 1, 1);
    q.v[0] = q.v[0] * f.x * token, q.v[1] = q.v[1] * f.y * token;
    q.v[2] = q.v[2] * f.z * token, q.v[3] = q.v[3] * f.w * token;
  }
};

/// Adds biases to `cols` columns.
__device__ inline void add_bias(Quad& sums, const float* bias, int cols) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < cols) sums.v[i] += bias[i];
}

/// Four columns of FC2's input; eight lanes of a token hold 32 neighbouring ones.
__device__ inline void write_quad(const ActivationEnd& end, const RowQuantizer& q, std::int64_t row,
                                  int col, Quad& y) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (col + i >= end.inter) y.v[i] = 0;
  if (end.rows) {
    *reinterpret_cast<float4*>(end.rows + row * end.rows_stride + col) =
        make_float4(y.v[0], y.v[1], y.v[2], y.v[3]);
    return;
  }
  if (end.out.codes) {
    *reinterpret_cast<std::uint32_t*>(end.out.at(row, col / 16) + col % 16) =
        e4m3_codes(y.v, q.scale);
    return;
  }
  std::uint16_t bits[4], low[4];
  if (end.out.planes == 2) {
    split_fp16(y.v, bits, low);
    *reinterpret_cast<uint2*>(end.out.at(row, col / 8, 1) + col % 8 * 2) =
        make_uint2(pair_of(low[0], low[1]), pair_of(low[2], low[3]));
  } else {
    quantize_values(q, y.v, bits);
  }
  *reinterpret_cast<uint2*>(end.out.at(row, col / 8) + col % 8 * 2) =
      make_uint2(pair_of(bits[0], bits[1]), pair_of(bits[2], bits[3]));
}

/// FC1's end. Two projections lie as eight rows of gate, then the same of up; of one projection,
/// each row is a column.
template <bool gated>
struct StoreActivated {
  ActivationEnd end;

  /// Columns of a row tile.
  static constexpr int kCols = int(kTileRows) / (gated ? 2 : 1);

  /// Asks for what store() reads of memory, by a whole warpgroup.
  __device__ void fetch(EndOperands& to, int expert, int row_tile) const {
    const std::int64_t at = expert * end.stride;
    const int thread = threadIdx.x % 128, col = row_tile * kCols, cols = int(end.inter) - col;
    const auto bias = [&](const std::byte* p) {
      return p ? reinterpret_cast<const float*>(p + at) + col : nullptr;
    };
    fetch_scales(end.scales, at, row_tile, to);
    if (thread < 64 + kCols) fetch_words(to.bias, bias(end.up_bias), thread - 64, cols);
    if (gated && thread < kCols) fetch_words(to.bias + kCols, bias(end.gate_bias), thread, cols);
    constexpr int kWords = int(sizeof(ActivationParams) / sizeof(float));
    if (thread < kWords)
      copy_word(reinterpret_cast<float*>(&to.params) + thread,
                reinterpret_cast<const float*>(end.params + expert) + thread, true);
    fetch_word(&to.static_scale, end.static_scale ? end.static_scale + at : nullptr, thread - 96);
  }

  /// Ends the sums on the board, by the same.
  __device__ void store(const Desk& desk, const Part& part) const {
    constexpr int kQuads = kCols / 4;
    const EndOperands& operands = desk.operands;
    const int thread = threadIdx.x % 128, quad = thread % kQuads;
    const int row = gated ? quad / 2 * 16 + quad % 2 * 4 : quad * 4;  // up's is 8 further
    const int col = part.row_tile * kCols + quad * 4, cols = int(end.inter) - col;
    const TileScales scales(end.scales, operands);
    const ActivationParams& p = operands.params;
    const bool plain = gated && p.type == ActivationType::kSwiglu && !p.limit_after;
    RowQuantizer q{end.quant};
    if (end.static_scale) q.scale = operands.static_scale;
    for (int token = thread / kQuads; token < part.tokens(); token += 128 / kQuads) {
      const float of_token = scales.of_token(part.row(token));
      Quad gate{}, up = load_sums(desk.board, token, gated ? row + 8 : row);
      scales.scale(up, gated ? row + 8 : row, of_token);
      if (end.up_bias) add_bias(up, operands.bias + quad * 4, cols);
      if constexpr (gated) {
        gate = load_sums(desk.board, token, row);
        scales.scale(gate, row, of_token);
        if (end.gate_bias) add_bias(gate, operands.bias + kCols + quad * 4, cols);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) up.v[i] = activate_one(p, plain, gate.v[i], up.v[i]);
      write_quad(end, q, part.row(token), col, up);
    }
  }
};

/// FC2's end: fp32 rows, 16 bytes a thread.
struct StoreRows {
  RowsEnd end;

  /// Asks for what store() reads of memory, by a whole warpgroup.
  __device__ void fetch(EndOperands& to, int expert, int row_tile) const {
    const std::int64_t at = expert * end.stride;
    const int thread = threadIdx.x % 128, col = row_tile * int(kTileRows);
    fetch_scales(end.scales, at, row_tile, to);
    if (end.bias)
      fetch_words(to.bias, reinterpret_cast<const float*>(end.bias + at) + col, thread - 64,
                  int(end.hidden) - col);
  }

  /// Ends the sums on the board, by the same.
  __device__ void store(const Desk& desk, const Part& part) const {
    constexpr int kQuads = int(kTileRows) / 4;
    const int quad = threadIdx.x % kQuads;
    const std::int64_t col = part.row_tile * kTileRows + quad * 4;
    if (col >= end.hidden) return;
    const TileScales scales(end.scales, desk.operands);
    for (int token = threadIdx.x % 128 / kQuads; token < part.tokens(); token += 128 / kQuads) {
      Quad sums = load_sums(desk.board, token, quad * 4);
      scales.scale(sums, quad * 4, scales.of_token(part.row(token)));
      if (end.bias) add_bias(sums, desk.operands.bias + quad * 4, int(end.hidden - col));
      // Rows are padded to whole quads.
      *reinterpret_cast<float4*>(end.out + part.row(token) * end.out_stride + col) =
          make_float4(sums.v[0], sums.v[1], sums.v[2], sums.v[3]);
    }
  }
};

}  // namespace switchyard::ops::sm90
