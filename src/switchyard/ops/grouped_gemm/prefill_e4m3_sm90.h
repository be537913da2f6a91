// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/e4m3_sums_sm90.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_prefill_sm90.h"

/// The prefill tier of E4M3. For .cu files only.
///
/// Here the tokens are the 64 rows of an instruction and the weights its columns: a sum of products
/// does not show which side was which. A thread then has two tokens and, of each, neighbouring
/// columns: joining the sums of 128 columns takes one instruction a sum, with factors that a tile's
/// rows share, and the ends need no other warp's sums. While a warpgroup joins, the other one
/// multiplies.
namespace switchyard::ops::sm90::prefill {

template <class End>
class E4m3Consumer;

/// E4M3 from shared memory, both sides; sums per 128 columns.
struct E4m3Operands {
  static constexpr int kMostTokens = 128, kMostTokensTwice = kMostTokens;  ///< Of one tile.
  static constexpr int kGrain = 64;  ///< In which tokens are cut: a warpgroup's.
  static constexpr int kTokens = kMostTokens / kConsumers;  ///< Of a warpgroup.
  static constexpr int kRowTiles = 4;        ///< Of weights, of a block; each warpgroup has all.
  static constexpr int kWarpTokens = 16;     ///< Of a warp.
  static constexpr int kStages = 4;          ///< Of the ring.
  static constexpr int kFullArrivals = 1;    ///< At a stage's barrier.
  static constexpr int kFeedRegisters = 40;  ///< Of a fetching thread.
  /// What an end reads of memory. It is asked for before the multiplication and lies here behind
  /// it: FC2's takes no longer than a few misses of the cache.
  struct Asked {
    alignas(16) float factors[kRowTiles * int(kTileRows)];
    ActivationParams params;
    float static_scale, expert_scale;
  };
  /// What ends use, beside the rows' scales of each stage.
  struct Scratch {
    float row_scales[kStages][kMostTokens];
    alignas(16) float2 weight_scales[kStages][kRowTiles][2];  ///< Of two column tiles.
    alignas(16) std::byte codes[kWarps][kWarpTokens * 128];   ///< A warp's part of FC2's input.
    /// A warpgroup's, of two tiles in turn: one warp may be at the end of a tile while the others
    /// ask for the next one's.
    Asked asked[kConsumers][2];
  };
  /// Beside the ring's, no barriers.
  __device__ static void init(Scratch&) {}
  /// What fetches them, by the first of the feeding warps,
  __device__ static void feed(const DeviceGemm& g, std::byte* stages, Shared<E4m3Operands>& s,
                              int warp);
  /// and what multiplies them.
  template <class End>
  using Consumer = E4m3Consumer<End>;
};

/// The fp32 scales of a row tile's column tiles: of the rows r with r % 16 < 8, and of the others.
/// Those past the last one are its.
__device__ inline const float2* weight_scales(const DeviceGemm& g, int expert, int row_tile) {
  const std::int64_t row = min(row_tile, int(g.layout.row_tiles()) - 1);
  const std::byte* all = g.weights + expert * g.expert_stride + g.layout.scales_at();
  return reinterpret_cast<const float2*>(all) + row * g.layout.col_tiles();
}
/// Units: bytes; of the copy that brings one, and of a neighbour.
inline constexpr std::uint32_t kScaleBytes = 16;

/// The fetching warp. Each lane brings another part of a stage: a weight tile, this block's half of
/// the tokens, the rows' scales, or those of a weight tile.
class E4m3Producer : ProducerBase<E4m3Operands> {
 public:
  /// Of one block.
  __device__ E4m3Producer(const DeviceGemm& g, std::byte* stages, Shared<E4m3Operands>& s)
      : ProducerBase(g, stages, s), lane_(threadIdx.x % 32) {}

  /// Fetches every tile of the pair, then says the end.
  __device__ void run() {
    each_tile([&](const Work& w) { fetch(w); });
    end();
  }

