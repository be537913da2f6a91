// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/tile.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kGroupBytes = 16;

/// Bytes of one element as tensor cores read it.
std::int64_t operand_bytes(TileCode code) { return kTileRowBytes / tile_cols(code); }

}  // namespace

std::size_t TileLayout::offset(std::int64_t r, std::int64_t c) const {
  const std::int64_t wide = tile_cols(code), bytes = operand_bytes(code);
  const std::int64_t tile = r / kTileRows * col_tiles() + c / wide;
  const std::int64_t row = r % kTileRows, at = c % wide * bytes;
  const std::int64_t group = (at / kGroupBytes) ^ (row % 8);
  return std::size_t(tile * kTileBytes + row * kTileRowBytes + group * kGroupBytes +
                     at % kGroupBytes);
}

}  // namespace switchyard::ops
