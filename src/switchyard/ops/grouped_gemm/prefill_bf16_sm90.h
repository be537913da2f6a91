// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_prefill_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_board_sm90.h"
#include "switchyard/ops/grouped_gemm/sm90_mma_wide.h"

/// The prefill tier of bf16. For .cu files only.
namespace switchyard::ops::sm90::prefill {

template <class End>
class Bf16Consumer;
class Bf16Producer;

/// bf16 from shared memory, both sides.
struct Bf16Operands {
  static constexpr int kMostTokens = int(kPrefillTile);  ///< Of one tile.
  static constexpr int kMostTokensTwice = 128;           ///< With two weight tiles a warpgroup.
  /// What ends use.
  struct Scratch {
    Board boards[kWarps];  ///< A warp's.
  };
  /// What fetches them,
  using Producer = Bf16Producer;
  /// and what multiplies them.
  template <class End>
  using Consumer = Bf16Consumer<End>;
};

/// The fetching warp: weight tiles by its first lanes, this block's half of the tokens by the next.
class Bf16Producer : ProducerBase<Bf16Operands> {
 public:
  /// Of one block.
  __device__ Bf16Producer(const DeviceGemm& g, std::byte* stages, Shared<Bf16Operands>& s)
      : ProducerBase(g, stages, s), lane_(threadIdx.x % 32) {}

  /// Fetches every tile of the pair, then says the end.
  __device__ void run() {
    each_tile([&](const Work& w) { fetch(w); });
    end();
  }

 private:
  static constexpr int kTokenLane = kConsumers * 2;

  __device__ void fetch(const Work& w) {
    const int col_tiles = int(g_.layout.col_tiles()), last = int(g_.layout.row_tiles()) - 1;
    const Half half = half_of(w);
    // Tiles past the last row of weights read the last one again and drop its sums.
    const std::byte* weights = g_.weights + w.expert * g_.expert_stride +
                               min(w.row_tile + lane_, last) * (col_tiles * kTileBytes);
    const std::byte* x = g_.x.data + (w.first + half.begin) * kTileRowBytes;
    const std::uint32_t bytes = weight_bytes(w.tiles) + padded(w) * std::uint32_t(kTileRowBytes);
    for (int k = 0; k < col_tiles; ++k, ring_.advance()) {
      wait_for_stage();
      std::uint64_t* full = &s_.full[ring_.stage];
      if (lane_ == 0) {
        if (k == 0) s_.work[ring_.stage] = w;
        barrier_expect(full, bytes);
      }
      __syncwarp();
      if (lane_ < kConsumers * w.tiles)
        copy_bulk(stage() + lane_ * kTileBytes, weights, kTileBytes, full);
      if (lane_ == kTokenLane && half.count > 0)
        copy_bulk_to_pair(stage() + weight_bytes(w.tiles) + half.begin * kTileRowBytes, x,
                          half.count * std::uint32_t(kTileRowBytes), full);
      weights += kTileBytes;
      x += g_.x.capacity * kTileRowBytes;
    }
  }

  int lane_;
};

/// A warpgroup's part of the work. Sums go from the registers to memory.
template <class End>
class Bf16Consumer : ConsumerBase<Bf16Operands> {
  using Base = ConsumerBase<Bf16Operands>;

 public:
  /// Of one warpgroup.
  __device__ Bf16Consumer(const DeviceGemm& g, std::byte* stages, Shared<Bf16Operands>& s,
                          const End& end)
      : Base(g, stages, s), end_(end) {}

  /// Multiplies what comes until there is no more.
  __device__ void run() {
    while (true) {
      this->wait();
      const Work w = this->s_.work[this->ring_.stage];
      if (w.tokens == 0) return;
      if (w.tiles == 2) {
        multiply_from<2, 64>(w);
      } else {
        multiply_from<1, Bf16Operands::kMostTokensTwice + 16>(w);
      }
    }
  }

 private:
  /// The next wider multiplication: in steps of 16 where tiles usually are.
  SWITCHYARD_HD static constexpr int next(int tokens) {
    return tokens < 128 ? tokens + 32 : tokens + 16;
  }

  /// The smallest multiplication that takes the tile's tokens, from `tokens` on.
  template <int tiles, int tokens>
  __device__ __forceinline__ void multiply_from(const Work& w) {
    constexpr int kMost = tiles == 2 ? Bf16Operands::kMostTokensTwice : Bf16Operands::kMostTokens;
    if constexpr (next(tokens) <= kMost) {
      if (w.tokens > tokens) return multiply_from<tiles, next(tokens)>(w);
    }
    multiply<tiles, tokens>(w);
  }

  /// Multiplies over all of K and hands the sums to the end.
  template <int tiles, int tokens>
  __device__ __forceinline__ void multiply(const Work& w) {
    float acc[tiles][tokens / 2];
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int i = 0; i < tokens / 2; ++i) acc[t][i] = 0;
    const int col_tiles = int(this->g_.layout.col_tiles());
    int previous = -1;
    for (int k = 0; k < col_tiles; ++k, this->ring_.advance()) {
      this->wait();
      const std::uint32_t at = this->stage_address();
      const std::uint64_t a = operand(at + this->consumer() * tiles * int(kTileBytes));
      const std::uint64_t b = operand(at + weight_bytes(tiles));
      mma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step)  // 16 columns are 32 bytes further: 2 units of 16
#pragma unroll
        for (int t = 0; t < tiles; ++t)
          mma_bf16<tokens>(acc[t], a + t * (kTileBytes >> 4) + 2 * step, b + 2 * step);
      mma_commit();
      mma_wait<1>();
      if (previous >= 0) this->release(previous);
      previous = this->ring_.stage;
    }
    mma_wait<0>();
    this->release(previous);
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      const int row_tile = w.row_tile + this->consumer() * tiles + t;
      if (row_tile < this->g_.layout.row_tiles())
        end_.store(
            acc[t],
            Sums{.expert = w.expert, .row_tile = row_tile, .first = w.first, .tokens = w.tokens},
            this->s_.scratch.boards[threadIdx.x / 32]);
    }
  }

  const End& end_;
};

}  // namespace switchyard::ops::sm90::prefill
