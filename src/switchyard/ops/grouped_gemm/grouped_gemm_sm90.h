// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/gemm_fetch_sm90.h"
#include "switchyard/ops/grouped_gemm/mma_decoded_sm90.h"

/// The grouped GEMM's pipeline, written once; ends and formats plug in. For .cu files only.
///
/// One block works off tiles of kRowTiles x 64 weight rows by up to kTokens tokens of one expert.
/// Its last warp fetches, by bulk copies of weight tiles and of token rows, which
/// lie in memory as shared memory wants them. Each warpgroup multiplies one 64-row tile.
/// The list of tiles is derived from `counts` by every block for itself: no host, no padding to a
/// capacity.
namespace switchyard::ops::sm90 {

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
                          Desk& desk, const End& end) {
  const int consumer = threadIdx.x / 128;
  wait_for_copies();  // of the operands; the others' are there behind the barrier
#pragma unroll 1
  for (int at = 0; at * Board::kTokens < tile.tokens; ++at) {
    lay_out<tokens>(acc, at, desk.board);
    sync_warpgroup(consumer);
    end.store(desk, {.tile = tile, .row_tile = row_tile, .first_token = at * Board::kTokens});
    sync_warpgroup(consumer);
  }
}

/// Hands a tile that was ended to the finishing warp; by one thread of the warpgroup, behind all of
/// its stores.
__device__ inline void post(Outbox& box, const Tile& tile) {
  if (box.count > 0) barrier_wait(&box.taken, (box.count - 1) & 1);
  ++box.count;
  box.tile = tile;
  barrier_arrive(&box.posted);
}

/// The finishing warp: takes what the warpgroups post, in turn, until each has said that there is
/// no more.
template <class Tier, class End>
__device__ void finish_all(Shared<Tier>& s, const End& end) {
  for (int round = 0;; ++round) {
    bool more = false;
    for (int consumer = 0; consumer < Tier::kRowTiles; ++consumer) {
      Outbox& box = s.desks()[consumer].outbox;
      barrier_wait(&box.posted, round & 1);
      const Tile tile = box.tile;
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(&box.taken);
      if (tile.expert < 0) continue;
      end.finish(tile);
      more = true;
    }
    if (!more) return;
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
    return operand_low(__shfl_sync(~0u, shared_address(stage() + t * Tier::kTokenBytes), 0));
  }
  __device__ const std::byte* weights(int t) const { return Tier::weights(stage(), consumer(), t); }
};

/// bf16 weights, from shared memory; a stage is given back when the first tile behind it has been
/// issued.
template <class Tier, int tokens>
__device__ void multiply_plain(const Source<Tier>& from, float (&acc)[tokens / 2]) {
  const int walked = walked_tiles<Tier>(from.g);
  int previous = -1;
  for (int first = 0; first < walked; first += Tier::kColTiles, from.ring.advance()) {
    from.wait();
#pragma unroll
    for (int t = 0; t < Tier::kColTiles; ++t) {
      if (t > 0 && first + t >= walked) break;
      const std::uint64_t a = operand(shared_address(from.weights(t))), b = from.tokens(t);
      mma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step)  // 16 columns are 32 bytes further: 2 units of 16
        mma_bf16<tokens>(acc, a + 2 * step, b + 2 * step);
      mma_commit();
      mma_wait<1>();
      if (t == 0) from.release(previous);
    }
    previous = from.ring.stage;
  }
  mma_wait<0>();
  from.release(previous);
}

/// Multiplies 32 decoded columns; `add` 0 overwrites the sums.
template <int tokens>
__device__ void issue_decoded(float (&acc)[tokens / 2], const std::uint32_t (&a)[2][4],
                              std::uint32_t b, int add) {
  mma_fence();
  mma_decoded<tokens>(acc, a[0], b, add);
  mma_decoded<tokens>(acc, a[1], b + 2, 1);
  mma_commit();
}

/// Columns of a tile that are decoded at a time, as operand_low() counts them.
inline constexpr std::uint32_t kHalfTile = 4;

