// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/dtype.h"
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/prefill_activation_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_bf16_sm90.h"

namespace switchyard::ops {
namespace {

using namespace sm90::prefill;  // NOLINT(google-build-using-namespace): the ends are part of it

/// Stores four columns of a row as bf16; those past `inter` as 0.
__device__ void write_quad(const ActivationEnd& end, std::int64_t row, int col, const Quad& y) {
  std::uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = col + i < end.inter ? float_to_bf16(y.v[i]) : 0;
  *reinterpret_cast<uint2*>(end.out.at(row, col / 8) + col % 8 * 2) =
      make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
}

/// Two projections: eight rows of gate, then the same of up.
struct StoreGated {
  static constexpr int kMostTokens = 256;  ///< Of one tile.
  static constexpr bool kLends = false;    ///< Stages of the ring to this.
  ActivationEnd end;

  template <class Consumer, int tiles, int size>
  __device__ __forceinline__ void store(Consumer& consumer, float (&acc)[tiles][size],
                                        const Work& w) const {
#pragma unroll
    for (int t = 0; t < tiles; ++t)
      if (const Sums sums = consumer.template sums_of<tiles>(w, t); consumer.exists(sums))
        store_tile(acc[t], sums, consumer.scratch().boards[threadIdx.x / 32]);
  }

  /// From the registers: a lane's pairs of tokens become pairs of columns.
  template <int size>
  __device__ void store_near(const float (&acc)[size], const Sums& sums) const {
    const int col = pair_column(sums.row_tile), token = Sums::lane() / 4, pair = Sums::lane() % 4;
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
  __device__ void store_tile(float (&acc)[size], const Sums& sums, Board& board) const {
    const int first = pair_column(sums.row_tile);
    if (end.gate_bias || end.up_bias)
      add_pair_bias(acc, end, sums.expert, first + Sums::lane() / 4);
    const ActivationParams p = end.params[sums.expert];
    if (is_plain(p) && all_near(acc, sums.tokens)) return store_near(acc, sums);
    const int row = Sums::lane() % 2 * 4;  // of the gate; up's is 8 further
    for_each_token(acc, sums.tokens, board, [&](int token, int on_board) {
      const Quad up = load_sums(board, on_board, row + 8);
      Quad y = load_sums(board, on_board, row);
      activate_quad(p, y, up);
      write_quad(end, sums.first + token, first + row, y);
    });
  }
};

/// One projection.
struct StoreSingle {
  static constexpr int kMostTokens = 256;  ///< Of one tile.
  static constexpr bool kLends = false;    ///< Stages of the ring to this.
  ActivationEnd end;

  template <class Consumer, int tiles, int size>
  __device__ __forceinline__ void store(Consumer& consumer, float (&acc)[tiles][size],
                                        const Work& w) const {
#pragma unroll
    for (int t = 0; t < tiles; ++t)
      if (const Sums sums = consumer.template sums_of<tiles>(w, t); consumer.exists(sums))
        store_tile(acc[t], sums, consumer.scratch().boards[threadIdx.x / 32]);
  }

  template <int size>
  __device__ void store_tile(float (&acc)[size], const Sums& sums, Board& board) const {
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
  if (end.gated) return launch<Bf16Operands<StoreGated>>(what, gemm, StoreGated{end}, stream);
  launch<Bf16Operands<StoreSingle>>(what, gemm, StoreSingle{end}, stream);
}

}  // namespace switchyard::ops
