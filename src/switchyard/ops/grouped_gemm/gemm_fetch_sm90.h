// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/gemm_tier_sm90.h"

/// What the last warp of a block does: it lists the tiles, takes its share, and brings the operands
/// of each, stage by stage; for .cu files only.
namespace switchyard::ops::sm90 {

/// Of the largest sm_90 part, for the size of a persistent grid. A smaller part runs the blocks
/// that are left over after the first.
inline constexpr int kMultiprocessors = 132;

/// Splits each expert's rows into equal tiles; the last of them may be shorter.
template <class Tier>
__device__ int tiles_of(std::int32_t rows) {
  return (rows + Tier::kTokens - 1) / Tier::kTokens;
}

/// Fills shared.starts; by one warp. The counts may be older than this launch's first-level cache
/// knows, so it is passed by.
template <class Tier>
__device__ void count_tiles(const DeviceGemm& g, int row_blocks, Shared<Tier>& s) {
  const int experts = int(g.experts), lane = threadIdx.x % 32;
#pragma unroll 4
  for (int e = lane; e < experts; e += 32)
    s.starts[e + 1] = tiles_of<Tier>(__ldcg(g.counts + e)) * row_blocks;
  __syncwarp();
  const int share = (experts + 31) / 32;
  const int begin = min(lane * share, experts), end = min(begin + share, experts);
  int sum = 0;
  for (int e = begin; e < end; ++e) sum += s.starts[e + 1];
  int before = sum;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += other;
  }
  before -= sum;
  for (int e = begin; e < end; ++e) s.starts[e + 1] = before += s.starts[e + 1];
  if (lane == 0) s.starts[0] = 0;
  __syncwarp();
}

/// The number of this block's first tile; it goes on in steps of the grid. Blocks that share a
/// multiprocessor are neighbours, or 132 apart: in a full grid the factor spreads both over the
/// tiles, so that the last, incomplete round falls on all multiprocessors alike.
template <class Tier>
__device__ int first_tile() {
  constexpr unsigned kSpread = 325;  // coprime to 132
  const bool full = Tier::kBlocks > 1 && gridDim.x == unsigned(Tier::kBlocks * kMultiprocessors);
  return full ? int(blockIdx.x * kSpread % gridDim.x) : int(blockIdx.x);
}

