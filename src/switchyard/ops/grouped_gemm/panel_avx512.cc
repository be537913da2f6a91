// SPDX-License-Identifier: Apache-2.0
// The panel GEMM on AVX-512 with BF16, VBMI and VNNI: one loop, one decoder per element, one loader
// per scale.
#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/ops/grouped_gemm/panel_ahead_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_decode_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_fixed.h"
#include "switchyard/ops/grouped_gemm/panel_folded.h"
#include "switchyard/ops/grouped_gemm/panel_rows_avx512.h"

namespace switchyard::ops {
namespace {

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
  Ahead<P, Codec::kQuadBytes> ahead(a, panel, rows.turn);
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
    for (int m = 0; m < M; ++m)
      store_outputs(a, panel + p, total[p][m], rows.row_scale[m], rows.y[m]);
}

template <class Codec, class Scale, class X>
struct ScaledTile {
  using Input = X;
  // Whose sums fit the registers; those of short blocks need their totals there too.
  static constexpr int kMostRows = Codec::kQuadBytes == E2m1Codec::kQuadBytes ? 6 : 8;
  template <int P, int M>
  void run(const PanelGemmArgs& a, std::int64_t panel, const Rows<X>& rows) const {
    tile<Codec, Scale, X, P, M>(a, panel, rows);
  }
};

template <class Codec, class Scale, class X>
void gemm(const PanelGemmArgs& a) {
  for (std::int64_t panel = a.panel_begin; panel < a.panel_end; panel += kNearPanels)
    all_rows(ScaledTile<Codec, Scale, X>{}, a, panel,
             int(std::min<std::int64_t>(kNearPanels, a.panel_end - panel)));
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

void panel_gemm_blocks_avx512(const PanelGemmArgs& a) { gemm<E2m1Codec, E8m0Scale>(a); }

void panel_gemm_avx512(const PanelGemmArgs& a) {
  using formats::Element;
  using formats::ScaleType;
  const PanelLayout& l = a.w->layout;
  if (l.element == Element::kBf16) return gemm<Bf16Codec, NoScale>(a);
  if (l.element == Element::kFp16) return gemm<Fp16Codec, NoScale>(a);
  if (l.element == Element::kE4m3) return gemm<E4m3Codec, F32Scale>(a);
  if (a.x.fixed != nullptr) return panel_gemm_fixed_avx512(a);
  if (l.scale != ScaleType::kE8m0) return gemm<E2m1Codec, E4m3Scale>(a);
  if (a.x.floats == nullptr && a.x.block_scales == nullptr && l.block > 0)
    return panel_gemm_folded_avx512(a);
  panel_gemm_blocks_avx512(a);
}

}  // namespace switchyard::ops
