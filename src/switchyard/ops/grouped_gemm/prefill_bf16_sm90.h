// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_prefill_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_board_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_sums_sm90.h"

/// The prefill tier of bf16. For .cu files only.
namespace switchyard::ops::sm90::prefill {

/// bf16 from shared memory, both sides.
struct Bf16Operands {
  static constexpr int kMostTokens = int(kPrefillTile);  ///< Of one tile.
  static constexpr int kMostTokensTwice = 128;           ///< With two weight tiles a warpgroup.
  static constexpr int kGrain = 16;                      ///< In which tokens are cut.
  static constexpr int kStages = 4;                      ///< Of the ring.
  static constexpr int kFullArrivals = 1;                ///< At a stage's barrier.
  static constexpr int kFeedRegisters = 40;              ///< Of a fetching thread.
  /// What ends use.
  struct Scratch {
    Board boards[kWarps];  ///< A warp's.
  };
  /// Beside the ring's, no barriers.
  __device__ static void init(Scratch&) {}
  /// What fetches them, by the first of the feeding warps,
  __device__ static void feed(const DeviceGemm& g, std::byte* stages, Shared<Bf16Operands>& s,
                              int warp);
  /// and what multiplies them.
  template <class End>
  using Consumer = SumsConsumer<Bf16Operands, End>;
  /// Ends read what they need when they need it.
  template <class End>
  __device__ static void ask(const End&, Scratch&, const Sums&, int) {}
  /// Hands a tile's sums to the end.
  template <int size, class End>
  __device__ __forceinline__ static void store(float (&acc)[size], const End& end, Scratch& scratch,
                                               const Sums& sums, int) {
    end.store(acc, sums, scratch.boards[threadIdx.x / 32]);
  }
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

/// By each of the feeding warps.
__device__ inline void Bf16Operands::feed(const DeviceGemm& g, std::byte* stages,
                                          Shared<Bf16Operands>& s, int warp) {
  if (warp != 0) return;
  wait_for_previous_launch();
  Bf16Producer(g, stages, s).run();
}

}  // namespace switchyard::ops::sm90::prefill
