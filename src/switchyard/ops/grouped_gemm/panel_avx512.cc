// SPDX-License-Identifier: Apache-2.0
// The panel GEMM on AVX-512 with BF16, VBMI and VNNI: one loop, one decoder per element, one loader
// per scale.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/ops/grouped_gemm/panel_ahead_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_decode_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_fixed.h"

namespace switchyard::ops {
namespace {

// ---- inputs ----

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

/// P panels times M rows, all of K. Every (row, column) sees the same operations at any P and M.
/// Columns go outermost and panels innermost, so that the sums stay in registers.
template <class Codec, class Scale, class X, int P, int M>
void tile(const PanelGemmArgs& a, std::int64_t panel, const Rows<X>& rows) {
  const PanelLayout& l = a.w->layout;
  const std::int64_t quads = l.padded_cols() / kQuadCols, cut = l.cut() / kQuadCols;
  const std::int64_t panel_bytes = std::int64_t(l.panel_code_bytes());
  const std::byte* codes = a.w->codes + panel * panel_bytes;
  const std::byte* scales[P];
  for (int p = 0; p < P; ++p)
    scales[p] = a.w->scales + (panel + p) * std::int64_t(l.panel_scale_bytes());
  Ahead<P, Codec::kQuadBytes> ahead(a, panel);
  __m512 total[P][M];
  for (int p = 0; p < P; ++p)
    for (int m = 0; m < M; ++m) total[p][m] = _mm512_setzero_ps();

  for (std::int64_t b = 0, q = 0; q < quads; ++b) {
    __m512 part[P][M];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) part[p][m] = _mm512_setzero_ps();
    for (const std::int64_t end = std::min(q + cut, quads); q < end; ++q) {
      __m512i w[P][4];
      ahead.ask();
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        Codec::decode(codes + p * panel_bytes + q * Codec::kQuadBytes, w[p]);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p)
            part[p][m] =
                X::template madd<Codec>(part[p][m], w[p][j], rows.x[m] + q * kQuadCols + 2 * j);
    }
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      if constexpr (!Scale::kScaled) {
        for (int m = 0; m < M; ++m) total[p][m] = part[p][m];  // one cut only
      } else {
        const __m512 scale = Scale::load(scales[p], b);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          __m512 s = scale;
          if (a.x.block_scales != nullptr)
            s = _mm512_mul_ps(s, _mm512_set1_ps(rows.block_scales[m][b * l.cut() / 128]));
          total[p][m] = _mm512_fmadd_ps(part[p][m], s, total[p][m]);
        }
      }
    }
  }

  for (int p = 0; p < P; ++p)
    for (int m = 0; m < M; ++m) {
      __m512 y = _mm512_mul_ps(_mm512_mul_ps(total[p][m], _mm512_set1_ps(rows.row_scale[m])),
                               _mm512_set1_ps(a.w->alpha));
      if (a.w->bias != nullptr)
        y = _mm512_add_ps(y, _mm512_loadu_ps(a.w->bias + (panel + p) * kPanelRows));
      _mm512_storeu_ps(rows.y[m] + (panel + p - a.panel_begin) * kPanelRows, y);
    }
}

template <class Codec, class Scale, class X, int M>
void row_tile(const PanelGemmArgs& a, std::int64_t panel, int panels, std::int64_t first) {
  const Rows<X> rows = select_rows<X>(a, first, M);
  int p = 0;
  if constexpr (M == 1)
    for (; p + 4 <= panels; p += 4) tile<Codec, Scale, X, 4, M>(a, panel + p, rows);
  for (; p + 2 <= panels; p += 2) tile<Codec, Scale, X, 2, M>(a, panel + p, rows);
  for (; p < panels; ++p) tile<Codec, Scale, X, 1, M>(a, panel + p, rows);
}

/// The last `left` rows, M at most, in one pass over the weights.
template <class Codec, class Scale, class X, int M>
void last_rows(const PanelGemmArgs& a, std::int64_t panel, int panels, std::int64_t left) {
  if (left == M) return row_tile<Codec, Scale, X, M>(a, panel, panels, a.num_rows - left);
  if constexpr (M > 1) last_rows<Codec, Scale, X, M - 1>(a, panel, panels, left);
}

template <class Codec, class Scale, class X>
void gemm(const PanelGemmArgs& a) {
  constexpr int kPanels = 4;  // this many panels stay in the second-level cache for all rows
  constexpr int kMostRows = 8;
  for (std::int64_t panel = a.panel_begin; panel < a.panel_end; panel += kPanels) {
    const int panels = int(std::min<std::int64_t>(kPanels, a.panel_end - panel));
    std::int64_t i = 0;
    for (; i + kMostRows <= a.num_rows; i += kMostRows)
      row_tile<Codec, Scale, X, kMostRows>(a, panel, panels, i);
    last_rows<Codec, Scale, X, kMostRows - 1>(a, panel, panels, a.num_rows - i);
  }
}

// Nothing here throws: exception classes would leave weak symbols with this file's instruction set.
template <class Codec, class Scale>
void gemm(const PanelGemmArgs& a) {
  if constexpr (std::is_same_v<Codec, Fp16Codec>) {
    gemm<Codec, Scale, FloatInput>(a);  // fp16 weights take float inputs only
  } else if (a.x.floats != nullptr) {
    gemm<Codec, Scale, FloatInput>(a);
  } else {
    gemm<Codec, Scale, PairInput>(a);
  }
}

}  // namespace

void panel_gemm_avx512(const PanelGemmArgs& a) {
  using formats::Element;
  using formats::ScaleType;
  const PanelLayout& l = a.w->layout;
  if (l.element == Element::kBf16) return gemm<Bf16Codec, NoScale>(a);
  if (l.element == Element::kFp16) return gemm<Fp16Codec, NoScale>(a);
  if (l.element == Element::kE4m3) return gemm<E4m3Codec, F32Scale>(a);
  if (a.x.fixed != nullptr) return panel_gemm_fixed_avx512(a);
  if (l.scale == ScaleType::kE8m0) return gemm<E2m1Codec, E8m0Scale>(a);
  gemm<E2m1Codec, E4m3Scale>(a);
}

}  // namespace switchyard::ops
