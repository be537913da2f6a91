// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/tile.h"

#include <algorithm>
#include <cstring>

#include "switchyard/ops/grouped_gemm/tile_codes.h"

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

void pack_operand_tiles(const formats::Matrix& m, const TileLayout& layout, RowPlace place,
                        std::span<std::byte> packed) {
  const std::int64_t bytes = operand_bytes(layout.code), group = kGroupBytes / bytes;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const std::byte* from = m.codes.data() + r * bytes * m.cols;
    for (std::int64_t c = 0; c < m.cols; c += group) {
      const std::int64_t cols = std::min(group, m.cols - c);
      std::memcpy(packed.data() + layout.offset(placed_row(r, place), c), from + bytes * c,
                  std::size_t(bytes * cols));
    }
  }
}

}  // namespace switchyard::ops