 private:
  static constexpr int kTokenLane = E4m3Operands::kRowTiles, kRowScaleLane = kTokenLane + 1;
  static constexpr int kScaleLane = kRowScaleLane + 1, kEnd = kScaleLane + E4m3Operands::kRowTiles;

  /// This lane's copy of each stage: from where, how far on that is in the next, and where to.
  struct Copy {
    const std::byte* from = nullptr;
    std::int64_t step = 0;
    std::uint32_t bytes = 0;  ///< 0: none.
    std::uint32_t at = 0;     ///< In the stage.
  };

  __device__ Copy copy_of(const Work& w) const {
    if (lane_ < kTokenLane) {
      // Tiles past the last row of weights read the last one again and drop its sums.
      const int row_tile = min(w.row_tile + lane_, int(g_.layout.row_tiles()) - 1);
      const std::int64_t strip = g_.layout.col_tiles() * kTileBytes;
      return {g_.weights + w.expert * g_.expert_stride + row_tile * strip, kTileBytes,
              std::uint32_t(kTileBytes), std::uint32_t(lane_ * kTileBytes)};
    }
    if (lane_ == kTokenLane) {
      const Half half = half_of(w);
      return {g_.x.data + (w.first + half.begin) * kTileRowBytes, g_.x.capacity * kTileRowBytes,
              std::uint32_t(half.count * kTileRowBytes),
              std::uint32_t(weight_bytes(w.tiles) + half.begin * kTileRowBytes)};
    }
    if (lane_ >= kScaleLane && lane_ < kEnd)
      return {reinterpret_cast<const std::byte*>(
                  weight_scales(g_, w.expert, w.row_tile + lane_ - kScaleLane)),
              sizeof(float2), kScaleBytes, 0};
    if (lane_ != kRowScaleLane || !g_.block_scales) return {};
    return {reinterpret_cast<const std::byte*>(g_.block_scales + w.first), g_.x.capacity * 4,
            std::uint32_t(padded(w) * 4), 0};
  }

  /// All that a stage gets, of all lanes and of the other block.
  __device__ std::uint32_t bytes_of(const Work& w) const {
    const int of_row = int(kTileRowBytes) + (g_.block_scales ? 4 : 0);
    return weight_bytes(w.tiles) + padded(w) * std::uint32_t(of_row) +
           E4m3Operands::kRowTiles * kScaleBytes;
  }

  __device__ void fetch(const Work& w) {
    Copy copy = copy_of(w);
    const std::uint32_t bytes = bytes_of(w);
    const int col_tiles = int(g_.layout.col_tiles());
    for (int k = 0; k < col_tiles; ++k, ring_.advance()) {
      wait_for_stage();
      std::uint64_t* full = &s_.full[ring_.stage];
      if (lane_ == 0) {
        if (k == 0) s_.work[ring_.stage] = w;
        barrier_expect(full, bytes);
      }
      __syncwarp();
      if (copy.bytes > 0) bring(copy, full);
      copy.from += copy.step;
    }
  }
  __device__ void bring(const Copy& copy, std::uint64_t* full) const {
    if (lane_ < kTokenLane) {
      copy_bulk(stage() + copy.at, copy.from, copy.bytes, full);
    } else if (lane_ == kTokenLane) {
      copy_bulk_to_pair(stage() + copy.at, copy.from, copy.bytes, full);
    } else if (lane_ == kRowScaleLane) {
      copy_bulk(s_.scratch.row_scales[ring_.stage], copy.from, copy.bytes, full);
    } else {  // from a multiple of 16 bytes on
      const auto from = reinterpret_cast<std::uintptr_t>(copy.from) / kScaleBytes * kScaleBytes;
      copy_bulk(s_.scratch.weight_scales[ring_.stage][lane_ - kScaleLane],
                reinterpret_cast<const void*>(from), kScaleBytes, full);
    }
  }

