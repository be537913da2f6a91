// SPDX-License-Identifier: Apache-2.0
// The panel GEMM on AVX-512 with BF16 and VBMI: one loop, one decoder per element, one loader per
// scale.
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kQuadCols = 8;  // four column pairs: the unit that every decoder yields

// ---- decoders: the 4 pair registers of a quad, lane r holding (w[r, k], w[r, k + 1]) ----

struct Raw16 {
  static constexpr std::int64_t kQuadBytes = 256;
  static void decode(const std::byte* p, __m512i w[4]) {
    for (int j = 0; j < 4; ++j) w[j] = _mm512_loadu_si512(p + 64 * j);
  }
};

struct Bf16Codec : Raw16 {
  static __m512 even(__m512i w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
  static __m512 odd(__m512i w) {
    return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(int(0xffff0000u))));
  }
};

struct Fp16Codec : Raw16 {
  static __m512 even(__m512i w) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(w)); }
  static __m512 odd(__m512i w) { return even(_mm512_srli_epi32(w, 16)); }
};

// bf16 of every E4M3 magnitude, as separate low and high bytes for the byte permutes.
struct E4m3Table {
  alignas(64) std::uint8_t low[128];
  alignas(64) std::uint8_t high[128];
  constexpr E4m3Table() : low{}, high{} {
    for (int code = 0; code < 128; ++code) {
      int exponent = code >> 3, mantissa = code & 7;
      unsigned bits = 0;
      if (code == 127) {
        bits = 0x7fc0;  // NaN
      } else if (exponent > 0) {
        bits = unsigned((exponent + 120) << 7 | mantissa << 4);
      } else if (mantissa > 0) {  // m * 2^-9, normal in bf16
        int shift = mantissa >= 4 ? 0 : mantissa >= 2 ? 1 : 2;
        bits = unsigned((120 - shift) << 7 | ((mantissa << (shift + 1) & 7) << 4));
      }
      low[code] = std::uint8_t(bits);
      high[code] = std::uint8_t(bits >> 8);
    }
  }
};
constexpr E4m3Table kE4m3;

struct E4m3Codec : Bf16Codec {
  static constexpr std::int64_t kQuadBytes = 128;
  static void decode(const std::byte* p, __m512i w[4]) {
    const __m512i low0 = _mm512_load_si512(kE4m3.low), low1 = _mm512_load_si512(kE4m3.low + 64);
    const __m512i high0 = _mm512_load_si512(kE4m3.high), high1 = _mm512_load_si512(kE4m3.high + 64);
    const __m512i sign = _mm512_set1_epi8(char(0x80));
    for (int j = 0; j < 2; ++j) {
      __m512i codes = _mm512_loadu_si512(p + 64 * j);
      __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);  // bit 7 of an index is ignored
      __m512i high = _mm512_permutex2var_epi8(high0, codes, high1);
      high = _mm512_ternarylogic_epi32(high, codes, sign, 0xf8);  // high | (codes & sign)
      w[2 * j] = _mm512_unpacklo_epi8(low, high);
      w[2 * j + 1] = _mm512_unpackhi_epi8(low, high);
    }
  }
};

// bf16 of the 16 E2M1 codes, twice: the permute reads 5 index bits, of which ours uses 4.
alignas(64) constexpr std::uint16_t kE2m1[32] = {
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
    0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
    0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

struct E2m1Codec : Bf16Codec {
  static constexpr std::int64_t kQuadBytes = 64;
  static void decode(const std::byte* p, __m512i w[4]) {
    const __m512i table = _mm512_load_si512(kE2m1);
    __m512i codes = _mm512_loadu_si512(p);
    w[0] = _mm512_permutexvar_epi16(codes, table);
    w[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), table);
    w[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), table);
    w[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), table);
  }
};

// ---- scales: 16 rows of one block as floats ----

struct NoScale {
  static constexpr bool kScaled = false;
  static __m512 load(const std::byte*, std::int64_t) { return _mm512_set1_ps(1); }
};
struct F32Scale {
  static constexpr bool kScaled = true;
  static __m512 load(const std::byte* p, std::int64_t b) {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(p) + b * kPanelRows);
  }
};
struct E8m0Scale {
  static constexpr bool kScaled = true;
  static __m512 load(const std::byte* p, std::int64_t b) {
    __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + b * kPanelRows));
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(codes), 23);
    return _mm512_castsi512_ps(_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)));  // 0: 2^-127
  }
};
struct E4m3Scale {
  static constexpr bool kScaled = true;
  static __m512 load(const std::byte* p, std::int64_t b) {
    __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + b * kPanelRows));
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(codes), 20);  // never negative: checked
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
  }
};