/// Decoded weights: half a tile is decoded while the half before it multiplies and the tile behind
/// it is read, across stages; so a stage is given back when the first half behind it was issued.
template <class Tier, int tokens>
__device__ void multiply_decoded(const Source<Tier>& from, float (&acc)[tokens / 2]) {
  using Code = typename Tier::Weights;
  constexpr int kCols = Tier::kColTiles;
  const int walked = walked_tiles<Tier>(from.g), rest = walked % kCols;
  std::uint32_t lower[2][4], upper[2][4];
  int previous = -1;
  from.wait();
  typename Code::Raw raw = Code::load(from.weights(0));
  for (int left = walked / kCols; left > 0; --left) {
    const std::byte* weights = from.weights(0);
    const std::uint32_t b = from.tokens_low(0);
    const int stage = from.ring.stage;
    from.ring.advance();
#pragma unroll
    for (int t = 0; t < kCols; ++t) {
      const std::uint32_t rows = b + t * (Tier::kTokenBytes >> 4);
      Code::template decode<0>(raw, lower);
      issue_decoded<tokens>(acc, lower, rows, 1);
      mma_wait<1>();
      if (t == 0) from.release(previous);
      Code::template decode<1>(raw, upper);
      if (t + 1 < kCols) {
        raw = Code::load(weights + (t + 1) * Code::kBytes);
      } else if (left > 1 || rest > 0) {
        from.wait();
        raw = Code::load(from.weights(0));
      }
      issue_decoded<tokens>(acc, upper, rows + kHalfTile, 1);
      mma_wait<1>();
    }
    previous = stage;
  }
  mma_wait<0>();
  from.release(previous);
  if (rest == 0) return;
  for (int t = 0; t < rest; ++t) {
    if (t > 0) raw = Code::load(from.weights(t));
    Code::template decode<0>(raw, lower);
    issue_decoded<tokens>(acc, lower, from.tokens_low(t), 1);
    Code::template decode<1>(raw, upper);
    issue_decoded<tokens>(acc, upper, from.tokens_low(t) + kHalfTile, 1);
    mma_wait<0>();
  }
  from.release(from.ring.stage);
  from.ring.advance();
}

/// Decodes all 64 columns of a tile.
template <class Code>
__device__ void decode_whole(const typename Code::Raw& raw, std::uint32_t (&a)[2][2][4]) {
  Code::template decode<0>(raw, a[0]);
  Code::template decode<1>(raw, a[1]);
}

/// Multiplies them.
template <int tokens>
__device__ void issue_whole(float (&acc)[tokens / 2], const std::uint32_t (&a)[2][2][4],
                            std::uint32_t b) {
  mma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step)
    mma_decoded<tokens>(acc, a[step / 2][step % 2], b + 2 * step, 1);
  mma_commit();
}

/// As multiply_decoded(), in the same order of K: a whole tile is decoded while the one before it
/// multiplies. Two tiles' operands take 32 registers, so the sums have to be few.
template <class Tier, int tokens>
__device__ void multiply_whole(const Source<Tier>& from, float (&acc)[tokens / 2]) {
  using Code = typename Tier::Weights;
  constexpr int kCols = Tier::kColTiles;
  static_assert(kCols % 2 == 0, "the two sets of registers take turns");
  const int walked = walked_tiles<Tier>(from.g), rest = walked % kCols;
  std::uint32_t operands[2][2][2][4];
  int previous = -1;
  from.wait();
  typename Code::Raw raw = Code::load(from.weights(0));
  for (int left = walked / kCols; left > 0; --left) {
    const std::byte* weights = from.weights(0);
    const std::uint32_t b = from.tokens_low(0);
    const int stage = from.ring.stage;
    from.ring.advance();
#pragma unroll
    for (int t = 0; t < kCols; ++t) {
      decode_whole<Code>(raw, operands[t % 2]);
      if (t + 1 < kCols) {
        raw = Code::load(weights + (t + 1) * Code::kBytes);
      } else if (left > 1 || rest > 0) {
        from.wait();
        raw = Code::load(from.weights(0));
      }
      issue_whole<tokens>(acc, operands[t % 2], b + t * (Tier::kTokenBytes >> 4));
      mma_wait<1>();  // the tile before: its registers are the next one's
      if (t == 0) from.release(previous);
    }
    previous = stage;
  }
  mma_wait<0>();
  from.release(previous);
  if (rest == 0) return;
  for (int t = 0; t < rest; ++t) {
    if (t > 0) raw = Code::load(from.weights(t));
    decode_whole<Code>(raw, operands[0]);
    issue_whole<tokens>(acc, operands[0], from.tokens_low(t));
    mma_wait<0>();
  }
  from.release(from.ring.stage);
  from.ring.advance();
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
  const int walked = walked_tiles<Tier>(from.g);
  float part[tokens / 2];
#pragma unroll
  for (int i = 0; i < tokens / 2; ++i) part[i] = 0;
  for (int first = 0; first < walked; first += 2, from.ring.advance()) {
    std::uint32_t lower[2][2][4], upper[2][2][4];
    from.wait();
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      if (first + t >= walked) break;
      const typename Code::Raw raw = Code::load(from.weights(t));
      Code::template decode<0>(raw, lower[t]);
      issue_decoded<tokens>(part, lower[t], from.tokens_low(t), t);
      Code::template decode<1>(raw, upper[t]);
      issue_decoded<tokens>(part, upper[t], from.tokens_low(t) + kHalfTile, 1);
    }
    const float2 weights = Code::scales(from.weights(0));
    mma_wait<0>();
    const float* rows = reinterpret_cast<const float*>(from.stage() + Tier::kScalesAt);
    promote<tokens>(part, weights, from.g.block_scales ? rows : nullptr, acc);
    from.release(from.ring.stage);
  }
}

