// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/e4m3_sums_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_board_sm90.h"

/// The prefill tier of E4M3. For .cu files only.
///
/// A warpgroup multiplies its two tiles of weights one after the other into the same registers:
/// while it joins the sums of 128 columns to the others, the other warpgroup multiplies.
namespace switchyard::ops::sm90::prefill {

template <class End>
class E4m3Consumer;
class E4m3Producer;

/// E4M3 from shared memory, both sides; sums per 128 columns.
struct E4m3Operands {
  static constexpr int kMostTokens = 128, kMostTokensTwice = kMostTokens;  ///< Of one tile.
  /// What ends use, beside the rows' scales of each stage. Boards and codes share memory: an end
  /// needs the one in front of the other.
  struct Scratch {
    float row_scales[kStages][kMostTokens];
    alignas(16) std::byte codes[kMostTokens * 128];  ///< 128 columns of FC2's input.
    float amax[kWarps][kMostTokens];                 ///< Of a warp's columns.
    float scale[kMostTokens];                        ///< Of all 128.

    /// The calling warp's.
    __device__ Board& board() { return reinterpret_cast<Board*>(codes)[threadIdx.x / 32]; }
  };
  static_assert(kWarps * sizeof(Board) <= kMostTokens * 128);
  static constexpr int kFetchers = 4;  ///< Warps, of which one thread each fetches.
  /// What fetches them,
  using Producer = E4m3Producer;
  /// and what multiplies them.
  template <class End>
  using Consumer = E4m3Consumer<End>;
};

/// One of the fetching threads, each with its part of every stage: one row of weight tiles, and the
/// last two the rows' scales and the rows.
class E4m3Producer : ProducerBase<E4m3Operands> {
 public:
  /// Of one block; `part` below kFetchers.
  __device__ E4m3Producer(const DeviceGemm& g, std::byte* stages, Shared<E4m3Operands>& s, int part)
      : ProducerBase(g, stages, s), part_(part) {}

  /// Fetches its part of every tile of the pair; one says the end.
  __device__ void run() {
    each_tile([&](const Work& w) { fetch(w); });
    if (part_ == 0) end();
  }

 private:
  static constexpr int kScalePart = 2, kTokenPart = 3;

  /// One copy of each stage: from where, how far on that is in the next, and where to.
  struct Copy {
    const std::byte* from;
    std::int64_t step;
    std::uint32_t bytes;  ///< 0: none.
    std::uint32_t at;     ///< In the stage, or in the rows' scales.
  };

  /// This part's row of weight tiles.
  __device__ Copy weights_of(const Work& w) const {
    if (part_ >= kConsumers * w.tiles) return {};
    // Tiles past the last row of weights read the last one again and drop its sums.
    const int row_tile = min(w.row_tile + part_, int(g_.layout.row_tiles()) - 1);
    const std::int64_t strip = g_.layout.col_tiles() * kTileBytes;
    return {g_.weights + w.expert * g_.expert_stride + row_tile * strip, kTileBytes,
            std::uint32_t(kTileBytes), std::uint32_t(part_ * kTileBytes)};
  }

  /// What the last two parts bring beside weights: this block's half of the tokens, the scales.
  __device__ Copy rows_of(const Work& w) const {
    if (part_ == kTokenPart) {
      const Half half = half_of(w);
      return {g_.x.data + (w.first + half.begin) * kTileRowBytes, g_.x.capacity * kTileRowBytes,
              std::uint32_t(half.count * kTileRowBytes),
              std::uint32_t(weight_bytes(w.tiles) + half.begin * kTileRowBytes)};
    }
    if (part_ != kScalePart || !g_.block_scales) return {};
    return {reinterpret_cast<const std::byte*>(g_.block_scales + w.first), g_.x.capacity * 4,
            std::uint32_t(padded(w) * 4), 0};
  }

  /// All that a stage gets, of all parts and of the other block.
  __device__ std::uint32_t bytes_of(const Work& w) const {
    const int of_row = int(kTileRowBytes) + (g_.block_scales ? 4 : 0);
    return weight_bytes(w.tiles) + padded(w) * std::uint32_t(of_row);
  }

  __device__ void fetch(const Work& w) {
    Copy weights = weights_of(w), rows = rows_of(w);
    const std::uint32_t bytes = bytes_of(w);
    int k = int(g_.layout.col_tiles());
    for (bool first = true; k > 0; --k, first = false, ring_.advance()) {
      wait_for_stage();
      std::uint64_t* full = &s_.full[ring_.stage];
      if (part_ == 0) {
        if (first) s_.work[ring_.stage] = w;
        barrier_expect(full, bytes);
      }
      if (weights.bytes > 0) {
        copy_bulk(stage() + weights.at, weights.from, weights.bytes, full);
        weights.from += kTileBytes;
      }
      if (rows.bytes == 0) continue;
      if (part_ == kTokenPart) {
        copy_bulk_to_pair(stage() + rows.at, rows.from, rows.bytes, full);
      } else {
        copy_bulk(s_.scratch.row_scales[ring_.stage], rows.from, rows.bytes, full);
      }
      rows.from += rows.step;
    }
  }

