// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/prefill_bf16_sm90.h"

/// FC2's end in the prefill tier. For .cu files only.
namespace switchyard::ops::sm90::prefill {

/// Adds the expert's bias to the columns below `hidden`.
template <int size>
__device__ void add_row_bias(float (&acc)[size], const RowsEnd& end, const Sums& sums) {
  const float* bias = reinterpret_cast<const float*>(end.bias + sums.expert * end.stride);
  const std::int64_t col = sums.row_tile * kTileRows + Sums::row();
  const float low = col < end.hidden ? bias[col] : 0;
  const float high = col + 8 < end.hidden ? bias[col + 8] : 0;
#pragma unroll
  for (int i = 0; i < size; ++i) acc[i] += i / 2 % 2 == 0 ? low : high;
}

/// Writes fp32 rows, the block's columns of a token at once, by way of lent stages: the last copies
/// to memory go on while the next tile begins.
struct StoreRows {
  static constexpr int kMostTokens = 288;  ///< Of one tile.
  static constexpr bool kLends = true;     ///< Stages of the ring to this.
  RowsEnd end;

  /// Floats of a token in such a stage; + 4: no bank meets twice.
  SWITCHYARD_HD static constexpr int stride(int tiles) {
    return kConsumers * tiles * int(kTileRows) + 4;
  }
  /// Tokens that one takes.
  SWITCHYARD_HD static constexpr int share(int tiles) {
    return kStageBytes<Bf16Operands<StoreRows>> / (4 * stride(tiles)) / 16 * 16;
  }
  /// Stages that a tile needs.
  __device__ static int stages(const Work& w) {
    return (w.tokens + share(w.tiles) - 1) / share(w.tiles);
  }

  /// Of one warpgroup.
  template <class Consumer, int tiles, int size>
  __device__ __forceinline__ void store(Consumer& consumer, float (&acc)[tiles][size],
                                        const Work& w) const {
    constexpr int kShare = share(tiles);
    if (end.bias) {
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        const Sums sums = consumer.template sums_of<tiles>(w, t);
        add_row_bias(acc[t], end, sums);
      }
    }
#pragma unroll
    for (int from = 0; from < 2 * size; from += kShare) {
      if (from >= w.tokens) break;
      float* page = reinterpret_cast<float*>(consumer.borrow());
      float* at = page + Sums::lane() % 4 * 2 * stride(tiles) +
                  consumer.consumer() * tiles * int(kTileRows) + Sums::row();
#pragma unroll
      for (int t = 0; t < tiles; ++t)
#pragma unroll
        for (int i = from / 2; i < size && i < (from + kShare) / 2; ++i)
          at[(i / 4 * 8 + i % 2 - from) * stride(tiles) + t * int(kTileRows) + i / 2 % 2 * 8] =
              acc[t][i];
      consumer.copy_out([&] { copy_tokens<tiles>(page, from, w); });
    }
  }

 private:
  /// Tokens from `from` on, dealt out to the warps.
  template <int tiles>
  __device__ void copy_tokens(const float* page, int from, const Work& w) const {
    const int col = w.row_tile * int(kTileRows), lane = Sums::lane();
    // Rows are padded to whole quads.
    const int cols = min(kConsumers * tiles * int(kTileRows), int(end.hidden + 3) / 4 * 4 - col);
    const int token = lane * kWarps + int(threadIdx.x) / 32;
    if (token < min(share(tiles), w.tokens - from) && cols > 0)
      copy_bulk_out(end.out + (w.first + from + token) * end.out_stride + col,
                    page + token * stride(tiles), cols * std::uint32_t(sizeof(float)));
  }
};

}  // namespace switchyard::ops::sm90::prefill
