// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"
#include "switchyard/ops/grouped_gemm/sm90.h"

/// The grouped GEMM's pipeline, written once; ends and formats plug in. For .cu files only.
///
/// One block works off tiles of kRowTiles x 64 weight rows by up to kTokens tokens of one expert.
/// A thread of its last warp fetches, by bulk copies of weight tiles and of token rows, which
/// lie in memory as shared memory wants them. Each warpgroup multiplies one 64-row tile.
/// The list of tiles is derived from `counts` by every block for itself: no host, no padding to a
/// capacity.
namespace switchyard::ops::sm90 {

/// Where a warpgroup lays out its sums, some tokens at a time, to store them in whole rows: the
/// end's code is then a loop and not one copy per accumulator register.
struct Board {
  static constexpr int kTokens = 16;                  ///< At a time.
  static constexpr int kStride = int(kTileRows) + 4;  ///< Floats; + 4: no bank meets twice.
  float sums[kTokens * kStride];

  /// Four rows of weights of one token.
  __device__ float4 four(int token, int row) const {
    return *reinterpret_cast<const float4*>(sums + token * kStride + row);
  }
};

/// Sizes of one tier; `blocks` share a multiprocessor, so that one multiplies while another stores.
template <int row_tiles, int tokens, int blocks = 1>
struct Tier {
  static constexpr int kRowTiles = row_tiles;            ///< Of weights; one warpgroup each.
  static constexpr int kTokens = tokens;                 ///< At most, of one tile.
  static constexpr int kBlocks = blocks;                 ///< Per multiprocessor.
  static constexpr int kThreads = 128 * row_tiles + 32;  ///< The last warp fetches.
  /// Experts that the table of tile starts has room for.
  static constexpr int kExperts = blocks == 1 ? 2048 + 32 : 1024;
  static constexpr int kWeightBytes = row_tiles * int(kTileBytes);  ///< Of one stage.
  /// 64 columns of weights and tokens.
  static constexpr int kStageBytes = kWeightBytes + tokens * int(kTileRowBytes);
  static constexpr int kTableBytes = 4 * kExperts + 512;              ///< Barriers and tile starts.
  static constexpr int kBoardBytes = row_tiles * int(sizeof(Board));  ///< One per warpgroup.
  /// That a block may have, 1 KiB of each taken by the system.
  static constexpr int kSharedBytes = (228 / blocks - 1) * 1024;
  /// Stages that fit.
  static constexpr int kFit = (kSharedBytes - 1024 - kTableBytes - kBoardBytes) / kStageBytes;
  static constexpr int kStages = kFit < 16 ? kFit : 16;  ///< More would only lie in waiting.
  /// What a launch asks for; 1024 for alignment.
  static constexpr int kDynamicBytes = 1024 + kTableBytes + kBoardBytes + kStages * kStageBytes;
};

/// One block's shared memory.
template <class Tier>
struct Shared {
  std::uint64_t full[Tier::kStages], empty[Tier::kStages];
  std::int32_t starts[Tier::kExperts + 1];  // first tile of each expert

  __device__ Board* boards() {
    return reinterpret_cast<Board*>(reinterpret_cast<std::byte*>(this) + Tier::kTableBytes);
  }
};

/// One unit of work.
struct Tile {
  int expert = 0;
  int row_tile = 0;         // first of the block's row tiles
  std::int32_t first = 0;   // sorted row
  std::int32_t tokens = 0;  // valid ones
};

/// What lies on a board.
struct Part {
  const Tile& tile;
  int row_tile;
  int first_token;

  __device__ int tokens() const { return min(Board::kTokens, tile.tokens - first_token); }
  __device__ std::int64_t row(int token) const { return tile.first + first_token + token; }
};

/// Position in the ring of stages.
template <class Tier>
struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == Tier::kStages) stage = 0, phase ^= 1;
  }
};

/// Splits each expert's rows into equal tiles; the last of them may be shorter.
template <class Tier>
__device__ int tiles_of(std::int32_t rows) {
  return (rows + Tier::kTokens - 1) / Tier::kTokens;
}

