// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/base/cuda_launch.h"
#include "switchyard/base/host_device.h"
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/sm90_cluster.h"
#include "switchyard/ops/grouped_gemm/sm90_mma_wide.h"

/// The grouped GEMM for hundreds of tokens an expert. For .cu files only.
///
/// What bounds it is how fast bytes come from the L2 cache, so tiles are as large as the registers
/// allow and a pair of blocks shares its tokens: each fetches half of them, for both. A pair works
/// off one tile of tokens by 512 weight rows, or by 256 where the tokens are more than fit beside
/// two rows of weight tiles; each of a block's two warpgroups multiplies one or two tiles of 64
/// rows. Sums go from the registers to memory.
/// The order of tiles is derived from `counts` by every block for itself, the dear ones first, so
/// that a fixed assignment ends evenly.
namespace switchyard::ops::sm90::prefill {

inline constexpr int kPair = 2;                     ///< Blocks of a cluster.
inline constexpr int kConsumers = 2;                ///< Warpgroups of a block that multiply.
inline constexpr int kWarps = 4 * kConsumers;       ///< Of those.
inline constexpr int kThreads = 32 * (kWarps + 4);  ///< One thread of the last warpgroup fetches.
/// A block's registers are dealt out in equal shares; these are what its warpgroups make of them.
inline constexpr int kFetchRegisters = 40, kSumRegisters = 232;
inline constexpr int kMostTokens = int(kPrefillTile);  ///< Of one tile.
inline constexpr int kMostTokensTwice = 128;  ///< Of a tile with two weight tiles a warpgroup.
inline constexpr int kExperts = int(kPrefillExperts);  ///< That the table has room for.
inline constexpr int kBuckets = 32;                    ///< Of tiles by what they cost.
inline constexpr int kStages = 4;                      ///< 64 columns of weights and tokens each.

/// Bytes of one stage's weights when a warpgroup multiplies `tiles` of them.
SWITCHYARD_HD constexpr int weight_bytes(int tiles) { return kConsumers * tiles * int(kTileBytes); }
/// Of the larger of the two kinds of tile.
inline constexpr int kStageBytes =
    std::max(weight_bytes(1) + kMostTokens * int(kTileRowBytes),
             weight_bytes(2) + kMostTokensTwice * int(kTileRowBytes));
static_assert(kStageBytes % 1024 == 0);

/// How an expert's rows are cut.
struct Cut {
  int parts;       ///< Tiles of tokens.
  int share;       ///< Tokens of each but the last, a multiple of 16.
  int tiles;       ///< Weight tiles of a warpgroup.
  int row_blocks;  ///< Tiles of weight rows, each for a pair of blocks.

  __device__ static Cut of(std::int32_t rows, int row_tiles) {
    Cut c;
    c.parts = (rows + kMostTokens - 1) / kMostTokens;
    c.share = rows == 0 ? 0 : ((rows + c.parts - 1) / c.parts + 15) / 16 * 16;
    c.tiles = c.share <= kMostTokensTwice ? 2 : 1;
    const int rows_of_tiles = kPair * kConsumers * c.tiles;
    c.row_blocks = (row_tiles + rows_of_tiles - 1) / rows_of_tiles;
    return c;
  }
  __device__ int total() const { return parts * row_blocks; }
  /// Of one tile, in units of 16 tokens; below kBuckets.
  __device__ int cost() const { return tiles * share / 16; }
};

/// One unit of work, as a block's warpgroups see it; no tokens: the end.
struct Work {
  int expert;
  int row_tile;        ///< First of this block's.
  std::int32_t first;  ///< Sorted row.
  std::int16_t tokens;
  std::int16_t tiles;  ///< Of a warpgroup.
};

/// Sixteen tokens of a warp's 16 weight rows, for ends that are loops and not one copy of their
/// code per register.
struct Board {
  static constexpr int kTokens = 16, kRows = 16;  ///< At a time.
  static constexpr int kStride = kRows + 4;       ///< Floats; + 4: no bank meets twice.
  float sums[kTokens * kStride];

