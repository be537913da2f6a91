// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/pack_tiles.h"

#include <algorithm>
#include <array>

#include "switchyard/base/check.h"

namespace switchyard::ops {
namespace {

using formats::Element;
using formats::Matrix;

Element element_of(TileCode code) {
  switch (code) {
    case TileCode::kBf16:
      return Element::kBf16;
    case TileCode::kE4m3:
    case TileCode::kE4m3Block:
    case TileCode::kE4m3Operand:
      return Element::kE4m3;
    default:
      return Element::kE2m1;
  }
}

/// `m` alone, in its places.
TileSources sources_of(const Matrix& m, TileCode code, RowPlace place) {
  TileSources s{.gate = {}, .up = {}, .paired = place != RowPlace::kPlain, .code = code};
  (place == RowPlace::kUp ? s.up : s.gate) = stored_rows(m);
  return s;
}

void add(std::byte* at, const void* words, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(words);
  for (std::size_t i = 0; i < bytes; ++i) at[i] |= from[i];
}

using Marks = std::array<std::uint32_t, std::size_t(kTileRows)>;

Marks marks_of(const TileSources& s, std::int64_t row_tile) {
  Marks marks;
  for (std::int64_t r = 0; r < kTileRows; ++r)
    marks[std::size_t(r)] = row_mark(source_row(s, row_tile * kTileRows + r), s.code, 0, 1);
  return marks;
}

}  // namespace

StoredRows stored_rows(const Matrix& m) {
  const formats::WeightLayout& l = m.layout;
  return {.codes = m.codes.data(),
          .scales = m.scales.data(),
          .rows = m.rows,
          .first = 0,
          .row_bytes = l.row_bytes(m.cols),
          .scale_cols = l.scale_cols(m.cols),
          .block_rows = l.block_rows > 0 ? l.block_rows : std::max<std::int64_t>(m.rows, 1),
          .block_cols = l.block_cols > 0 ? l.block_cols : std::max<std::int64_t>(m.cols, 1),
          .scale = l.scale,
          .global_scale = m.global_scale};
}

void check_codes(const Matrix& m, TileCode code) {
  const Element element = element_of(code);
  require(m.layout.element == element, "cuda: weights are stored as ", to_string(m.layout.element),
          ", this layer was laid out for ", to_string(element),
          "; convert them, or use the cpu leaf");
}

void pack_tiles(const Matrix& m, const TileLayout& l, RowPlace place, std::span<std::byte> packed) {
  check_codes(m, l.code);
  ensure(packed.size() == l.bytes() && m.cols == l.cols &&
             (m.rows == 0 || placed_row(m.rows - 1, place) < l.row_tiles() * kTileRows),
         "pack_tiles: a matrix of [", m.rows, ", ", m.cols, "] for a layout of [", l.rows, ", ",
         l.cols, "] in ", packed.size(), " bytes");
  const TileSources s = sources_of(m, l.code, place);
  std::byte* tile = packed.data();
  std::byte* scales = packed.data() + l.scales_at();
  for (std::int64_t row = 0; row < l.row_tiles(); ++row) {
    const Marks marks = marks_of(s, row);
    for (std::int64_t col = 0; col < l.col_tiles(); ++col, tile += tile_bytes(l.code)) {
      for (std::int64_t u = 0; u < tile_units(l.code); ++u) {
        const TileUnit unit = tile_unit(s, {row, col, u}, marks.data());
        add(tile + u * kUnitBytes, &unit, sizeof unit);
      }
      for (int which = 0; which < 2 && l.code == TileCode::kE4m3Operand; ++which, scales += 4) {
        const float scale = operand_scale(s, {row, col}, which);
        add(scales, &scale, sizeof scale);
      }
    }
  }
}

void pack_factors(const Matrix& m, const TileLayout& l, RowPlace place, std::span<float> factors) {
  ensure(factors.size_bytes() == l.factor_bytes(), "pack_factors: ", factors.size(),
         " factors for ", l.row_tiles(), " tiles of rows");
  const StoredRows rows = stored_rows(m);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const SourceRow row{rows, r};
    factors[std::size_t(placed_row(r, place))] =
        row_factor(row, l.code, row_mark(row, l.code, 0, 1));
  }
}

}  // namespace switchyard::ops