  int lane_;
};

/// By each of the feeding warps.
__device__ inline void E4m3Operands::feed(const DeviceGemm& g, std::byte* stages,
                                          Shared<E4m3Operands>& s, int warp) {
  if (warp != 0) return;
  wait_for_previous_launch();
  E4m3Producer(g, stages, s).run();
}

/// Sums of a warpgroup's 64 tokens by a block's 256 weight rows. A lane has, of each of its two
/// tokens, columns 2 (lane % 4) and + 1 of every eight: `v[half][group][token][column]`.
struct TokenSums {
  static constexpr int kHalves = 2, kGroups = 16;  ///< 128 weight rows, of eight each.
  float v[kHalves][kGroups * 4];
};

/// Whose sums those are.
struct Place {
  int expert;
  int row_tile;        ///< The block's first.
  int tiles;           ///< Of the block's four, that there are.
  std::int32_t first;  ///< Sorted row of the warp's first token.
  int tokens;          ///< Of the warp's 16, that there are; may be none.
  const E4m3Operands::Asked& asked;

  __device__ static int lane() { return threadIdx.x % 32; }
  /// Of the lane's first token among the warp's; the other one is 8 further.
  __device__ static int token() { return lane() / 4; }
  /// Of the lane's first column among each eight.
  __device__ static int column() { return lane() % 4 * 2; }
  /// Among the matrix's weight rows, of group `group` of half `half`.
  __device__ int row(int half, int group) const {
    return row_tile * int(kTileRows) + (half * TokenSums::kGroups + group) * 8 + column();
  }
  __device__ bool has(int token) const { return token < tokens; }
};

/// Asks for what scales the sums of a block's `tiles` row tiles, by a warpgroup.
__device__ inline void ask_scales(E4m3Operands::Asked& to, const SumScales& s, std::int64_t stride,
                                  const Work& w, int tiles) {
  const int thread = threadIdx.x % 128;
  const std::int64_t at = w.expert * stride;
  const float* factors = reinterpret_cast<const float*>(s.factors + at) + w.row_tile * kTileRows;
#pragma unroll
  for (int i = 0; i < E4m3Operands::kRowTiles * int(kTileRows); i += 128)
    if (i + thread < tiles * int(kTileRows))
      copy_word(to.factors + i + thread, factors + i + thread, true);
  if (thread == 0 && s.experts) copy_word(&to.expert_scale, s.experts + at, true);
}

/// The same and what an activation takes.
__device__ inline void ask_activation(E4m3Operands::Asked& to, const ActivationEnd& end,
                                      const Work& w, int tiles) {
  constexpr int kWords = int(sizeof(ActivationParams) / sizeof(float));
  const int thread = threadIdx.x % 128;
  ask_scales(to, end.scales, end.stride, w, tiles);
  if (thread < kWords)
    copy_word(reinterpret_cast<float*>(&to.params) + thread,
              reinterpret_cast<const float*>(end.params + w.expert) + thread, true);
  if (thread == kWords && end.static_scale)
    copy_word(&to.static_scale, end.static_scale + w.expert * end.stride, true);
}

/// acc += part times both scales, of 128 weight rows. Unpaired rows of weights share one.
template <bool paired>
__device__ __forceinline__ void join_half(const float (&part)[64], const float2 (&weights)[2],
                                          float2 rows, float (&acc)[64]) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const float x[2] = {weights[tile].x * rows.x, weights[tile].x * rows.y};
    float y[2] = {x[0], x[1]};
    if (paired) y[0] = weights[tile].y * rows.x, y[1] = weights[tile].y * rows.y;
#pragma unroll
    for (int i = tile * 32; i < tile * 32 + 32; ++i) {
      const float scale = i / 4 % 2 == 0 ? x[i / 2 % 2] : y[i / 2 % 2];
      acc[i] = __fmaf_rn(part[i], scale, acc[i]);
    }
  }
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