// ---- inputs ----

struct PairInput {
  using Value = std::uint16_t;
  static const Value* base(const PanelInput& x) { return x.pairs; }
  template <class Codec>
  static __m512 madd(__m512 sum, const __m512i w[4], const Value* x) {
    for (int j = 0; j < 4; ++j) {
      int pair;
      std::memcpy(&pair, x + 2 * j, 4);
      sum = _mm512_dpbf16_ps(sum, __m512bh(w[j]), __m512bh(_mm512_set1_epi32(pair)));
    }
    return sum;
  }
};
struct FloatInput {
  using Value = float;
  static const Value* base(const PanelInput& x) { return x.floats; }
  template <class Codec>
  static __m512 madd(__m512 sum, const __m512i w[4], const Value* x) {
    for (int j = 0; j < 4; ++j) {
      sum = _mm512_fmadd_ps(Codec::even(w[j]), _mm512_set1_ps(x[2 * j]), sum);
      sum = _mm512_fmadd_ps(Codec::odd(w[j]), _mm512_set1_ps(x[2 * j + 1]), sum);
    }
    return sum;
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
template <class Codec, class Scale, class X, int P, int M>
void tile(const PanelGemmArgs& a, std::int64_t panel, const Rows<X>& rows) {
  const PanelLayout& l = a.w->layout;
  const std::int64_t quads = l.padded_cols() / kQuadCols, cut = l.cut() / kQuadCols;
  const std::byte* codes[P];
  const std::byte* scales[P];
  for (int p = 0; p < P; ++p) {
    codes[p] = a.w->codes + (panel + p) * std::int64_t(l.panel_code_bytes());
    scales[p] = a.w->scales + (panel + p) * std::int64_t(l.panel_scale_bytes());
  }
  __m512 total[P][M];
  for (int p = 0; p < P; ++p)
    for (int m = 0; m < M; ++m) total[p][m] = _mm512_setzero_ps();

  for (std::int64_t b = 0, q = 0; q < quads; ++b) {
    __m512 part[P][M];
    for (int p = 0; p < P; ++p)
      for (int m = 0; m < M; ++m) part[p][m] = _mm512_setzero_ps();
    for (const std::int64_t end = std::min(q + cut, quads); q < end; ++q) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        __m512i w[4];
        const std::byte* here = codes[p] + q * Codec::kQuadBytes;
        if constexpr (M <= 2) {  // few rows: memory is the limit, so run ahead of the prefetcher
          for (std::int64_t line = 0; line < Codec::kQuadBytes; line += 64)
            _mm_prefetch(reinterpret_cast<const char*>(here + 1024 + line), _MM_HINT_T0);
        }
        Codec::decode(here, w);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m)
          part[p][m] = X::template madd<Codec>(part[p][m], w, rows.x[m] + q * kQuadCols);
      }
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
  constexpr int kPanels = M <= 2 ? 4 : M <= 4 ? 2 : Scale::kScaled ? 1 : 2;
  int p = 0;
  for (; p + kPanels <= panels; p += kPanels) tile<Codec, Scale, X, kPanels, M>(a, panel + p, rows);
  for (; p < panels; ++p) tile<Codec, Scale, X, 1, M>(a, panel + p, rows);
}

template <class Codec, class Scale, class X>
void gemm(const PanelGemmArgs& a) {
  constexpr int kPanels = 4;  // this many panels stay in the second-level cache for all rows
  for (std::int64_t panel = a.panel_begin; panel < a.panel_end; panel += kPanels) {
    const int panels = int(std::min<std::int64_t>(kPanels, a.panel_end - panel));
    std::int64_t i = 0;
    for (; i + 8 <= a.num_rows; i += 8) row_tile<Codec, Scale, X, 8>(a, panel, panels, i);
    for (; i + 4 <= a.num_rows; i += 4) row_tile<Codec, Scale, X, 4>(a, panel, panels, i);
    for (; i + 2 <= a.num_rows; i += 2) row_tile<Codec, Scale, X, 2>(a, panel, panels, i);
    for (; i < a.num_rows; ++i) row_tile<Codec, Scale, X, 1>(a, panel, panels, i);
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
  if (l.scale == ScaleType::kE8m0) return gemm<E2m1Codec, E8m0Scale>(a);
  gemm<E2m1Codec, E4m3Scale>(a);
}

}  // namespace switchyard::ops