  int part_;
};

/// Waits for both multiplying warpgroups.
__device__ inline void sync_consumers() {
  asm volatile("bar.sync 8, %0;" ::"n"(32 * kWarps) : "memory");
}

/// Bulk copy from shared to global memory, one of this thread's group; units of 16 bytes.
__device__ inline void store_bulk(void* to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until this thread's stores have read their source.
__device__ inline void wait_for_stores_to_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Waits until this thread's stores are done.
__device__ inline void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// A warpgroup's part of the work. An end takes the sums of both tiles at once, and how many of the
/// two there are.
template <class End>
class E4m3Consumer : ConsumerBase<E4m3Operands> {
  using Base = ConsumerBase<E4m3Operands>;

 public:
  /// Of one warpgroup.
  __device__ E4m3Consumer(const DeviceGemm& g, std::byte* stages, Shared<E4m3Operands>& s,
                          const End& end)
      : Base(g, stages, s), end_(end) {}

  /// Multiplies what comes until there is no more.
  __device__ void run() {
    while (true) {
      this->wait();
      const Work w = this->s_.work[this->ring_.stage];
      if (w.tokens == 0) break;
      multiply_from<64>(w);
    }
    if (threadIdx.x == 0) wait_for_stores();
  }

 private:
  /// The smallest multiplication that takes the tile's tokens, from `tokens` on, in the end's
  /// steps: each is a copy of the end's code.
  template <int tokens>
  __device__ void multiply_from(const Work& w) {
    if constexpr (tokens + End::kStep <= E4m3Operands::kMostTokens) {
      if (w.tokens > tokens) return multiply_from<tokens + End::kStep>(w);
    }
    multiply<tokens>(w);
  }

  /// Multiplies over all of K and hands the sums to the end.
  template <int tokens>
  __device__ void multiply(const Work& w) {
    constexpr int kTiles = 2;
    const int row_tile = w.row_tile + this->consumer() * kTiles;
    WeightScales scales[kTiles] = {{this->g_, w.expert, row_tile},
                                   {this->g_, w.expert, row_tile + 1}};
    float acc[kTiles][tokens / 2], part[tokens / 2];
#pragma unroll
    for (int i = 0; i < tokens / 2; ++i) acc[0][i] = acc[1][i] = part[i] = 0;
    const int col_tiles = int(this->g_.layout.col_tiles());
    for (int k = 0; k < col_tiles; ++k, this->ring_.advance()) {
      const float2 weights[kTiles] = {scales[0].of(k), scales[1].of(k)};
      this->wait();
      const std::uint32_t at = this->stage_address();
      const std::uint64_t a = operand(at + this->consumer() * kTiles * int(kTileBytes));
      const std::uint64_t b = operand(at + weight_bytes(kTiles));
      const float* rows =
          this->g_.block_scales ? this->s_.scratch.row_scales[this->ring_.stage] : nullptr;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        issue_e4m3<tokens>(part, a + t * (kTileBytes >> 4), b);
        mma_wait<0>();
        join_sums<tokens, End::kPaired>(part, weights[t], rows, acc[t]);
      }
      __syncwarp();  // all lanes have read the rows' scales
      this->release(this->ring_.stage);
    }
    const int tiles = min(kTiles, int(this->g_.layout.row_tiles()) - row_tile);
    if (tiles > 0)
      end_.store(
          acc, tiles,
          Sums{.expert = w.expert, .row_tile = row_tile, .first = w.first, .tokens = w.tokens},
          this->s_.scratch);
  }

  const End& end_;
};

/// Multiplies a tile's sums by what belongs to their rows and tokens.
template <int size>
__device__ void scale_sums(float (&acc)[size], const SumScales& s, std::int64_t stride,
                           const Sums& sums) {
  const std::int64_t at = sums.expert * stride;
  const float* f = reinterpret_cast<const float*>(s.factors + at) + sums.row_tile * kTileRows;
  const float low = f[Sums::row()], high = f[Sums::row() + 8];
  const float expert = s.experts ? *reinterpret_cast<const float*>(s.experts + at) : 1;
  const float* tokens = s.tokens + sums.first + Sums::lane() % 4 * 2;
#pragma unroll
  for (int j = 0; j < size / 4; ++j) {
    if (j * 8 >= sums.tokens) return;
    float2 token = make_float2(1, 1);
    if (s.tokens) token = *reinterpret_cast<const float2*>(tokens + j * 8);
    token.x *= expert, token.y *= expert;
    acc[4 * j] = acc[4 * j] * low * token.x, acc[4 * j + 1] = acc[4 * j + 1] * low * token.y;
    acc[4 * j + 2] = acc[4 * j + 2] * high * token.x;
    acc[4 * j + 3] = acc[4 * j + 3] * high * token.y;
  }
}

/// Of a warpgroup's first tile or its second.
__device__ inline Sums tile_of(const Sums& first, int t) {
  Sums sums = first;
  sums.row_tile += t;
  return sums;
}

}  // namespace switchyard::ops::sm90::prefill