  /// Four rows of weights of one token.
  __device__ float4 four(int token, int row) const {
    return *reinterpret_cast<const float4*>(sums + token * kStride + row);
  }
};

/// One block's shared memory, behind the stages.
struct Shared {
  Board boards[kWarps];
  std::uint64_t full[kStages], empty[kStages];
  Work work[kStages];  ///< Valid where a tile's first stage lies.
  std::int32_t buckets[kBuckets];
  std::int32_t starts[kExperts + 1];  ///< First tile of each place in `order`.
  std::uint16_t order[kExperts];      ///< Experts, dear tiles first.
};
/// What a launch asks for; 1024 for alignment.
inline constexpr int kDynamicBytes = 1024 + kStages * kStageBytes + int(sizeof(Shared));
static_assert(kDynamicBytes <= 227 * 1024);

/// Position in the ring of stages.
struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

/// Sorts the experts by the cost of their tiles, stable, and numbers the tiles; by one warp.
/// Returns the number of tiles.
__device__ inline int order_tiles(const DeviceGemm& g, Shared& s) {
  const int experts = int(g.experts), row_tiles = int(g.layout.row_tiles());
  const int lane = threadIdx.x % 32;
  const auto each_expert = [&](auto&& place) {
    for (int from = 0; from < experts; from += 32) {
      const int e = from + lane;
      const Cut cut = Cut::of(e < experts ? g.counts[e] : 0, row_tiles);
      const int bucket = kBuckets - 1 - cut.cost();
      const unsigned same = __match_any_sync(~0u, bucket);
      const int rank = __popc(same & ((1u << lane) - 1)), before = s.buckets[bucket];
      __syncwarp();
      if (rank == 0) s.buckets[bucket] = before + __popc(same);
      __syncwarp();
      if (e < experts) place(e, before + rank, cut);
    }
  };
  s.buckets[lane] = 0;
  __syncwarp();
  each_expert([](int, int, const Cut&) {});
  const auto scan = [&](int own) {
    int sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    return sum;
  };
  const int own = s.buckets[lane];
  s.buckets[lane] = scan(own) - own;
  __syncwarp();
  each_expert([&](int e, int at, const Cut& cut) {
    s.order[at] = std::uint16_t(e);
    s.starts[at + 1] = cut.total();
  });
  __syncwarp();
  int before = 0;
  for (int from = 0; from < experts; from += 32) {
    const int at = from + lane;
    const int sum = before + scan(at < experts ? s.starts[at + 1] : 0);
    if (at < experts) s.starts[at + 1] = sum;
    before = __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) s.starts[0] = 0;
  __syncwarp();
  return before;
}

/// The fetching thread.
class Producer {
 public:
  /// Of one block, for all of its tiles.
  __device__ Producer(const DeviceGemm& g, std::byte* stages, Shared& s, int num_tiles)
      : g_(g), stages_(stages), s_(s), num_tiles_(num_tiles), rank_(cluster_rank()) {}

  /// Fetches every tile of the pair, then says the end.
  __device__ void run() {
    const int pairs = gridDim.x / kPair, pair = blockIdx.x / kPair;
    for (int round = 0; round * pairs < num_tiles_; ++round) {
      // There and back: who had the dearest of one round gets the cheapest of the next.
      const int number = round * pairs + (round % 2 == 0 ? pair : pairs - 1 - pair);
      if (number < num_tiles_) fetch(find(number));
    }
    wait_for_stage();
    s_.work[ring_.stage].tokens = 0;
    barrier_arrive(&s_.full[ring_.stage]);
  }

 private:
  __device__ void wait_for_stage() {
    barrier_wait_bounded(&s_.empty[ring_.stage], ring_.phase ^ 1);
  }

  /// The tile of that number; numbers come in ascending order.
  __device__ Work find(int number) {
    while (s_.starts[at_ + 1] <= number) ++at_;
    const int expert = s_.order[at_];
    const std::int32_t rows = g_.counts[expert];
    const Cut cut = Cut::of(rows, int(g_.layout.row_tiles()));
    // Token tiles of the same weights are neighbours, for the cache's sake.
    const int local = number - s_.starts[at_], part = local % cut.parts;
    Work w;
    w.expert = expert;
    w.row_tile = (local / cut.parts * kPair + int(rank_)) * kConsumers * cut.tiles;
    w.first = g_.offsets[expert] + part * cut.share;
    w.tokens = std::int16_t(min(cut.share, rows - part * cut.share));
    w.tiles = std::int16_t(cut.tiles);
    return w;
  }

