// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/tile.h"

#include <algorithm>
#include <cstring>

#include "switchyard/ops/grouped_gemm/tile_codes.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kGroupBytes = 16, kGroupCols = kGroupBytes / 2;

}  // namespace

std::size_t TileLayout::offset(std::int64_t r, std::int64_t c) const {
  const std::int64_t tile = r / kTileRows * col_tiles() + c / kTileCols;
  const std::int64_t row = r % kTileRows, col = c % kTileCols;
  const std::int64_t group = (col / kGroupCols) ^ (row % 8);
  return std::size_t(tile * kTileBytes + row * kTileRowBytes + group * kGroupBytes +
                     col % kGroupCols * 2);
}

void pack_bf16_tiles(const formats::Matrix& m, const TileLayout& layout, RowPlace place,
                     std::span<std::byte> packed) {
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const std::byte* from = m.codes.data() + r * 2 * m.cols;
    for (std::int64_t c = 0; c < m.cols; c += kGroupCols) {
      const std::int64_t cols = std::min(kGroupCols, m.cols - c);
      std::memcpy(packed.data() + layout.offset(placed_row(r, place), c), from + 2 * c,
                  std::size_t(2 * cols));
    }
  }
}

}  // namespace switchyard::ops