/// Fills shared.starts; by the whole block, synchronises it.
template <class Tier>
__device__ void count_tiles(const DeviceGemm& g, int row_blocks, Shared<Tier>& s) {
  const int experts = int(g.experts);
  for (int e = threadIdx.x; e < experts; e += Tier::kThreads)
    s.starts[e + 1] = tiles_of<Tier>(g.counts[e]) * row_blocks;
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x, share = (experts + 31) / 32;
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
  }
  __syncthreads();
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
  const std::int32_t begin = g.offsets[low], rows = g.counts[low];
  const int parts = tiles_of<Tier>(rows), local = number - s.starts[low], part = local % parts;
  const int share = ((rows + parts - 1) / parts + 7) / 8 * 8;
  return {.expert = low,
          .row_tile = local / parts * Tier::kRowTiles,
          .first = begin + part * share,
          .tokens = min(share, rows - part * share)};
}

/// The fetching thread.
template <class Tier>
__device__ void fetch(const DeviceGemm& g, int num_tiles, std::byte* stages, Shared<Tier>& s) {
  const int col_tiles = int(g.layout.col_tiles()), last_row_tile = int(g.layout.row_tiles()) - 1;
  Ring<Tier> ring;
  for (int number = blockIdx.x; number < num_tiles; number += gridDim.x) {
    const Tile tile = find_tile(g, number, s);
    const std::uint32_t row_bytes = (tile.tokens + 7) / 8 * 8 * std::uint32_t(kTileRowBytes);
    const std::byte* expert = g.weights + tile.expert * g.expert_stride;
    const std::byte* rows = g.x.data + tile.first * kTileRowBytes;
    for (int k = 0; k < col_tiles; ++k, ring.advance()) {
      std::byte* stage = stages + ring.stage * Tier::kStageBytes;
      std::uint64_t* full = &s.full[ring.stage];
      barrier_wait(&s.empty[ring.stage], ring.phase ^ 1);
      barrier_expect(full, Tier::kWeightBytes + row_bytes);
      for (int i = 0; i < Tier::kRowTiles; ++i) {
        // A last block of odd tiles reads the last one twice and drops its copy.
        const std::int64_t row_tile = min(tile.row_tile + i, last_row_tile);
        copy_bulk(stage + i * kTileBytes, expert + (row_tile * col_tiles + k) * kTileBytes,
                  kTileBytes, full);
      }
      copy_bulk(stage + Tier::kWeightBytes, rows + k * g.x.capacity * kTileRowBytes, row_bytes,
                full);
    }
  }
}

/// Lays chunk `at` of the sums out on the board, for all threads of the warpgroup.
template <int tokens>
__device__ void lay_out(const float (&acc)[tokens / 2], int at, Board& board) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
  for (int chunk = 0; chunk < (tokens + Board::kTokens - 1) / Board::kTokens; ++chunk) {
    if (chunk != at) continue;  // the registers' numbers have to be constants
#pragma unroll
    for (int i = 0; i < Board::kTokens / 2; ++i) {
      constexpr int kPerChunk = Board::kTokens / 2;
      if (chunk * kPerChunk + i >= tokens / 2) break;
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
      board.sums[token * Board::kStride + row + i / 2 % 2 * 8] = acc[chunk * kPerChunk + i];
    }
  }
}

/// Hands the sums to `end`, a board of tokens at a time.
template <int tokens, class End>
__device__ void store_all(const float (&acc)[tokens / 2], const Tile& tile, int row_tile,
                          Board& board, const End& end) {
  const int consumer = threadIdx.x / 128;
#pragma unroll 1
  for (int at = 0; at * Board::kTokens < tile.tokens; ++at) {
    lay_out<tokens>(acc, at, board);
    sync_warpgroup(consumer);
    end.store(board, {.tile = tile, .row_tile = row_tile, .first_token = at * Board::kTokens});
    sync_warpgroup(consumer);
  }
}

