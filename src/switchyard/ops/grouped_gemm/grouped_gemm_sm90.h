// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"
#include "switchyard/ops/grouped_gemm/mma_decoded_sm90.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/ops/grouped_gemm/tile_decode_sm90.h"

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
template <class Code, int row_tiles, int tokens, int blocks = 1>
struct Tier {
  /// How tiles of weights are read.
  using Weights = Code;
  static constexpr int kRowTiles = row_tiles;        ///< Of weights; one warpgroup each.
  static constexpr int kColTiles = Code::kColTiles;  ///< Of one stage.
  static constexpr int kTokens = tokens;             ///< At most, of one tile.
  static constexpr int kBlocks = blocks;             ///< Per multiprocessor.
  /// A whole warpgroup fetches where it can lend its registers to two that decode.
  static constexpr bool kLends = Code::kDecoded && row_tiles == 2 && blocks == 1;
  /// The last warp or warpgroup fetches.
  static constexpr int kThreads = 128 * row_tiles + (kLends ? 128 : 32);
  /// Experts that the table of tile starts has room for.
  static constexpr int kExperts = blocks == 1 || Code::kDecoded ? 2048 + 32 : 1024;
  /// Of one stage: token rows, then weights, then the rows' block scales.
  static constexpr int kTokenBytes = tokens * int(kTileRowBytes);
  /// Where the weights begin, and the scales; Units: bytes.
  static constexpr int kWeightsAt = kColTiles * kTokenBytes;
  /// Behind the weights.
  static constexpr int kScalesAt = kWeightsAt + row_tiles * kColTiles * Code::kBytes;
  /// Whole KiB, because rows are swizzled.
  static constexpr int kStageBytes =
      (kScalesAt + (Code::kBlockSums ? tokens * 4 : 0) + 1023) / 1024 * 1024;
  static constexpr int kTableBytes = 4 * kExperts + 512;              ///< Barriers and tile starts.
  static constexpr int kBoardBytes = row_tiles * int(sizeof(Board));  ///< One per warpgroup.
  /// That a block may have, 1 KiB of each taken by the system.
  static constexpr int kSharedBytes = (228 / blocks - 1) * 1024;
  /// Stages that fit.
  static constexpr int kFit = (kSharedBytes - 1024 - kTableBytes - kBoardBytes) / kStageBytes;
  static constexpr int kStages = kFit < 16 ? kFit : 16;  ///< More would only lie in waiting.
  /// What a launch asks for; 1024 for alignment.
  static constexpr int kDynamicBytes = 1024 + kTableBytes + kBoardBytes + kStages * kStageBytes;