  __device__ void fetch(const Work& w) {
    const int col_tiles = int(g_.layout.col_tiles()), last = int(g_.layout.row_tiles()) - 1;
    const int rows = (w.tokens + 7) / 8 * 8, half = (rows / 8 + 1) / 2 * 8;
    const int begin = rank_ == 0 ? 0 : half, count = rank_ == 0 ? half : rows - half;
    const std::byte* expert = g_.weights + w.expert * g_.expert_stride;
    const std::byte* x = g_.x.data + (w.first + begin) * kTileRowBytes;
    for (int k = 0; k < col_tiles; ++k, ring_.advance()) {
      wait_for_stage();
      std::byte* stage = stages_ + ring_.stage * kStageBytes;
      std::uint64_t* full = &s_.full[ring_.stage];
      if (k == 0) s_.work[ring_.stage] = w;
      barrier_expect(full, weight_bytes(w.tiles) + rows * std::uint32_t(kTileRowBytes));
      if (count > 0)
        copy_bulk_to_pair(stage + weight_bytes(w.tiles) + begin * kTileRowBytes,
                          x + k * g_.x.capacity * kTileRowBytes,
                          count * std::uint32_t(kTileRowBytes), full);
      for (int i = 0; i < kConsumers * w.tiles; ++i) {
        // Tiles past the last row of weights read the last one again and drop its sums.
        const std::int64_t row_tile = min(w.row_tile + i, last);
        copy_bulk(stage + i * kTileBytes, expert + (row_tile * col_tiles + k) * kTileBytes,
                  kTileBytes, full);
      }
    }
  }

  const DeviceGemm& g_;
  std::byte* stages_;
  Shared& s_;
  int num_tiles_, at_ = 0;
  std::uint32_t rank_;
  Ring ring_;
};

/// What a warp's registers hold: 16 weight rows of a tile by its tokens, as mma_bf16() says.
struct Sums {
  int expert;
  int row_tile;
  std::int32_t first;  ///< Sorted row of the first token.
  int tokens;

  __device__ static int warp() { return threadIdx.x / 32 % 4; }
  __device__ static int lane() { return threadIdx.x % 32; }
  /// Among the tile's 64, of this lane's first sum; its other row is 8 further.
  __device__ static int row() { return warp() * 16 + lane() / 4; }
};

/// Lays chunk `at` of the sums out on the warp's board.
template <int size>
__device__ void lay_out(const float (&acc)[size], int at, Board& board) {
  constexpr int kPerChunk = Board::kTokens / 2;
  const int row = Sums::lane() / 4, column = Sums::lane() % 4 * 2;
#pragma unroll
  for (int chunk = 0; chunk < size / kPerChunk; ++chunk) {
    if (chunk != at) continue;  // the registers' numbers have to be constants
#pragma unroll
    for (int i = 0; i < kPerChunk; ++i)
      board.sums[(i / 4 * 8 + column + i % 2) * Board::kStride + row + i / 2 % 2 * 8] =
          acc[chunk * kPerChunk + i];
  }
}

/// A warpgroup's part of the work.
template <class End>
class Consumer {
 public:
  /// Of one warpgroup.
  __device__ Consumer(const DeviceGemm& g, std::byte* stages, Shared& s, const End& end)
      : g_(g), stages_(stages), s_(s), end_(end) {}

