// SPDX-License-Identifier: Apache-2.0
// The panel GEMM on AVX2 with FMA and F16C. Few rows decode in registers, several panels at once;
// more rows share each step, decoded to floats. Both add the same products in the same order.
#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/ops/grouped_gemm/panel_decode_avx2.h"

namespace switchyard::ops {
namespace {

// ---- inputs: eight or 32 columns of a row as floats, in `room` when they must be converted ----

struct PairInput {
  using Value = std::uint16_t;
  static const Value* base(const PanelInput& x) { return x.pairs; }
  template <std::int64_t kCols>
  static const float* columns(const Value* x, float* room) {
    for (std::int64_t k = 0; k < kCols; k += kQuadCols) {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + k));
      const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
      _mm256_storeu_ps(room + k, _mm256_castsi256_ps(wide));
    }
    return room;
  }
};
struct FloatInput {
  using Value = float;
  static const Value* base(const PanelInput& x) { return x.floats; }
  template <std::int64_t kCols>
  static const float* columns(const Value* x, float*) {
    return x;
  }
};

std::int64_t input_row(const PanelGemmArgs& a, std::int64_t i) {
  return a.index != nullptr ? a.index[i] : i;
}

template <class X>
const typename X::Value* row_values(const PanelGemmArgs& a, std::int64_t i) {
  return X::base(a.x) + input_row(a, i) * a.x.stride;
}

// ---- the two places where a row's scales enter ----

/// total + part * scale of half `h` of cut `b`.
template <class Scale>
__m256 close_cut(const PanelGemmArgs& a, std::int64_t i, const std::byte* scales, std::int64_t b,
                 int h, __m256 part, __m256 total) {
  if constexpr (!Scale::kScaled) return part;  // one cut only
  __m256 s = Scale::load(scales, b, h);
  if (a.x.block_scales != nullptr) {
    const std::int64_t at = input_row(a, i) * a.x.scale_stride + b * a.w->layout.cut() / 128;
    s = _mm256_mul_ps(s, _mm256_set1_ps(a.x.block_scales[at]));
  }
  return _mm256_fmadd_ps(part, s, total);
}

void store_half(const PanelGemmArgs& a, std::int64_t i, std::int64_t panel, int h, __m256 total) {
  const float row_scale = a.x.row_scales != nullptr ? a.x.row_scales[input_row(a, i)] : 1.0f;
  __m256 y =
      _mm256_mul_ps(_mm256_mul_ps(total, _mm256_set1_ps(row_scale)), _mm256_set1_ps(a.w->alpha));
  if (a.w->bias != nullptr)
    y = _mm256_add_ps(y, _mm256_loadu_ps(a.w->bias + panel * kPanelRows + h * kHalfRows));
  _mm256_storeu_ps(a.y + i * a.y_stride + (panel - a.panel_begin) * kPanelRows + h * kHalfRows, y);
}

const std::byte* panel_codes(const PanelMatrix& w, std::int64_t panel) {
  return w.codes + panel * std::int64_t(w.layout.panel_code_bytes());
}
const std::byte* panel_scales(const PanelMatrix& w, std::int64_t panel) {
  return w.scales + panel * std::int64_t(w.layout.panel_scale_bytes());
}

// ---- few rows: P panels times M rows, all of K, decoded in registers ----

template <class Codec, class X, int P, int M>
void add_quad(const std::byte* const codes[P], std::int64_t q, const typename X::Value* const x[M],
              __m256 part[P][2][M]) {
  float room[M][kQuadCols];
  const float* at[M];
  for (int m = 0; m < M; ++m) at[m] = X::template columns<kQuadCols>(x[m] + q * kQuadCols, room[m]);
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
    const std::byte* here = codes[p] + q * Codec::kQuadBytes;
    for (std::int64_t line = 0; line < Codec::kQuadBytes; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(here + 1024 + line), _MM_HINT_T0);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256i w[4];
      Codec::decode(here + h * kHalfBytes, w);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m256 even = Codec::even(w[j]), odd = Codec::odd(w[j]);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          part[p][h][m] = _mm256_fmadd_ps(even, _mm256_set1_ps(at[m][2 * j]), part[p][h][m]);
          part[p][h][m] = _mm256_fmadd_ps(odd, _mm256_set1_ps(at[m][2 * j + 1]), part[p][h][m]);
        }
      }
    }
  }
}

