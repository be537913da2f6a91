// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_prefill_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_board_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_sums_sm90.h"

/// The prefill tier of bf16. For .cu files only.
namespace switchyard::ops::sm90::prefill {

/// bf16 from shared memory, both sides. An end says how many stages of the ring a tile lends it and
/// does with all of a warpgroup's sums what it does.
template <class End>
struct Bf16Operands {
  static constexpr int kMostTokens = End::kMostTokens;  ///< Of one tile.
  static constexpr int kMostTokensTwice = 128;          ///< With two weight tiles a warpgroup.
  static constexpr int kGrain = 16;                     ///< In which tokens are cut.
  static constexpr int kStages = 4;                     ///< Of the ring.
  static constexpr int kFullArrivals = 1;               ///< At a stage's barrier.
  static constexpr int kFeedRegisters = 40;             ///< Of a fetching thread.
  static constexpr bool kLends = End::kLends;           ///< Stages to the end.
  /// What ends use.
  struct Scratch {
    Board boards[kWarps];  ///< A warp's.
  };
  /// Beside the ring's, no barriers.
  __device__ static void init(Scratch&) {}
  /// What fetches them, by the first of the feeding warps,
  __device__ static void feed(const DeviceGemm& g, std::byte* stages, Shared<Bf16Operands<End>>& s,
                              int warp);
  /// and what multiplies them.
  template <class>
  using Consumer = SumsConsumer<Bf16Operands<End>, End>;
  /// Ends read what they need when they need it.
  template <int tiles, class Consumer>
  __device__ static void ask(Consumer&, const End&, const Work&) {}
  /// Hands a tile's sums to the end.
  template <int tiles, int size, class Consumer>
  __device__ __forceinline__ static void finish(Consumer& consumer, const End& end,
                                                float (&acc)[tiles][size], const Work& w) {
    end.store(consumer, acc, w);
  }
};

/// The fetching warp: weight tiles by its first lanes, this block's half of the tokens by the next.
template <class End>
class Bf16Producer : ProducerBase<Bf16Operands<End>> {
  using Base = ProducerBase<Bf16Operands<End>>;
  using Base::g_, Base::s_, Base::ring_, Base::stage;

 public:
  /// Of one block.
  __device__ Bf16Producer(const DeviceGemm& g, std::byte* stages, Shared<Bf16Operands<End>>& s)
      : Base(g, stages, s), lane_(threadIdx.x % 32) {}

  /// Fetches every tile of the pair, then says the end.
  __device__ void run() {
    this->each_tile([&](const Work& w) {
      fetch(w);
      if constexpr (End::kLends)
        for (int i = End::stages(w); i > 0; --i, ring_.advance()) lend();
    });
    this->end();
  }

 private:
  static constexpr int kTokenLane = kConsumers * 2;

  /// Leaves a stage to the end of the tile.
  __device__ void lend() {
    this->wait_for_stage();
    if (lane_ == 0) barrier_arrive(&s_.full[ring_.stage]);
  }
  __device__ void fetch(const Work& w) {
    const int col_tiles = int(g_.layout.col_tiles()), last = int(g_.layout.row_tiles()) - 1;
    const auto half = this->half_of(w);
    // Tiles past the last row of weights read the last one again and drop its sums.
    const std::byte* weights = g_.weights + w.expert * g_.expert_stride +
                               min(w.row_tile + lane_, last) * (col_tiles * kTileBytes);
    const std::byte* x = g_.x.data + (w.first + half.begin) * kTileRowBytes;
    const std::uint32_t bytes =
        weight_bytes(w.tiles) + this->padded(w) * std::uint32_t(kTileRowBytes);
    for (int k = 0; k < col_tiles; ++k, ring_.advance()) {
      this->wait_for_stage();
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
template <class End>
__device__ inline void Bf16Operands<End>::feed(const DeviceGemm& g, std::byte* stages,
                                               Shared<Bf16Operands<End>>& s, int warp) {
  if (warp != 0) return;
  wait_for_previous_launch();
  Bf16Producer<End>(g, stages, s).run();
}

}  // namespace switchyard::ops::sm90::prefill
