// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/base/cuda_launch.h"
#include "switchyard/base/host_device.h"
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/sm90_cluster.h"

/// The grouped GEMM for hundreds of tokens an expert; operands and ends plug in. For .cu files
/// only.
///
/// What bounds it is how fast bytes come from the L2 cache, so tiles are as large as the registers
/// allow and a pair of blocks shares its tokens: each fetches half of them, for both. A pair works
/// off one tile of tokens by 512 weight rows, or by 256 where the tokens are more than fit beside
/// two rows of weight tiles; each of a block's two warpgroups multiplies one or two tiles of 64
/// rows.
/// The order of tiles is derived from `counts` by every block for itself, the dear ones first, so
/// that a fixed assignment ends evenly.
namespace switchyard::ops::sm90::prefill {

inline constexpr int kPair = 2;                ///< Blocks of a cluster.
inline constexpr int kConsumers = 2;           ///< Warpgroups of a block that multiply.
inline constexpr int kWarps = 4 * kConsumers;  ///< Of those.
/// Of a block: one more warpgroup, which feeds them.
inline constexpr int kThreads = 32 * (kWarps + 4);
inline constexpr int kExperts = int(kPrefillExperts);  ///< That the table has room for.
inline constexpr int kBuckets = 32;                    ///< Of tiles by what they cost.

/// A block's registers are dealt out in equal shares of 168 a thread. This is what a multiplying
/// thread makes of its own and of what those that feed give back: more would be waited for for
/// ever.
template <class Operands>
inline constexpr int kSumRegisters = (3 * 168 - Operands::kFeedRegisters) / kConsumers;

/// Bytes of one stage's weights when a warpgroup multiplies `tiles` of them.
SWITCHYARD_HD constexpr int weight_bytes(int tiles) { return kConsumers * tiles * int(kTileBytes); }

/// Bytes of one stage, 128 of each row of weights and tokens, of the larger of the two kinds of
/// tile.
template <class Operands>
inline constexpr int kStageBytes =
    std::max(weight_bytes(1) + Operands::kMostTokens * int(kTileRowBytes),
             weight_bytes(2) + Operands::kMostTokensTwice * int(kTileRowBytes));

/// How an expert's rows are cut.
template <class Operands>
struct Cut {
  int parts;       ///< Tiles of tokens.
  int share;       ///< Tokens of each but the last, in steps of kGrain.
  int tiles;       ///< Weight tiles of a warpgroup.
  int row_blocks;  ///< Tiles of weight rows, each for a pair of blocks.