template <class Codec, class Scale, class X, int P, int M>
void tile(const PanelGemmArgs& a, std::int64_t panel, std::int64_t first) {
  const PanelLayout& l = a.w->layout;
  const std::int64_t quads = l.padded_cols() / kQuadCols, cut = l.cut() / kQuadCols;
  const std::byte* codes[P];
  const typename X::Value* x[M];
  for (int p = 0; p < P; ++p) codes[p] = panel_codes(*a.w, panel + p);
  for (int m = 0; m < M; ++m) x[m] = row_values<X>(a, first + m);
  __m256 total[P][2][M];
  for (int i = 0; i < P * 2 * M; ++i) (&total[0][0][0])[i] = _mm256_setzero_ps();

  for (std::int64_t b = 0, q = 0; q < quads; ++b) {
    __m256 part[P][2][M];
    for (int i = 0; i < P * 2 * M; ++i) (&part[0][0][0])[i] = _mm256_setzero_ps();
    for (const std::int64_t end = std::min(q + cut, quads); q < end; ++q)
      add_quad<Codec, X, P, M>(codes, q, x, part);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h)
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m)
          total[p][h][m] = close_cut<Scale>(a, first + m, panel_scales(*a.w, panel + p), b, h,
                                            part[p][h][m], total[p][h][m]);
  }
  for (int p = 0; p < P; ++p)
    for (int h = 0; h < 2; ++h)
      for (int m = 0; m < M; ++m) store_half(a, first + m, panel + p, h, total[p][h][m]);
}

template <class Codec, class Scale, class X, int M>
void few_rows(const PanelGemmArgs& a) {
  constexpr int kPanels = 4 / M;  // eight sums at once cover the latency of one
  std::int64_t p = a.panel_begin;
  for (; p + kPanels <= a.panel_end; p += kPanels) tile<Codec, Scale, X, kPanels, M>(a, p, 0);
  for (; p < a.panel_end; ++p) tile<Codec, Scale, X, 1, M>(a, p, 0);
}

// ---- more rows: each step is decoded once for up to kGroupRows of them ----

constexpr int kGroupRows = 48;
constexpr int kTileRows = 6;  // twelve sums, two weights and an input fill the registers

struct Room {
  alignas(32) float w[kPanelStep][kPanelRows];
  alignas(32) float x[kGroupRows][kPanelStep];
  alignas(32) float part[kGroupRows][kPanelRows];
  alignas(32) float total[kGroupRows][kPanelRows];
  alignas(32) float scale[kPanelRows];  // of a cut that a step holds whole
  const float* at[kGroupRows];          // this step's columns of each row
};

/// Up to kGroupRows input rows against one panel.
struct Group {
  const PanelGemmArgs& a;
  std::int64_t panel;
  std::int64_t first;
  int rows;
  Room& room;
};

template <class Codec>
void decode_step(const std::byte* step, Room& room) {
  for (std::int64_t q = 0; q < kPanelStep / kQuadCols; ++q)
    for (int h = 0; h < 2; ++h) {
      __m256i w[4];
      Codec::decode(step + q * Codec::kQuadBytes + h * kHalfBytes, w);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        float* to = room.w[q * kQuadCols + 2 * j] + h * kHalfRows;
        _mm256_store_ps(to, Codec::even(w[j]));
        _mm256_store_ps(to + kPanelRows, Codec::odd(w[j]));
      }
    }
}

