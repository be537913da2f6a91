// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/e4m3_sums_sm90.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_sm90.h"

/// E4M3 weights and E4M3 rows that the tensor cores read from shared memory as they are; for .cu
/// files only.
namespace switchyard::ops::sm90 {

/// The sums of each 128 columns join the others in fp32, scaled. The other warpgroups of the
/// multiprocessor multiply meanwhile.
template <class Tier, int tokens>
__device__ void multiply_e4m3(const Source<Tier>& from, const Tile& tile,
                              float (&acc)[tokens / 2]) {
  WeightScales scales(from.g, tile.expert, tile.row_tile + from.consumer());
  const int walked = walked_tiles<Tier>(from.g);
  float part[tokens / 2];
#pragma unroll
  for (int i = 0; i < tokens / 2; ++i) part[i] = 0;
  for (int k = 0; k < walked; ++k, from.ring.advance()) {
    const float2 weights = scales.of(k);
    const auto* rows = reinterpret_cast<const float*>(from.stage() + Tier::kScalesAt);
    from.wait();
    issue_e4m3<tokens>(part, operand(shared_address(from.weights(0))), from.tokens(0));
    mma_wait<0>();
    join_sums<tokens, true>(part, weights, from.g.block_scales ? rows : nullptr, acc);
    __syncwarp();  // all lanes have read the rows' scales
    from.release(from.ring.stage);
  }
}

/// Tiles of 128 columns.
struct OperandTiles {
  static constexpr TileCode kCode = TileCode::kE4m3Operand;       ///< What they hold.
  static constexpr bool kDecoded = false, kBlockSums = true;      ///< As they are, per 128 columns.
  static constexpr int kBytes = int(tile_bytes(kCode));           ///< Of one tile.
  static constexpr int kColTiles = 1, kMostColTiles = kColTiles;  ///< Of a stage.

  /// Their own way of multiplying.
  template <class Tier, int tokens>
  __device__ static void multiply(const Source<Tier>& from, const Tile& tile,
                                  float (&acc)[tokens / 2]) {
    multiply_e4m3<Tier, tokens>(from, tile, acc);
  }
};

template <>
struct TilesOfCode<TileCode::kE4m3Operand> {
  using Type = OperandTiles;
};

}  // namespace switchyard::ops::sm90