  __device__ static Cut of(std::int32_t rows, int row_tiles) {
    constexpr int kMost = Operands::kMostTokens, kGrain = Operands::kGrain;
    Cut c;
    c.parts = (rows + kMost - 1) / kMost;
    c.share = rows == 0 ? 0 : ((rows + c.parts - 1) / c.parts + kGrain - 1) / kGrain * kGrain;
    c.tiles = c.share <= Operands::kMostTokensTwice ? 2 : 1;
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

/// One block's shared memory, behind the stages.
template <class Operands>
struct Shared {
  typename Operands::Scratch scratch;  ///< The ends'.
  std::uint64_t full[Operands::kStages], empty[Operands::kStages];
  Work work[Operands::kStages];  ///< Valid where a tile's first stage lies.
  std::int32_t buckets[kBuckets];
  std::int32_t starts[kExperts + 1];  ///< First tile of each place in `order`.
  std::uint16_t order[kExperts];      ///< Experts, dear tiles first.
};

/// What a launch asks for; 1024 for alignment.
template <class Operands>
constexpr int dynamic_bytes() {
  constexpr int kBytes =
      1024 + Operands::kStages * kStageBytes<Operands> + int(sizeof(Shared<Operands>));
  static_assert(kBytes <= 227 * 1024 && kStageBytes<Operands> % 1024 == 0);
  return kBytes;
}

/// Position in a ring of stages.
template <int stages>
struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

/// Sorts the experts by the cost of their tiles, stable, and numbers the tiles; by one warp. The
/// counts may be older than this launch's first-level cache knows, so it is passed by.
template <class Operands>
__device__ void order_tiles(const DeviceGemm& g, Shared<Operands>& s) {
  const int experts = int(g.experts), row_tiles = int(g.layout.row_tiles());
  const int lane = threadIdx.x % 32;
  const auto each_expert = [&](auto&& place) {
    for (int from = 0; from < experts; from += 32) {
      const int e = from + lane;
      const auto cut = Cut<Operands>::of(e < experts ? __ldcg(g.counts + e) : 0, row_tiles);
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
  each_expert([](int, int, const Cut<Operands>&) {});
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
  each_expert([&](int e, int at, const Cut<Operands>& cut) {
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
}

/// The tiles that a block works off, in order.
template <class Operands>
class TileWalk {
 public:
  /// Of one block; its tiles are in order.
  __device__ TileWalk(const DeviceGemm& g, const Shared<Operands>& s)
      : g_(g), s_(s), num_tiles_(s.starts[g.experts]), rank_(cluster_rank()) {}

  /// The next one; false: there is no more.
  __device__ bool next(Work& w) {
    const int pairs = gridDim.x / kPair, pair = blockIdx.x / kPair;
    for (; round_ * pairs < num_tiles_; ++round_) {
      // There and back: who had the dearest of one round gets the cheapest of the next.
      const int number = round_ * pairs + (round_ % 2 == 0 ? pair : pairs - 1 - pair);
      if (number >= num_tiles_) continue;
      w = find(number);
      ++round_;
      return true;
    }
    return false;
  }

 private:
  /// The tile of that number; numbers come in ascending order.
  __device__ Work find(int number) {
    while (s_.starts[at_ + 1] <= number) ++at_;
    const int expert = s_.order[at_];
    const std::int32_t rows = __ldcg(g_.counts + expert);
    const auto cut = Cut<Operands>::of(rows, int(g_.layout.row_tiles()));
    // Token tiles of the same weights are neighbours, for the cache's sake.
    const int local = number - s_.starts[at_], part = local % cut.parts;
    Work w;
    w.expert = expert;
    w.row_tile = (local / cut.parts * kPair + int(rank_)) * kConsumers * cut.tiles;
    w.first = __ldcg(g_.offsets + expert) + part * cut.share;
    w.tokens = std::int16_t(min(cut.share, rows - part * cut.share));
    w.tiles = std::int16_t(cut.tiles);
    return w;
  }

  const DeviceGemm& g_;
  const Shared<Operands>& s_;
  int num_tiles_, at_ = 0, round_ = 0;
  std::uint32_t rank_;
};

/// What the fetching warps of all operands share: which tiles a block works off, and the ring. All
/// lanes know where they stand; each brings another part of a stage.
template <class Operands>
class ProducerBase {
 public:
  /// Of one block; its tiles are in order.
  __device__ ProducerBase(const DeviceGemm& g, std::byte* stages, Shared<Operands>& s)
      : g_(g), stages_(stages), s_(s), rank_(cluster_rank()) {}

 protected:
  /// Calls `fetch(work)` for every tile of the pair.
  template <class Fetch>
  __device__ void each_tile(Fetch&& fetch) {
    TileWalk<Operands> walk(g_, s_);
    for (Work w; walk.next(w);) fetch(w);
  }
  __device__ void wait_for_stage() {
    barrier_wait_bounded(&s_.empty[ring_.stage], ring_.phase ^ 1);
  }
  /// Says that there is no more.
  __device__ void end() {
    wait_for_stage();
    if (threadIdx.x % 32 != 0) return;
    s_.work[ring_.stage].tokens = 0;
    barrier_arrive(&s_.full[ring_.stage]);
  }
  __device__ std::byte* stage() const { return stages_ + ring_.stage * kStageBytes<Operands>; }
  /// Tokens as they are copied.
  __device__ static int padded(const Work& w) { return (w.tokens + 7) / 8 * 8; }
  /// Those that this block fetches for both.
  struct Half {
    int begin, count;
  };
  __device__ Half half_of(const Work& w) const {
    const int rows = padded(w), half = (rows / 8 + 1) / 2 * 8;
    return rank_ == 0 ? Half{0, half} : Half{half, rows - half};
  }

  const DeviceGemm& g_;
  std::byte* stages_;
  Shared<Operands>& s_;
  std::uint32_t rank_;
  Ring<Operands::kStages> ring_;
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

/// What the warpgroups of all operands do: wait for work, choose a width, give stages back.
template <class Operands>
class ConsumerBase {
 public:
  /// Of one warpgroup.
  __device__ ConsumerBase(const DeviceGemm& g, std::byte* stages, Shared<Operands>& s)
      : g_(g), stages_(stages), s_(s) {}

 protected:
  __device__ void wait() { barrier_wait_bounded(&s_.full[ring_.stage], ring_.phase); }
  __device__ std::uint32_t stage_address() const {
    return shared_address(stages_ + ring_.stage * kStageBytes<Operands>);
  }
  /// Says that this warp no longer reads the stage; both blocks' fetches wait for it.
  __device__ void release(int stage) {
    __syncwarp();  // all lanes have read what stands there, whose tile it is among it
    if (Sums::lane() < kPair) barrier_arrive_at(&s_.empty[stage], Sums::lane());
  }
  __device__ static int consumer() { return threadIdx.x / 128; }

  const DeviceGemm& g_;
  std::byte* stages_;
  Shared<Operands>& s_;
  Ring<Operands::kStages> ring_;
};

/// Prepares a block's barriers; by one thread.
template <class Operands>
__device__ void init_barriers(Shared<Operands>& s) {
  for (int i = 0; i < Operands::kStages; ++i) {
    barrier_init(&s.full[i], Operands::kFullArrivals);
    barrier_init(&s.empty[i], kPair * kWarps);
  }
  Operands::init(s.scratch);
  barrier_init_fence();
}

/// The kernel of one kind of operands and one end.
template <class Operands, class End>
__global__ void __cluster_dims__(kPair, 1, 1) __launch_bounds__(kThreads, 1)
    prefill_kernel(const __grid_constant__ DeviceGemm g, const __grid_constant__ End end) {
  extern __shared__ std::byte raw[];
  std::byte* stages = raw + (1024 - shared_address(raw) % 1024) % 1024;
  auto& s =
      *reinterpret_cast<Shared<Operands>*>(stages + Operands::kStages * kStageBytes<Operands>);
  if (threadIdx.x == 0) init_barriers(s);
  cluster_sync();
  if (threadIdx.x >= 32 * kWarps) {
    give_registers<Operands::kFeedRegisters>();
    if (threadIdx.x / 32 == kWarps) {
      if (!g.sorted_early) wait_for_previous_launch();
      order_tiles(g, s);
    }
    Operands::feed(g, stages, s, int(threadIdx.x) / 32 - kWarps);
  } else {
    wait_for_previous_launch();
    allow_next_launch();
    static_assert(kSumRegisters<Operands> % 8 == 0);
    take_registers<kSumRegisters<Operands>>();
    typename Operands::template Consumer<End>(g, stages, s, end).run();
  }
  cluster_sync();  // the other block may still copy into this one and arrive at its barriers
}

/// Pairs that the device runs at once. Where a cluster of multiprocessors has an odd number of
/// them, one is left over, and a fixed assignment to half of all would wait for a second round.
template <class Kernel>
std::int64_t resident_pairs(const char* what, Kernel kernel, const LaunchShape& block) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  int(block.shared_bytes)),
             what);
  cudaLaunchAttribute pair{};
  pair.id = cudaLaunchAttributeClusterDimension;
  pair.val.clusterDim = {kPair, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kPair);
  config.blockDim = dim3(block.threads);
  config.dynamicSmemBytes = block.shared_bytes;
  config.attrs = &pair;
  config.numAttrs = 1;
  int pairs = 0;
  cuda_check(cudaOccupancyMaxActiveClusters(&pairs, kernel, &config), what);
  return std::max(1, pairs);
}

/// Launches as many pairs as the device runs at once, or as there are tiles.
template <class Operands, class End>
void launch(const char* what, const DeviceGemm& g, const End& end, Stream stream) {
  ensure(g.experts <= kExperts, what, ": ", g.experts, " experts, the limit is ", kExperts);
  if (g.max_rows == 0) return;
  const auto kernel = prefill_kernel<Operands, End>;
  LaunchShape shape{.threads = kThreads, .shared_bytes = dynamic_bytes<Operands>()};
  const std::int64_t pairs = resident_pairs(what, kernel, shape);
  const std::int64_t tiles = (g.layout.row_tiles() + 3) / 4 *
                             (std::min(g.experts, g.max_rows) + g.max_rows / Operands::kMostTokens);
  shape.blocks = unsigned(kPair * std::min(tiles, pairs));
  launch_overlapped(what, kernel, shape, stream, g, end);
}

}  // namespace switchyard::ops::sm90::prefill