/// Adds columns [k0, k1) of the decoded step to the sums of M rows from row `m0`. With kWhole they
/// are a whole cut: its sums start and end in registers and go to the totals.
template <int M, bool kWhole>
void add_rows(Room& room, int m0, std::int64_t k0, std::int64_t k1) {
  __m256 sum[M][2];
  const float* x[M];
#pragma GCC unroll 6
  for (int m = 0; m < M; ++m) {
    x[m] = room.at[m0 + m];
    sum[m][0] = kWhole ? _mm256_setzero_ps() : _mm256_load_ps(room.part[m0 + m]);
    sum[m][1] = kWhole ? _mm256_setzero_ps() : _mm256_load_ps(room.part[m0 + m] + kHalfRows);
  }
  for (std::int64_t k = k0; k < k1; ++k) {
    const __m256 w0 = _mm256_load_ps(room.w[k]), w1 = _mm256_load_ps(room.w[k] + kHalfRows);
#pragma GCC unroll 6
    for (int m = 0; m < M; ++m) {
      const __m256 value = _mm256_set1_ps(x[m][k]);
      sum[m][0] = _mm256_fmadd_ps(w0, value, sum[m][0]);
      sum[m][1] = _mm256_fmadd_ps(w1, value, sum[m][1]);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const std::int64_t at = h * kHalfRows;
      if constexpr (kWhole) {
        const __m256 total = _mm256_load_ps(room.total[m0 + m] + at);
        sum[m][h] = _mm256_fmadd_ps(sum[m][h], _mm256_load_ps(room.scale + at), total);
      }
      _mm256_store_ps((kWhole ? room.total : room.part)[m0 + m] + at, sum[m][h]);
    }
}

template <bool kWhole>
void add_columns(const Group& g, std::int64_t k0, std::int64_t k1) {
  constexpr void (*kAdd[kTileRows])(Room&, int, std::int64_t, std::int64_t) = {
      add_rows<1, kWhole>, add_rows<2, kWhole>, add_rows<3, kWhole>,
      add_rows<4, kWhole>, add_rows<5, kWhole>, add_rows<6, kWhole>};
  int tiles = (g.rows + kTileRows - 1) / kTileRows;
  for (int m = 0; m < g.rows; --tiles) {
    const int height = (g.rows - m + tiles - 1) / tiles;  // as even as it goes
    kAdd[height - 1](g.room, m, k0, k1);
    m += height;
  }
}

template <class Scale>
void close_cuts(const Group& g, const std::byte* scales, std::int64_t b) {
  for (int m = 0; m < g.rows; ++m)
    for (int h = 0; h < 2; ++h) {
      float* part = g.room.part[m] + h * kHalfRows;
      float* total = g.room.total[m] + h * kHalfRows;
      const __m256 sum = close_cut<Scale>(g.a, g.first + m, scales, b, h, _mm256_load_ps(part),
                                          _mm256_load_ps(total));
      _mm256_store_ps(total, sum);
      _mm256_store_ps(part, _mm256_setzero_ps());
    }
}

/// The columns of one decoded step, and the cuts that end in it.
template <class Scale>
void add_step(const Group& g, const std::byte* scales, std::int64_t step) {
  const PanelLayout& l = g.a.w->layout;
  const std::int64_t cut = l.cut(), span = std::min(cut, kPanelStep);
  for (std::int64_t k = 0; k < kPanelStep; k += span) {
    const std::int64_t end = step * kPanelStep + k + span, b = (end - 1) / cut;
    if (Scale::kScaled && span == cut && g.a.x.block_scales == nullptr) {
      for (int h = 0; h < 2; ++h)
        _mm256_store_ps(g.room.scale + h * kHalfRows, Scale::load(scales, b, h));
      add_columns<true>(g, k, k + span);
    } else {
      add_columns<false>(g, k, k + span);
      if (end % cut == 0 || end == l.padded_cols()) close_cuts<Scale>(g, scales, b);
    }
  }
}

template <class Codec, class Scale, class X>
void run_group(const Group& g) {
  const PanelLayout& l = g.a.w->layout;
  const std::byte* codes = panel_codes(*g.a.w, g.panel);
  const std::byte* scales = panel_scales(*g.a.w, g.panel);
  for (int m = 0; m < g.rows; ++m)
    for (std::int64_t r = 0; r < kPanelRows; ++r) g.room.part[m][r] = g.room.total[m][r] = 0;
  for (std::int64_t s = 0; s < l.steps(); ++s) {
    decode_step<Codec>(codes + s * std::int64_t(l.step_bytes()), g.room);
    for (int m = 0; m < g.rows; ++m) {
      const typename X::Value* x = row_values<X>(g.a, g.first + m) + s * kPanelStep;
      g.room.at[m] = X::template columns<kPanelStep>(x, g.room.x[m]);
    }
    add_step<Scale>(g, scales, s);
  }
  for (int m = 0; m < g.rows; ++m)
    for (int h = 0; h < 2; ++h)
      store_half(g.a, g.first + m, g.panel, h, _mm256_load_ps(g.room.total[m] + h * kHalfRows));
}

template <class Codec, class Scale, class X>
void gemm(const PanelGemmArgs& a) {
  if (a.num_rows == 1) return few_rows<Codec, Scale, X, 1>(a);
  if (a.num_rows == 2) return few_rows<Codec, Scale, X, 2>(a);
  if constexpr (Codec::kFewRows > 2) {
    if (a.num_rows == 3) return few_rows<Codec, Scale, X, 3>(a);
    if (a.num_rows == 4) return few_rows<Codec, Scale, X, 4>(a);
  }
  Room room;
  for (std::int64_t panel = a.panel_begin; panel < a.panel_end; ++panel)
    for (std::int64_t i = 0; i < a.num_rows; i += kGroupRows) {
      const auto rows = std::min<std::int64_t>(kGroupRows, a.num_rows - i);
      run_group<Codec, Scale, X>({a, panel, i, int(rows), room});
    }
}

// Nothing here throws: exception classes would leave weak symbols with this file's instruction set.
template <class Codec, class Scale>
void gemm(const PanelGemmArgs& a) {
  if (a.x.floats != nullptr) return gemm<Codec, Scale, FloatInput>(a);
  gemm<Codec, Scale, PairInput>(a);
}

}  // namespace

void panel_gemm_avx2(const PanelGemmArgs& a) {
  using formats::Element;
  using formats::ScaleType;
  const PanelLayout& l = a.w->layout;
  if (l.element == Element::kBf16) return gemm<Bf16Codec, NoScale>(a);
  if (l.element == Element::kFp16) return gemm<Fp16Codec, NoScale>(a);
  if (l.element == Element::kE4m3) return gemm<E4m3Codec, F32Scale>(a);
  if (l.scale == ScaleType::kE8m0) return gemm<E2m1Codec, E8m0Scale>(a);
  gemm<E2m1Codec, E4m3Scale>(a);
}

}  // namespace switchyard::ops
