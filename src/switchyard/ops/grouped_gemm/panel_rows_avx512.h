// SPDX-License-Identifier: Apache-2.0
#pragma once

// Input rows of the AVX-512 twins and how they are cut into tiles; internal linkage as in
// panel_decode_avx512.h.

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/ops/grouped_gemm/panel_ahead_avx512.h"

namespace switchyard::ops {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers)

// Each adds one column pair: weights `w`, lane by row, times the values at `x`.
struct PairInput {
  using Value = std::uint16_t;
  static const Value* base(const PanelInput& x) { return x.pairs; }
  template <class Codec>
  static __m512 madd(__m512 sum, __m512i w, const Value* x) {
    int pair;
    std::memcpy(&pair, x, 4);
    return _mm512_dpbf16_ps(sum, __m512bh(w), __m512bh(_mm512_set1_epi32(pair)));
  }
};
struct FloatInput {
  using Value = float;
  static const Value* base(const PanelInput& x) { return x.floats; }
  template <class Codec>
  static __m512 madd(__m512 sum, __m512i w, const Value* x) {
    sum = _mm512_fmadd_ps(Codec::even(w), _mm512_set1_ps(x[0]), sum);
    return _mm512_fmadd_ps(Codec::odd(w), _mm512_set1_ps(x[1]), sum);
  }
};

template <class X>
struct Rows {
  const typename X::Value* x[8];
  const float* block_scales[8];
  float row_scale[8];
  float* y[8];
  Turn turn;
};

template <class X>
Rows<X> select_rows(const PanelGemmArgs& a, std::int64_t first, int count) {
  Rows<X> rows{};
  for (int m = 0; m < count; ++m) {
    std::int64_t i = a.index != nullptr ? a.index[first + m] : first + m;
    rows.x[m] = X::base(a.x) + i * a.x.stride;
    rows.block_scales[m] =
        a.x.block_scales != nullptr ? a.x.block_scales + i * a.x.scale_stride : nullptr;
    rows.row_scale[m] = a.x.row_scales != nullptr ? a.x.row_scales[i] : 1.0f;
    rows.y[m] = a.y + (first + m) * a.y_stride;
  }
  return rows;
}

/// Writes the outputs of one panel and row from its sums.
inline void store_outputs(const PanelGemmArgs& a, std::int64_t panel, __m512 sum, float row_scale,
                          float* y) {
  sum = _mm512_mul_ps(_mm512_mul_ps(sum, _mm512_set1_ps(row_scale)), _mm512_set1_ps(a.w->alpha));
  if (a.w->bias != nullptr)
    sum = _mm512_add_ps(sum, _mm512_loadu_ps(a.w->bias + panel * kPanelRows));
  _mm512_storeu_ps(y + (panel - a.panel_begin) * kPanelRows, sum);
}

/// Of the rows of a call, those of one tile.
struct Cut {
  std::int64_t first, count;
  std::int64_t tile = 0, tiles = 1;
};

/// The M rows of `cut` times `panels` panels from `panel` on. A Tile multiplies P panels with M
/// rows, all of K, the same operations for every (row, column) at any P and M.
template <int M, class Tile>
void row_tile(const Tile& tile, const PanelGemmArgs& a, std::int64_t panel, int panels, Cut cut) {
  auto rows = select_rows<typename Tile::Input>(a, cut.first, M);
  rows.turn = {cut.tile, cut.tiles, panel, panels};
  int p = 0;
  if constexpr (M == 1)
    for (; p + 4 <= panels; p += 4) tile.template run<4, M>(a, panel + p, rows);
  for (; p + 2 <= panels; p += 2) tile.template run<2, M>(a, panel + p, rows);
  for (; p < panels; ++p) tile.template run<1, M>(a, panel + p, rows);
}

/// As row_tile(), for `rows.count` rows, M at most.
template <int M, class Tile>
void counted_tile(const Tile& tile, const PanelGemmArgs& a, std::int64_t panel, int panels,
                  Cut rows) {
  if (rows.count == M) return row_tile<M>(tile, a, panel, panels, rows);
  if constexpr (M > 1) counted_tile<M - 1>(tile, a, panel, panels, rows);
}

/// Calls `use` with every tile of nearly equal height, `most` at most: one of a single row or two
/// would wait for its own sums.
template <class Use>
void cut_rows(std::int64_t rows, int most, Use&& use) {
  const std::int64_t tiles = (rows + most - 1) / most;
  for (std::int64_t t = 0, first = 0; t < tiles; ++t) {
    const std::int64_t count = (rows - first + tiles - t - 1) / (tiles - t);
    use(Cut{first, count, t, tiles});
    first += count;
  }
}

/// All rows times `panels` panels.
template <class Tile>
void all_rows(const Tile& tile, const PanelGemmArgs& a, std::int64_t panel, int panels) {
  cut_rows(a.num_rows, Tile::kMostRows,
           [&](Cut rows) { counted_tile<Tile::kMostRows>(tile, a, panel, panels, rows); });
}

// So many panels stay in the second-level cache for all rows.
constexpr int kNearPanels = 4;

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace switchyard::ops