/// The tile of that number; token tiles of one expert's rows are neighbours, for the cache's sake.
template <class Tier>
__device__ Tile find_tile(const DeviceGemm& g, int number, const Shared<Tier>& s) {
  int low = 0, high = int(g.experts);
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (s.starts[middle] <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const std::int32_t begin = __ldcg(g.offsets + low), rows = __ldcg(g.counts + low);
  const int parts = tiles_of<Tier>(rows), local = number - s.starts[low], part = local % parts;
  const int share = ((rows + parts - 1) / parts + 7) / 8 * 8;
  return {.expert = low,
          .row_tile = local / parts * Tier::kRowTiles,
          .first = begin + part * share,
          .tokens = min(share, rows - part * share)};
}

/// Column tiles of a matrix of the code that the kernel is compiled for: layout.col_tiles() would
/// divide by what it reads, in many instructions that a launch of few tokens waits for.
template <TileCode code>
__device__ int col_tiles_of(const DeviceGemm& g) {
  constexpr std::int64_t kCols = tile_cols(code);
  return int((g.layout.cols + kCols - 1) / kCols);
}

/// Column tiles of rows, planes included: what K is walked in.
template <class Tier>
__device__ int walked_tiles(const DeviceGemm& g) {
  return col_tiles_of<Tier::Weights::kCode>(g) * int(g.x.planes);
}

/// The fetching warp. All lanes know where it stands; each brings another part of a stage, for one
/// thread alone would take longer to ask for a stage than the memory takes to send it.
template <class Tier>
class Fetcher {
 public:
  /// After count_tiles().
  __device__ Fetcher(const DeviceGemm& g, std::byte* stages, Shared<Tier>& s)
      : g_(g),
        s_(s),
        stages_(stages),
        lane_(threadIdx.x % 32),
        num_tiles_(s.starts[g.experts]),
        walked_(walked_tiles<Tier>(g)),
        column_bytes_(g.x.capacity * kTileRowBytes) {}

  /// Brings everything, and says that there is no more. Weights of the first stages come while the
  /// launch in front still writes the rows, where the caller allows it.
  __device__ void run() {
    int early = 0;
    if (g_.sorted_early) {
      for (Position at = begin(); early < Tier::kStages && valid(at); next(at)) open(at, early++);
      wait_for_previous_launch();
    }
    Ring<Tier> ring;
    for (Position at = begin(); valid(at); next(at), ring.advance()) {
      if (early > 0) {
        --early;
      } else {
        barrier_wait(&s_.empty[ring.stage], ring.phase ^ 1);
        open(at, ring.stage);
      }
      bring_rows(at, ring.stage);
    }
    barrier_wait(&s_.empty[ring.stage], ring.phase ^ 1);
    if (lane_ != 0) return;
    s_.tiles[ring.stage].expert = -1;
    barrier_arrive(&s_.full[ring.stage]);
  }

 private:
  static constexpr int kBytes = Tier::Weights::kBytes;
  static_assert(Tier::kRowTiles + Tier::kColTiles < 32, "a lane brings one part of a stage");

  /// A stage to be: some column tiles of one tile.
  struct Position {
    int number, first;
    Tile tile;
    const std::byte* weights;  // of this lane's row tile
    const std::byte* rows;     // of column tile `first`
  };
  __device__ bool valid(const Position& at) const { return at.number < num_tiles_; }
  __device__ void find(Position& at) const {
    if (!valid(at)) return;
    at.tile = find_tile(g_, at.number, s_);
    // A last block of odd tiles reads the last one twice and drops its copy.
    const int row =
        min(at.tile.row_tile + min(lane_, Tier::kRowTiles - 1), int(g_.layout.row_tiles()) - 1);
    at.weights = g_.weights + at.tile.expert * g_.expert_stride +
                 std::int64_t(row) * col_tiles_of<Tier::Weights::kCode>(g_) * kBytes;
    at.rows = g_.x.data + at.tile.first * kTileRowBytes;
  }
  __device__ Position begin() const {
    Position at{first_tile<Tier>(), 0, {}, nullptr, nullptr};
    find(at);
    return at;
  }
  __device__ void next(Position& at) const {
    at.first += Tier::kColTiles;
    at.rows += Tier::kColTiles * column_bytes_;
    if (at.first < walked_) return;
    at.first = 0;
    at.number += gridDim.x;
    find(at);
  }

  __device__ bool scaled() const { return Tier::Weights::kBlockSums && g_.block_scales; }
  __device__ int columns(const Position& at) const {
    return min(Tier::kColTiles, walked_ - at.first);
  }
  // Rows that a multiplication reads behind the last one are whatever lies there: each row of
  // tokens meets the weights alone, and sums of no token are dropped.
  __device__ std::uint32_t row_bytes(const Position& at) const {
    return at.tile.tokens * std::uint32_t(kTileRowBytes);
  }
  __device__ std::uint32_t scale_bytes(const Position& at) const {
    return scaled() ? (at.tile.tokens + 7) / 8 * 32 : 0;
  }

  /// Announces the whole stage and brings its weights, a row tile in each lane.
  __device__ void open(const Position& at, int stage) {
    const int count = columns(at);
    std::uint64_t* full = &s_.full[stage];
    if (lane_ == 0) {
      if (at.first == 0) s_.tiles[stage] = at.tile;
      barrier_expect(full, count * (Tier::kRowTiles * kBytes + row_bytes(at)) + scale_bytes(at));
    }
    __syncwarp();
    if (lane_ >= Tier::kRowTiles) return;
    std::byte* to = Tier::weights(stages_ + stage * Tier::kStageBytes, lane_, 0);
    if (g_.x.planes == 1)
      return copy_bulk(to, at.weights + at.first * kBytes, count * kBytes, full);
#pragma unroll 1
    for (int t = 0; t < count; ++t)  // planes repeat them
      copy_bulk(to + t * kBytes, at.weights + (at.first + t) / int(g_.x.planes) * kBytes, kBytes,
                full);
  }
  /// A column tile in each lane behind those.
  __device__ void bring_rows(const Position& at, int stage) {
    const int t = lane_ - Tier::kRowTiles;
    std::byte* to = stages_ + stage * Tier::kStageBytes;
    if (t >= 0 && t < columns(at))
      copy_bulk(to + t * Tier::kTokenBytes, at.rows + t * column_bytes_, row_bytes(at),
                &s_.full[stage]);
    if (t == Tier::kColTiles && scaled())
      copy_bulk(to + Tier::kScalesAt,
                g_.block_scales + at.first / Tier::kColTiles * g_.x.capacity + at.tile.first,
                scale_bytes(at), &s_.full[stage]);
  }

  const DeviceGemm& g_;
  Shared<Tier>& s_;
  std::byte* stages_;
  const int lane_, num_tiles_, walked_;
  const std::int64_t column_bytes_;
};

}  // namespace switchyard::ops::sm90
