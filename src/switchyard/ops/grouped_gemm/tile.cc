// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/tile.h"

#include <algorithm>
#include <cstring>

#include "switchyard/base/check.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kGroupBytes = 16, kGroupCols = kGroupBytes / 2;

std::int64_t placed(std::int64_t row, RowPlace place) {
  return place == RowPlace::kPlain ? row : paired_row(row, place == RowPlace::kUp);
}

}  // namespace

std::size_t TileLayout::offset(std::int64_t r, std::int64_t c) const {
  const std::int64_t tile = r / kTileRows * col_tiles() + c / kTileCols;
  const std::int64_t row = r % kTileRows, col = c % kTileCols;
  const std::int64_t group = (col / kGroupCols) ^ (row % 8);
  return std::size_t(tile * kTileBytes + row * kTileRowBytes + group * kGroupBytes +
                     col % kGroupCols * 2);
}

void pack_tiles(const formats::Matrix& m, const TileLayout& layout, RowPlace place,
                std::span<std::byte> packed) {
  require(m.layout.element == formats::Element::kBf16, "cuda: weights are stored as ",
          to_string(m.layout.element),
          ", the sm_90 kernels of this version read bf16; convert them, or use the cpu leaf");
  ensure(packed.size() == layout.bytes() && m.cols == layout.cols &&
             (m.rows == 0 || placed(m.rows - 1, place) < layout.row_tiles() * kTileRows),
         "pack_tiles: a matrix of [", m.rows, ", ", m.cols, "] for a layout of [", layout.rows,
         ", ", layout.cols, "] in ", packed.size(), " bytes");
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const std::byte* from = m.codes.data() + r * 2 * m.cols;
    for (std::int64_t c = 0; c < m.cols; c += kGroupCols) {
      const std::int64_t cols = std::min(kGroupCols, m.cols - c);
      std::memcpy(packed.data() + layout.offset(placed(r, place), c), from + 2 * c,
                  std::size_t(2 * cols));
    }
  }
}

}  // namespace switchyard::ops
