// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/ops/grouped_gemm/tile_decode_sm90.h"

/// A tier of the grouped GEMM: its sizes, and what a block holds in shared memory; for .cu files
/// only.
namespace switchyard::ops::sm90 {

/// Where a warpgroup lays out its sums, some tokens at a time, to store them in whole rows: the
/// end's code is then a loop and not one copy per accumulator register.
struct alignas(16) Board {
  static constexpr int kTokens = 16;                  ///< At a time.
  static constexpr int kStride = int(kTileRows) + 4;  ///< Floats; + 4: no bank meets twice.
  float sums[kTokens * kStride];

  /// Four rows of weights of one token.
  __device__ float4 four(int token, int row) const {
    return *reinterpret_cast<const float4*>(sums + token * kStride + row);
  }
};

/// What an end reads of memory for one row tile. It is asked for before the multiplication and lies
/// here behind it: a miss of the cache would take as long as many tiles.
struct alignas(16) EndOperands {
  float factors[kTileRows];
  float bias[kTileRows];  ///< FC1's: gate's columns, then up's.
  ActivationParams params;
  float static_scale, expert_scale;
};

/// One unit of work.
struct alignas(16) Tile {
  int expert = 0;           // -1: there is no more
  int row_tile = 0;         // first of the block's row tiles
  std::int32_t first = 0;   // sorted row
  std::int32_t tokens = 0;  // valid ones
};

/// What a warpgroup hands to the warp that finishes its tiles.
struct Outbox {
  Tile tile;                    ///< The last one that was ended; row_tile is the warpgroup's own.
  std::uint64_t posted, taken;  ///< Barriers of one arrival each.
  int count;                    ///< Posted so far.
};

/// A warpgroup's own memory.
struct Desk {
  Board board;
  EndOperands operands;
  Outbox outbox;
};

/// Sizes of one tier; `blocks` share a multiprocessor, so that one multiplies while another stores.
template <class Code, int row_tiles, int tokens, int blocks = 1, bool whole = false>
struct Tier {
  /// How tiles of weights are read.
  using Weights = Code;
  static constexpr int kRowTiles = row_tiles;  ///< Of weights; one warpgroup each.
  /// Of one stage: more where few tokens leave room.
  static constexpr int kColTiles =
      tokens <= (Code::kDecoded ? 16 : 64) ? Code::kMostColTiles : Code::kColTiles;
  static constexpr int kTokens = tokens;  ///< At most, of one tile.
  static constexpr int kBlocks = blocks;  ///< Per multiprocessor.
  /// A tile of weights is decoded at a time, not half of one.
  static constexpr bool kWhole = whole;
  /// A whole warpgroup fetches where it can lend its registers to two that decode.
  static constexpr bool kLends = Code::kDecoded && row_tiles == 2 && blocks == 1;
  /// A warp finishes what FC1's warpgroups have ended; where rows are many, that is slower than a
  /// launch behind.
  static constexpr bool kFinishes = Code::kCode == TileCode::kE4m3Operand && tokens == 8;
  // It takes what the warpgroups post in rounds, and one whose row tile does not exist posts
  // nothing.
  static_assert(!kFinishes || kRowTiles == 1, "the finishing warp would wait for ever");
  /// The warp or warpgroup behind those that multiply fetches.
  static constexpr int kThreads = 128 * row_tiles + (kLends ? 128 : kFinishes ? 64 : 32);
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
  static constexpr int kTableBytes = 4 * kExperts + 640;            ///< All of Shared.
  static constexpr int kDeskBytes = row_tiles * int(sizeof(Desk));  ///< One per warpgroup.
  /// That a block may have, 1 KiB of each taken by the system.
  static constexpr int kSharedBytes = (228 / blocks - 1) * 1024;
  /// Stages that fit.
  static constexpr int kFit = (kSharedBytes - 1024 - kTableBytes - kDeskBytes) / kStageBytes;
  static constexpr int kStages = kFit < 16 ? kFit : 16;  ///< More would only lie in waiting.
  /// What a launch asks for; 1024 for alignment.
  static constexpr int kDynamicBytes = 1024 + kTableBytes + kDeskBytes + kStages * kStageBytes;

  /// The tile of weights that warpgroup `consumer` multiplies.
  __device__ static std::byte* weights(std::byte* stage, int consumer, int col_tile) {
    return stage + kWeightsAt + (consumer * kColTiles + col_tile) * Code::kBytes;
  }
};

/// One block's shared memory.
template <class Tier>
struct Shared {
  std::uint64_t full[Tier::kStages], empty[Tier::kStages];
  Tile tiles[Tier::kStages];                // whose first stage this is
  std::int32_t starts[Tier::kExperts + 1];  // first tile of each expert

  __device__ Desk* desks() {
    return reinterpret_cast<Desk*>(reinterpret_cast<std::byte*>(this) + Tier::kTableBytes);
  }
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

}  // namespace switchyard::ops::sm90