/// A warpgroup's part of the work: half of a tile's tokens.
template <class End>
class E4m3Consumer : ConsumerBase<E4m3Operands> {
  using Base = ConsumerBase<E4m3Operands>;
  using Operands = E4m3Operands;

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
      if (this->consumer() * Operands::kTokens < w.tokens) {
        multiply(w);
      } else {
        pass();
      }
    }
    if (threadIdx.x % 32 == 0) wait_for_stores();
  }

 private:
  /// A tile whose tokens are all the other warpgroup's.
  __device__ void pass() {
    const int col_tiles = int(this->g_.layout.col_tiles());
    for (int k = 0; k < col_tiles; ++k, this->ring_.advance()) {
      this->wait();
      this->release(this->ring_.stage);
    }
  }

  /// The scales of the lane's two tokens in the stage.
  __device__ float2 row_scales() const {
    if (!this->g_.block_scales) return make_float2(1, 1);
    const float* at =
        this->s_.scratch.row_scales[this->ring_.stage] + warp_token() + Place::token();
    return make_float2(at[0], at[8]);
  }
  /// The warp's first token.
  __device__ int warp_token() const { return int(threadIdx.x) / 32 * Operands::kWarpTokens; }

  /// Multiplies over all of K and hands the sums to the end.
  __device__ __forceinline__ void multiply(const Work& w) {
    const int tiles = min(Operands::kRowTiles, int(this->g_.layout.row_tiles()) - w.row_tile);
    Operands::Asked& asked = this->s_.scratch.asked[this->consumer()][turn_];
    turn_ ^= 1;
    if (tiles > 0) end_.ask(asked, w, tiles);
    // Which of two a copy of scales was made for: the address of the first column tile's says it.
    unsigned odd = 0;
#pragma unroll
    for (int t = 0; t < Operands::kRowTiles; ++t)
      odd |= unsigned(reinterpret_cast<std::uintptr_t>(
                          weight_scales(this->g_, w.expert, w.row_tile + t)) /
                      sizeof(float2) % 2)
             << t;
    TokenSums acc;
    float part[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) acc.v[0][i] = acc.v[1][i] = part[i] = 0;
    const int col_tiles = int(this->g_.layout.col_tiles());
    for (int k = 0; k < col_tiles; ++k, this->ring_.advance()) {
      this->wait();
      const std::uint32_t at = this->stage_address();
      const std::uint64_t tokens = operand(at + weight_bytes(Operands::kRowTiles / kConsumers) +
                                           this->consumer() * int(kTileBytes));
      const std::uint64_t weights = operand(at);
      float2 rows;
#pragma unroll
      for (int half = 0; half < TokenSums::kHalves; ++half) {
        issue_e4m3<128>(part, tokens, weights + half * (2 * kTileBytes >> 4));
        if (half == 0) rows = row_scales();
        float2 of[2];
#pragma unroll
        for (int t = 0; t < 2; ++t)
          of[t] =
              this->s_.scratch
                  .weight_scales[this->ring_.stage][2 * half + t][(odd >> (2 * half + t) ^ k) & 1];
        mma_wait<0>();
        if (half == 1) this->release(this->ring_.stage);
        join_half<End::kPaired>(part, of, rows, acc.v[half]);
      }
    }
    wait_for_copies();
    sync_warpgroup(this->consumer());  // those of the other warps are there too
    const Place place{.expert = w.expert,
                      .row_tile = w.row_tile,
                      .tiles = tiles,
                      .first = w.first + warp_token(),
                      .tokens = w.tokens - warp_token(),
                      .asked = asked};
    if (tiles > 0 && place.tokens > 0)
      end_.store(acc, place, this->s_.scratch.codes[threadIdx.x / 32]);
    __syncwarp();
  }

  const End& end_;
  int turn_ = 0;
};

}  // namespace switchyard::ops::sm90::prefill