  /// The tile of weights that warpgroup `consumer` multiplies.
  __device__ static std::byte* weights(std::byte* stage, int consumer, int col_tile) {
    return stage + kWeightsAt + (consumer * kColTiles + col_tile) * Code::kBytes;
  }
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

/// The number of this block's first tile; it goes on in steps of the grid. Blocks that share a
/// multiprocessor are neighbours, or 132 apart: the factor spreads both over the tiles, so that the
/// last, incomplete round falls on all multiprocessors alike.
template <class Tier>
__device__ int first_tile() {
  constexpr unsigned kSpread = 325;  // coprime to 132
  return Tier::kBlocks == 1 ? int(blockIdx.x) : int(blockIdx.x * kSpread % gridDim.x);
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

/// Column tiles of rows, planes included: what K is walked in.
__device__ inline int walked_tiles(const DeviceGemm& g) {
  return int(g.layout.col_tiles() * g.x.planes);
}

/// Brings the weights of one stage: those of one row tile are one copy, unless planes repeat them.
template <class Tier>
__device__ void fetch_weights(const DeviceGemm& g, const std::byte* row, int first, int count,
                              std::byte* to, std::uint64_t* full) {
  constexpr int kBytes = Tier::Weights::kBytes;
  if (g.x.planes == 1) return copy_bulk(to, row + first * kBytes, count * kBytes, full);
  for (int t = 0; t < count; ++t)
    copy_bulk(to + t * kBytes, row + (first + t) / g.x.planes * kBytes, kBytes, full);
}

/// The fetching thread.
template <class Tier>
__device__ void fetch(const DeviceGemm& g, int num_tiles, std::byte* stages, Shared<Tier>& s) {
  constexpr int kBytes = Tier::Weights::kBytes;
  const int walked = walked_tiles(g), last_row_tile = int(g.layout.row_tiles()) - 1;
  const std::int64_t strip = g.layout.col_tiles() * kBytes;
  const bool scaled = Tier::Weights::kBlockSums && g.block_scales != nullptr;
  Ring<Tier> ring;
  for (int number = first_tile<Tier>(); number < num_tiles; number += gridDim.x) {
    const Tile tile = find_tile(g, number, s);
    const std::uint32_t padded = (tile.tokens + 7) / 8 * 8;
    const std::uint32_t row_bytes = padded * std::uint32_t(kTileRowBytes);
    const std::byte* expert = g.weights + tile.expert * g.expert_stride;
    const std::byte* rows = g.x.data + tile.first * kTileRowBytes;
    for (int first = 0; first < walked; first += Tier::kColTiles, ring.advance()) {
      const int count = min(Tier::kColTiles, walked - first);
      std::byte* stage = stages + ring.stage * Tier::kStageBytes;
      std::uint64_t* full = &s.full[ring.stage];
      barrier_wait(&s.empty[ring.stage], ring.phase ^ 1);
      barrier_expect(full, count * (Tier::kRowTiles * kBytes + row_bytes) + scaled * padded * 4);
      for (int i = 0; i < Tier::kRowTiles; ++i)
        // A last block of odd tiles reads the last one twice and drops its copy.
        fetch_weights<Tier>(g, expert + min(tile.row_tile + i, last_row_tile) * strip, first, count,
                            Tier::weights(stage, i, 0), full);
      for (int t = 0; t < count; ++t)
        copy_bulk(stage + t * Tier::kTokenBytes, rows + (first + t) * g.x.capacity * kTileRowBytes,
                  row_bytes, full);
      if (scaled)
        copy_bulk(stage + Tier::kScalesAt,
                  g.block_scales + first / Tier::kColTiles * g.x.capacity + tile.first, padded * 4,
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

/// What a multiplication reads of a block.
template <class Tier>
struct Source {
  const DeviceGemm& g;
  std::byte* stages;
  Shared<Tier>& s;
  Ring<Tier>& ring;

  __device__ int consumer() const { return threadIdx.x / 128; }
  __device__ std::byte* stage() const { return stages + ring.stage * Tier::kStageBytes; }
  __device__ void wait() const { barrier_wait(&s.full[ring.stage], ring.phase); }
  /// The warp is done with a stage; -1 is none.
  __device__ void release(int stage) const {
    if (threadIdx.x % 32 == 0 && stage >= 0) barrier_arrive(&s.empty[stage]);
  }
  /// Rows of column tile `t` of the stage.
  __device__ std::uint64_t tokens(int t) const {
    return operand(shared_address(stage() + t * Tier::kTokenBytes));
  }
  /// The same for decoded weights.
  __device__ std::uint32_t tokens_low(int t) const {
    return operand_low(shared_address(stage() + t * Tier::kTokenBytes));
  }
  __device__ const std::byte* weights(int t) const { return Tier::weights(stage(), consumer(), t); }
};

/// bf16 weights, from shared memory.
template <class Tier, int tokens>
__device__ void multiply_plain(const Source<Tier>& from, float (&acc)[tokens / 2]) {
  const int walked = walked_tiles(from.g);
  int previous = -1;
  for (int k = 0; k < walked; ++k, from.ring.advance()) {
    from.wait();
    const std::uint64_t a = operand(shared_address(from.weights(0))), b = from.tokens(0);
    mma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)  // 16 columns are 32 bytes further: 2 units of 16
      mma_bf16<tokens>(acc, a + 2 * step, b + 2 * step);
    mma_commit();
    mma_wait<1>();
    from.release(previous);
    previous = from.ring.stage;
  }
  mma_wait<0>();
  from.release(previous);
}

/// Multiplies one decoded tile; `add` 0 overwrites the sums.
template <int tokens>
__device__ void issue_decoded(float (&acc)[tokens / 2], const std::uint32_t (&a)[4][4],
                              std::uint32_t b, int add) {
  mma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step)
    mma_decoded<tokens>(acc, a[step], b + 2 * step, step == 0 ? add : 1);
  mma_commit();
}

/// Decoded weights: one tile is decoded while those before it multiply.
template <class Tier, int tokens>
__device__ void multiply_decoded(const Source<Tier>& from, float (&acc)[tokens / 2]) {
  const int walked = walked_tiles(from.g);
  for (int first = 0; first < walked; first += Tier::kColTiles, from.ring.advance()) {
    std::uint32_t a[Tier::kColTiles][4][4];
    from.wait();
#pragma unroll
    for (int t = 0; t < Tier::kColTiles; ++t) {
      if (t > 0 && first + t >= walked) break;
      Tier::Weights::decode(from.weights(t), a[t]);
      issue_decoded<tokens>(acc, a[t], from.tokens_low(t), 1);
    }
    mma_wait<0>();
    from.release(from.ring.stage);
  }
}

/// acc += part times both scales.
template <int tokens>
__device__ void promote(const float (&part)[tokens / 2], float2 weights, const float* rows,
                        float (&acc)[tokens / 2]) {
#pragma unroll
  for (int i = 0; i < tokens / 2; i += 4) {
    float2 row = make_float2(1, 1);
    if (rows) row = *reinterpret_cast<const float2*>(rows + i * 2 + threadIdx.x % 4 * 2);
    acc[i] = __fmaf_rn(part[i], weights.x * row.x, acc[i]);
    acc[i + 1] = __fmaf_rn(part[i + 1], weights.x * row.y, acc[i + 1]);
    acc[i + 2] = __fmaf_rn(part[i + 2], weights.y * row.x, acc[i + 2]);
    acc[i + 3] = __fmaf_rn(part[i + 3], weights.y * row.y, acc[i + 3]);
  }
}

/// Decoded weights with scales per 128 columns: the sums of a stage join the others scaled.
template <class Tier, int tokens>
__device__ void multiply_blocks(const Source<Tier>& from, float (&acc)[tokens / 2]) {
  using Code = typename Tier::Weights;
  const int walked = walked_tiles(from.g);
  float part[tokens / 2];
#pragma unroll
  for (int i = 0; i < tokens / 2; ++i) part[i] = 0;
  for (int first = 0; first < walked; first += 2, from.ring.advance()) {
    std::uint32_t even[4][4], odd[4][4];
    from.wait();
    Code::decode(from.weights(0), even);
    issue_decoded<tokens>(part, even, from.tokens_low(0), 0);
    if (first + 1 < walked) {
      Code::decode(from.weights(1), odd);
      issue_decoded<tokens>(part, odd, from.tokens_low(1), 1);
    }
    const float2 weights = Code::scales(from.weights(0));
    mma_wait<0>();
    const float* rows = reinterpret_cast<const float*>(from.stage() + Tier::kScalesAt);
    promote<tokens>(part, weights, from.g.block_scales ? rows : nullptr, acc);
    from.release(from.ring.stage);
  }
}

/// Multiplies one tile over all of K and hands the sums to `end`.
template <class Tier, int tokens, class End>
__device__ void multiply(const DeviceGemm& g, const Tile& tile, std::byte* stages, Shared<Tier>& s,
                         Ring<Tier>& ring, const End& end) {
  const Source<Tier> from{g, stages, s, ring};
  float acc[tokens / 2];
#pragma unroll
  for (int i = 0; i < tokens / 2; ++i) acc[i] = 0;
  if constexpr (!Tier::Weights::kDecoded) {
    multiply_plain<Tier, tokens>(from, acc);
  } else if constexpr (Tier::Weights::kBlockSums) {
    multiply_blocks<Tier, tokens>(from, acc);
  } else {
    multiply_decoded<Tier, tokens>(from, acc);
  }
  const int row_tile = tile.row_tile + from.consumer();
  if (row_tile < g.layout.row_tiles())
    store_all<tokens>(acc, tile, row_tile, s.boards()[from.consumer()], end);
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
  for (int number = first_tile<Tier>(); number < num_tiles; number += gridDim.x)
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
    if constexpr (Tier::kLends) registers_down<40>();
    if (threadIdx.x == 128 * Tier::kRowTiles) fetch<Tier>(g, num_tiles, stages, s);
  } else {
    if constexpr (Tier::kLends) registers_up<232>();
    consume<Tier>(g, num_tiles, stages, s, end);
  }
}

}  // namespace switchyard::ops::sm90
