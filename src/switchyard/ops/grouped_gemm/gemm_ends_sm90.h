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

/// An expert's activation, of which the common kinds, SwiGLU and SwiGLU with constants, run inline
/// and in the same steps.
struct EndActivation {
  const ActivationParams& p;
  bool common, biased;
  float alpha, limit;

  /// Of two projections or of one.
  __device__ EndActivation(const ActivationParams& params, bool gated)
      : p(params),
        common(gated && (biases() || (p.type == ActivationType::kSwiglu && !p.limit_after))),
        biased(biases()),
        alpha(biased ? p.alpha : 1.0f),
        limit(limit_of(p)) {}
  /// One element, the bits of activate().
  __device__ float operator()(float gate, float up) const {
    if (!common) return activate_any(p, gate, up);
    const float y = silu_float(clamp_above(gate, limit), alpha), u = clamp_both(up, limit);
    return y * (biased ? u + p.beta : u);
  }

 private:
  __device__ bool biases() const { return p.type == ActivationType::kSwigluBias; }
};

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

/// Orders what this thread has seen or written before what other blocks see of it behind.
__device__ inline void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// Columns of FC2's input that share a scale.
inline constexpr int kScaledCols = 128;

/// Where this lane's columns of a block begin.
__device__ inline int scaled_col(int block) {
  return block * kScaledCols + int(threadIdx.x % 32) * 4;
}

/// Quantises 128 columns of a row, four in each lane of a warp; as quantize_row().
__device__ inline void quantise_columns(const ActivationEnd& end, std::int64_t row, int block,
                                        float4 x) {
  const int lane = threadIdx.x % 32, col = scaled_col(block);
  const float v[4] = {x.x, x.y, x.z, x.w};
  const float scale =
      formats::fp8_activation_scale(amax_of_lanes<32>(amax_of_values(v)),
                                    end.quant == formats::ActivationQuant::kFp8Block128Ue8m0);
  *reinterpret_cast<std::uint32_t*>(end.out.at(row, col / 16) + col % 16) = e4m3_codes(v, scale);
  if (lane == 0) end.block_scales[block * end.out.capacity + row] = scale;
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
    const EndActivation activate(operands.params, gated);
    RowQuantizer q{end.quant};
    if (end.static_scale) q.scale = operands.static_scale;
      // One or two rounds: unrolled they would only be more code to bring.
#pragma unroll 1
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
      for (int i = 0; i < 4; ++i) up.v[i] = activate(gate.v[i], up.v[i]);
      write_quad(end, q, part.row(token), col, up);
    }
  }

  /// Whether what a tile stores is finished when its neighbours are there too.
  __device__ bool has_more() const { return end.arrivals != nullptr; }
  /// The last of the row tiles that share 128 columns has them quantised, from what all have
  /// written; by a warp.
  __device__ void finish(const Tile& tile) const {
    constexpr int kSharing = kScaledCols / kCols, kAhead = 4;
    const int block = tile.row_tile / kSharing;
    int before = 0;
    if (threadIdx.x % 32 == 0) {
      fence_device();
      before =
          atomicAdd(end.arrivals + tile.first / 8 * (end.rows_stride / kScaledCols) + block, 1);
      fence_device();
    }
    if (__shfl_sync(~0u, before, 0) != kSharing - 1) return;
    __syncwarp();  // a shuffle orders no memory: what the first lane has seen, all see behind this
    const float* from = end.rows + tile.first * end.rows_stride + scaled_col(block);
    for (int token = 0; token < tile.tokens; token += kAhead) {
      float4 x[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (token + i < tile.tokens)
          x[i] = __ldcg(reinterpret_cast<const float4*>(from + (token + i) * end.rows_stride));
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (token + i < tile.tokens) quantise_columns(end, tile.first + token + i, block, x[i]);
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
#pragma unroll 1  // as above
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