/// Whether a warp finishes what this end has stored.
template <class Tier, class End>
__device__ bool finishes(const End& end) {
  if constexpr (Tier::kFinishes && requires { end.finish(Tile{}); }) return end.has_more();
  return false;
}

/// Multiplies one tile over all of K and hands the sums to `end`.
template <class Tier, int tokens, class End>
__device__ void multiply(const DeviceGemm& g, const Tile& tile, std::byte* stages, Shared<Tier>& s,
                         Ring<Tier>& ring, const End& end) {
  const Source<Tier> from{g, stages, s, ring};
  const int row_tile = tile.row_tile + from.consumer();
  const bool exists = row_tile < g.layout.row_tiles();
  Desk& desk = s.desks()[from.consumer()];
  if (exists) end.fetch(desk.operands, tile.expert, row_tile);
  float acc[tokens / 2];
#pragma unroll
  for (int i = 0; i < tokens / 2; ++i) acc[i] = 0;
  if constexpr (requires { Tier::Weights::template multiply<Tier, tokens>(from, tile, acc); }) {
    Tier::Weights::template multiply<Tier, tokens>(from, tile, acc);
  } else if constexpr (!Tier::Weights::kDecoded) {
    multiply_plain<Tier, tokens>(from, acc);
  } else if constexpr (Tier::Weights::kBlockSums) {
    multiply_blocks<Tier, tokens>(from, acc);
  } else if constexpr (Tier::kWhole) {
    multiply_whole<Tier, tokens>(from, acc);
  } else {
    multiply_decoded<Tier, tokens>(from, acc);
  }
  if (!exists) return;
  store_all<tokens>(acc, tile, row_tile, desk, end);
  if (finishes<Tier>(end) && threadIdx.x % 128 == 0)
    post(desk.outbox, {tile.expert, row_tile, tile.first, tile.tokens});
}

/// The smallest of the tier's multiplications that takes the tile's tokens, from `tokens` on.
template <class Tier, int tokens, class End>
__device__ void multiply_from(const DeviceGemm& g, const Tile& tile, std::byte* stages,
                              Shared<Tier>& s, Ring<Tier>& ring, const End& end) {
  constexpr int kMore = tokens < 32 ? 2 * tokens : tokens + 32;
  constexpr int kNext = kMore < Tier::kTokens ? kMore : Tier::kTokens;
  if constexpr (kNext > tokens) {
    if (tile.tokens > tokens) return multiply_from<Tier, kNext>(g, tile, stages, s, ring, end);
  }
  multiply<Tier, tokens>(g, tile, stages, s, ring, end);
}

/// The multiplying warpgroups.
template <class Tier, class End>
__device__ void consume(const DeviceGemm& g, std::byte* stages, Shared<Tier>& s, const End& end) {
  constexpr int kLeast = Tier::kTokens <= 64 ? 8 : 32;
  Ring<Tier> ring;
  for (;;) {
    barrier_wait(&s.full[ring.stage], ring.phase);
    const Tile tile = s.tiles[ring.stage];
    if (tile.expert < 0) break;
    multiply_from<Tier, kLeast>(g, tile, stages, s, ring, end);
  }
  if (finishes<Tier>(end) && threadIdx.x % 128 == 0)
    post(s.desks()[threadIdx.x / 128].outbox, {.expert = -1});
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
    for (int i = 0; i < Tier::kRowTiles; ++i) {
      Outbox& box = s.desks()[i].outbox;
      barrier_init(&box.posted, 1);
      barrier_init(&box.taken, 1);
      box.count = 0;
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= 128 * Tier::kRowTiles) {
    if constexpr (Tier::kLends) registers_down<40>();
    if (threadIdx.x >= 128 * Tier::kRowTiles + 32) {
      if constexpr (Tier::kFinishes && requires { end.finish(Tile{}); })
        if (end.has_more()) finish_all<Tier>(s, end);
      return;
    }
    if (!g.sorted_early) wait_for_previous_launch();
    count_tiles(g, int(g.layout.row_tiles() + Tier::kRowTiles - 1) / Tier::kRowTiles, s);
    Fetcher<Tier>(g, stages, s).run();
  } else {
    wait_for_previous_launch();
    allow_next_launch();
    if constexpr (Tier::kLends) registers_up<232>();
    consume<Tier>(g, stages, s, end);
  }
}

}  // namespace switchyard::ops::sm90