  /// Multiplies what comes until there is no more.
  __device__ void run() {
    while (true) {
      barrier_wait_bounded(&s_.full[ring_.stage], ring_.phase);
      const Work w = s_.work[ring_.stage];
      if (w.tokens == 0) return;
      if (w.tiles == 2) {
        multiply_from<2, 64>(w);
      } else {
        multiply_from<1, kMostTokensTwice + 16>(w);
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
  __device__ void multiply_from(const Work& w) {
    constexpr int kMost = tiles == 2 ? kMostTokensTwice : kMostTokens;
    if constexpr (next(tokens) <= kMost) {
      if (w.tokens > tokens) return multiply_from<tiles, next(tokens)>(w);
    }
    multiply<tiles, tokens>(w);
  }

  /// Says that this warp no longer reads the stage; both blocks' fetches wait for it.
  __device__ void release(int stage) {
    if (Sums::lane() < kPair) barrier_arrive_at(&s_.empty[stage], Sums::lane());
  }

  /// Multiplies over all of K and hands the sums to the end.
  template <int tiles, int tokens>
  __device__ void multiply(const Work& w) {
    const int consumer = threadIdx.x / 128;
    float acc[tiles][tokens / 2];
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int i = 0; i < tokens / 2; ++i) acc[t][i] = 0;
    const int col_tiles = int(g_.layout.col_tiles());
    int previous = -1;
    for (int k = 0; k < col_tiles; ++k, ring_.advance()) {
      barrier_wait_bounded(&s_.full[ring_.stage], ring_.phase);
      const std::uint32_t at = shared_address(stages_ + ring_.stage * kStageBytes);
      const std::uint64_t a = operand(at + consumer * tiles * int(kTileBytes));
      const std::uint64_t b = operand(at + weight_bytes(tiles));
      mma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step)  // 16 columns are 32 bytes further: 2 units of 16
#pragma unroll
        for (int t = 0; t < tiles; ++t)
          mma_bf16<tokens>(acc[t], a + t * (kTileBytes >> 4) + 2 * step, b + 2 * step);
      mma_commit();
      mma_wait<1>();
      if (previous >= 0) release(previous);
      previous = ring_.stage;
    }
    mma_wait<0>();
    release(previous);
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      const int row_tile = w.row_tile + consumer * tiles + t;
      if (row_tile < g_.layout.row_tiles())
        end_.store(
            acc[t],
            Sums{.expert = w.expert, .row_tile = row_tile, .first = w.first, .tokens = w.tokens},
            s_.boards[threadIdx.x / 32]);
    }
  }

  const DeviceGemm& g_;
  std::byte* stages_;
  Shared& s_;
  const End& end_;
  Ring ring_;
};

/// The kernel of one end.
template <class End>
__global__ void __cluster_dims__(kPair, 1, 1) __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ DeviceGemm g, const __grid_constant__ End end) {
  extern __shared__ std::byte raw[];
  std::byte* stages = raw + (1024 - shared_address(raw) % 1024) % 1024;
  Shared& s = *reinterpret_cast<Shared*>(stages + kStages * kStageBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kPair * kWarps);
    }
    barrier_init_fence();
  }
  cluster_sync();
  wait_for_previous_launch();
  allow_next_launch();
  if (threadIdx.x >= 32 * kWarps) {
    give_registers<kFetchRegisters>();
    if (threadIdx.x < 32 * (kWarps + 1)) {
      const int num_tiles = order_tiles(g, s);
      if (threadIdx.x % 32 == 0) Producer(g, stages, s, num_tiles).run();
      __syncwarp();
    }
  } else {
    take_registers<kSumRegisters>();
    Consumer<End>(g, stages, s, end).run();
  }
  cluster_sync();  // the other block may still copy into this one and arrive at its barriers
}

/// Launches as many pairs as the largest sm_90 part runs at once, or as there are tiles.
template <class End>
void launch(const char* what, const DeviceGemm& g, const End& end, Stream stream) {
  ensure(g.experts <= kExperts, what, ": ", g.experts, " experts, the limit is ", kExperts);
  if (g.max_rows == 0) return;
  constexpr std::int64_t kPairs = 132 / kPair;
  const std::int64_t tiles =
      (g.layout.row_tiles() + 3) / 4 * (std::min(g.experts, g.max_rows) + g.max_rows / kMostTokens);
  launch_overlapped(what, prefill_kernel<End>,
                    {.blocks = unsigned(kPair * std::min(tiles, kPairs)),
                     .threads = kThreads,
                     .shared_bytes = kDynamicBytes},
                    stream, g, end);
}

}  // namespace switchyard::ops::sm90::prefill