/// Multiplies one tile over all of K and hands the sums to `end`.
template <class Tier, int tokens, class End>
__device__ void multiply(const DeviceGemm& g, const Tile& tile, std::byte* stages, Shared<Tier>& s,
                         Ring<Tier>& ring, const End& end) {
  const int consumer = threadIdx.x / 128;
  const bool speaks = threadIdx.x % 32 == 0;
  float acc[tokens / 2];
#pragma unroll
  for (int i = 0; i < tokens / 2; ++i) acc[i] = 0;
  const int col_tiles = int(g.layout.col_tiles());
  int previous = -1;
  for (int k = 0; k < col_tiles; ++k, ring.advance()) {
    barrier_wait(&s.full[ring.stage], ring.phase);
    const std::uint32_t at = shared_address(stages + ring.stage * Tier::kStageBytes);
    const std::uint64_t a = operand(at + consumer * int(kTileBytes));
    const std::uint64_t b = operand(at + Tier::kWeightBytes);
    mma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)  // 16 columns are 32 bytes further: 2 units of 16
      mma_bf16<tokens>(acc, a + 2 * step, b + 2 * step);
    mma_commit();
    mma_wait<1>();
    if (speaks && previous >= 0) barrier_arrive(&s.empty[previous]);
    previous = ring.stage;
  }
  mma_wait<0>();
  if (speaks) barrier_arrive(&s.empty[previous]);
  const int row_tile = tile.row_tile + consumer;
  if (row_tile < g.layout.row_tiles())
    store_all<tokens>(acc, tile, row_tile, s.boards()[consumer], end);
}

/// The smallest of the tier's multiplications that takes the tile's tokens, from `tokens` on.
template <class Tier, int tokens, class End>
__device__ void multiply_from(const DeviceGemm& g, const Tile& tile, std::byte* stages,
                              Shared<Tier>& s, Ring<Tier>& ring, const End& end) {
  constexpr int kNext = tokens < 32 ? 2 * tokens : tokens + 32;
  if constexpr (kNext <= Tier::kTokens) {
    if (tile.tokens > tokens) return multiply_from<Tier, kNext>(g, tile, stages, s, ring, end);
  }
  multiply<Tier, tokens>(g, tile, stages, s, ring, end);
}

/// The multiplying warpgroups.
template <class Tier, class End>
__device__ void consume(const DeviceGemm& g, int num_tiles, std::byte* stages, Shared<Tier>& s,
                        const End& end) {
  constexpr int kLeast = Tier::kTokens <= 64 ? 8 : 32;
  Ring<Tier> ring;
  for (int number = blockIdx.x; number < num_tiles; number += gridDim.x)
    multiply_from<Tier, kLeast>(g, find_tile(g, number, s), stages, s, ring, end);
}

/// The kernel of one tier and one end.
template <class Tier, class End>
__global__ void __launch_bounds__(Tier::kThreads, Tier::kBlocks)
    grouped_gemm_kernel(const __grid_constant__ DeviceGemm g, const __grid_constant__ End end) {
  static_assert(sizeof(Shared<Tier>) <= Tier::kTableBytes);
  extern __shared__ std::byte raw[];
  std::byte* stages = raw + (1024 - shared_address(raw) % 1024) % 1024;
  Shared<Tier>& s = *reinterpret_cast<Shared<Tier>*>(stages + Tier::kStages * Tier::kStageBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tier::kStages; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], 4 * Tier::kRowTiles);
    }
    barrier_init_fence();
  }
  wait_for_previous_launch();
  allow_next_launch();
  const int row_blocks = int(g.layout.row_tiles() + Tier::kRowTiles - 1) / Tier::kRowTiles;
  count_tiles<Tier>(g, row_blocks, s);
  const int num_tiles = s.starts[g.experts];
  if (threadIdx.x >= 128 * Tier::kRowTiles) {
    if (threadIdx.x % 32 == 0) fetch<Tier>(g, num_tiles, stages, s);
  } else {
    consume<Tier>(g, num_tiles, stages, s, end);
  }
}

}  // namespace switchyard::ops::sm90
