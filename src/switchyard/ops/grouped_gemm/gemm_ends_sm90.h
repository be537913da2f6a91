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

/// The scales of one tile's sums.
struct TileScales {
  const float* factors;  // of the tile's rows, or null
  const float* tokens;   // of all sorted rows, or null
  bool scaled;           // sums of a token share a scale
  float expert;

  /// Those of the part's expert and row tile.
  __device__ TileScales(const SumScales& s, std::int64_t stride, const Part& part)
      : factors(nullptr), tokens(s.tokens), scaled(s.tokens || s.experts), expert(1) {
    const std::int64_t at = part.tile.expert * stride;
    if (s.factors)
      factors = reinterpret_cast<const float*>(s.factors + at) + part.row_tile * kTileRows;
    if (s.experts) expert = *reinterpret_cast<const float*>(s.experts + at);
  }
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

/// Adds the expert's bias, where there is one, to the columns below `inter`.
__device__ inline void add_bias(Quad& sums, const std::byte* bias, std::int64_t offset, int col,
                                int inter) {
  if (!bias) return;
  const float* b = reinterpret_cast<const float*>(bias + offset) + col;
  for (int i = 0; i < 4; ++i)
    if (col + i < inter) sums.v[i] += b[i];
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

  __device__ void store(const Board& board, const Part& part) const {
    constexpr int kCols = int(kTileRows) / (gated ? 2 : 1), kQuads = kCols / 4;
    const int thread = threadIdx.x % 128, quad = thread % kQuads;
    const int row = gated ? quad / 2 * 16 + quad % 2 * 4 : quad * 4;  // up's is 8 further
    const int col = part.row_tile * kCols + quad * 4;
    const std::int64_t at = part.tile.expert * end.stride;
    const TileScales scales(end.scales, end.stride, part);
    const ActivationParams p = end.params[part.tile.expert];
    const bool plain = gated && p.type == ActivationType::kSwiglu && !p.limit_after;
    RowQuantizer q{end.quant};
    if (end.static_scale) q.scale = *reinterpret_cast<const float*>(end.static_scale + at);
    for (int token = thread / kQuads; token < part.tokens(); token += 128 / kQuads) {
      const float of_token = scales.of_token(part.row(token));
      Quad gate{}, up = load_sums(board, token, gated ? row + 8 : row);
      scales.scale(up, gated ? row + 8 : row, of_token);
      add_bias(up, end.up_bias, at, col, int(end.inter));
      if constexpr (gated) {
        gate = load_sums(board, token, row);
        scales.scale(gate, row, of_token);
        add_bias(gate, end.gate_bias, at, col, int(end.inter));
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

  __device__ void store(const Board& board, const Part& part) const {
    const std::int64_t at = part.tile.expert * end.stride;
    const float* bias = end.bias ? reinterpret_cast<const float*>(end.bias + at) : nullptr;
    constexpr int kQuads = int(kTileRows) / 4;
    const int quad = threadIdx.x % kQuads;
    const std::int64_t col = part.row_tile * kTileRows + quad * 4;
    if (col >= end.hidden) return;
    const TileScales scales(end.scales, end.stride, part);
    for (int token = threadIdx.x % 128 / kQuads; token < part.tokens(); token += 128 / kQuads) {
      Quad sums = load_sums(board, token, quad * 4);
      scales.scale(sums, quad * 4, scales.of_token(part.row(token)));
      if (bias)
        for (int i = 0; i < 4; ++i)
          if (col + i < end.hidden) sums.v[i] += bias[col + i];
      // Rows are padded to whole quads.
      *reinterpret_cast<float4*>(end.out + part.row(token) * end.out_stride + col) =
          make_float4(sums.v[0], sums.v[1], sums.v[2], sums.v[3]);
    }
  }
};

}  // namespace switchyard::ops::sm90
