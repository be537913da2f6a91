// SPDX-License-Identifier: Apache-2.0
#pragma once

// E2M1 weights with their block scales folded in, exactly, as bf16: for the twins of AVX-512 and
// above; internal linkage as in panel_decode_avx512.h.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/ops/grouped_gemm/panel_decode_avx512.h"

namespace switchyard::ops {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers)

/// The 16-byte scale codes of a panel's block.
inline __m128i load_codes(const std::byte* scales, std::int64_t block) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + block * kPanelRows));
}

/// The four pair registers of a quad: each code's entry in `table`, weighed by its block.
template <class Block>
inline void weigh_quad(const std::byte* p, __m512i table, const Block& block, __m512i (&w)[4]) {
  const __m512i codes = _mm512_loadu_si512(p);
  w[0] = block.weigh(_mm512_permutexvar_epi16(codes, table));
#pragma GCC unroll 3
  for (int j = 1; j < 4; ++j)
    w[j] = block.weigh(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4 * j), table));
}

// ---- E8M0: a row's largest scale is taken out, what a block lacks goes into the exponents ----

// As kE2m1 with +0 for both zeros: a saturating subtraction then leaves a zero what it is.
alignas(64) constexpr std::uint16_t kUnsignedZero[32] = {
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x0000, 0xbf00, 0xbf80,
    0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
    0x4080, 0x40c0, 0x0000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};

/// The largest scale code of each row of a panel, and whether all of its scales can be folded.
struct E8m0Span {
  // The pair products take a subnormal for zero: with no more than this taken from a weight, only
  // inputs below 2^-93 can meet that.
  static constexpr int kWidest = 32;
  __m128i largest{};
  bool folds = false;

  E8m0Span() = default;
  E8m0Span(const std::byte* scales, std::int64_t blocks) {
    constexpr std::int64_t kWide = 4;
    __m512i most = _mm512_setzero_si512(), least = _mm512_set1_epi8(char(0xff));
    std::int64_t b = 0;
    for (; b + kWide <= blocks; b += kWide) {
      const __m512i codes = _mm512_loadu_si512(scales + b * kPanelRows);
      most = _mm512_max_epu8(most, codes);
      least = _mm512_min_epu8(least, codes);
    }
    largest = fold_lanes(most, [](__m128i x, __m128i y) { return _mm_max_epu8(x, y); });
    __m128i smallest = fold_lanes(least, [](__m128i x, __m128i y) { return _mm_min_epu8(x, y); });
    for (; b < blocks; ++b) {
      largest = _mm_max_epu8(largest, load_codes(scales, b));
      smallest = _mm_min_epu8(smallest, load_codes(scales, b));
    }
    const __m128i span = _mm_sub_epi8(largest, smallest), limit = _mm_set1_epi8(kWidest);
    folds = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(span, limit), limit)) == 0xffff;
  }

  /// Of each row, as a float.
  __m512 scale() const {
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(largest), 23);
    return _mm512_castsi512_ps(_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)));
  }

 private:
  template <class Op>
  static __m128i fold_lanes(__m512i v, Op op) {
    return op(op(_mm512_extracti32x4_epi32(v, 0), _mm512_extracti32x4_epi32(v, 1)),
              op(_mm512_extracti32x4_epi32(v, 2), _mm512_extracti32x4_epi32(v, 3)));
  }
};

/// How many of the panels from `panel` on, `most` at most, fold like the first of them.
inline std::int64_t alike(const PanelMatrix& w, std::int64_t panel, std::int64_t most,
                          bool& folds) {
  const auto folding = [&](std::int64_t p) {
    const std::int64_t bytes = std::int64_t(w.layout.panel_scale_bytes());
    return E8m0Span(w.scales + p * bytes, w.layout.blocks()).folds;
  };
  folds = folding(panel);
  std::int64_t count = 1;
  while (count < most && folding(panel + count) == folds) ++count;
  return count;
}

/// A panel with E8M0 scales of which E8m0Span says that it folds.
struct E8m0Fold {
  struct Block {
    __m512i drop;  // what it takes from the bits of its weights
    __m512i weigh(__m512i w) const { return _mm512_subs_epu16(w, drop); }
  };
  static __m512i table() { return _mm512_load_si512(kUnsignedZero); }

  const std::byte* scales = nullptr;
  E8m0Span span;

  E8m0Fold() = default;
  E8m0Fold(const std::byte* panel_scales, std::int64_t blocks)
      : scales(panel_scales), span(panel_scales, blocks) {}
  Block block(std::int64_t b) const {
    const __m512i by = _mm512_cvtepu8_epi32(_mm_sub_epi8(span.largest, load_codes(scales, b)));
    return {_mm512_or_si512(_mm512_slli_epi32(by, 7), _mm512_slli_epi32(by, 23))};
  }
  __m512 scale() const { return span.scale(); }
};

// ---- E4M3: the product has six bits, and so is a bf16 ----

// A weight is 2^e or 1.5 * 2^e times its block's scale s. In bf16 the exponents add up, and 1.5 s
// lies less than 128 units of the last place above s: entry = kTop + 128 e, with the low seven bits
// set where the factor is 1.5; of these a block keeps the distance, and then takes kTop - bits(s).
// Zero stays zero, since the subtraction saturates; so does all of a block whose scale is zero.
struct E4m3FoldTable {
  static constexpr int kTop = 0x4400;
  static constexpr int kBias = 120 << 7;  // bits(s) = kBias + 16 code, from code 8 on
  alignas(64) std::uint16_t entry[32];
  alignas(64) std::uint16_t keep[32];        // by the lowest bits of a code from 8 on
  alignas(64) std::uint16_t small_keep[32];  // of the codes below 8: m * 2^-9
  alignas(64) std::uint16_t small_drop[32];
  alignas(64) std::uint8_t spread[64];  // a row's code into both halves of its lane

  constexpr E4m3FoldTable() : entry{}, keep{}, small_keep{}, small_drop{}, spread{} {
    constexpr int kExponent[8] = {0, -1, 0, 0, 1, 1, 2, 2};
    for (int i = 0; i < 32; ++i) {
      const int code = i % 8;
      const bool half = code >= 3 && code % 2 == 1;
      const int magnitude = kTop + 128 * kExponent[code] + (half ? 0x7f : 0);
      entry[i] = code == 0 ? 0 : std::uint16_t(magnitude | (i % 16 >= 8 ? 0x8000 : 0));
      keep[i] = std::uint16_t(0xff80 | distance(code));
      const int shift = code >= 4 ? 1 : code >= 2 ? 2 : 3;  // that makes it eight or more
      const int normal = code << shift;
      small_keep[i] = std::uint16_t(0xff80 | distance(normal % 8));
      small_drop[i] =
          std::uint16_t(code == 0 ? 0xffff : kTop - (kBias + 16 * normal - 128 * shift));
    }
    for (int i = 0; i < 64; ++i) spread[i] = std::uint8_t(i % 2 == 0 ? i / 4 : 0x80);
  }
  /// From the bits of 1 + m/8 to those of 1.5 times as much.
  static constexpr int distance(int m) { return m < 3 ? 64 + 8 * m : 96 - 4 * m; }
};
constexpr E4m3FoldTable kE4m3Fold;

/// A panel with E4M3 scales; any.
struct E4m3Fold {
  struct Block {
    __m512i keep, drop;
    __m512i weigh(__m512i w) const { return _mm512_subs_epu16(_mm512_and_si512(w, keep), drop); }
  };
  static __m512i table() { return _mm512_load_si512(kE4m3Fold.entry); }

  const std::byte* scales;

  E4m3Fold(const std::byte* panel_scales, std::int64_t) : scales(panel_scales) {}
  Block block(std::int64_t b) const {
    const __m512i codes = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_codes(scales, b)),
                                              _mm512_load_si512(kE4m3Fold.spread));
    const __mmask32 small = _mm512_cmplt_epu16_mask(codes, _mm512_set1_epi16(8));
    const __m512i top = _mm512_set1_epi16(E4m3FoldTable::kTop - E4m3FoldTable::kBias);
    const __m512i drop = _mm512_sub_epi16(top, _mm512_slli_epi16(codes, 4));
    const __m512i keep = _mm512_permutexvar_epi16(codes, _mm512_load_si512(kE4m3Fold.keep));
    return {
        _mm512_mask_permutexvar_epi16(keep, small, codes, _mm512_load_si512(kE4m3Fold.small_keep)),
        _mm512_mask_permutexvar_epi16(drop, small, codes, _mm512_load_si512(kE4m3Fold.small_drop))};
  }
  __m512 scale() const { return _mm512_set1_ps(1); }
};

/// A panel of E2M1 that is decoded step by step.
template <class Fold>
class FoldedPanel {
 public:
  FoldedPanel(const PanelMatrix& w, std::int64_t panel)
      : codes_(w.codes + panel * std::int64_t(w.layout.panel_code_bytes())),
        cut_(w.layout.cut()),
        fold_(w.scales + panel * std::int64_t(w.layout.panel_scale_bytes()), w.layout.blocks()) {}

  /// Writes the pair registers of step `step`, sixteen times 64 bytes: a B tile.
  void decode(std::int64_t step, std::byte* tile) const {
    const std::byte* codes = codes_ + step * kStepBytes;
    const __m512i table = Fold::table();
    typename Fold::Block block = fold_.block(block_of(step, 0));
#pragma GCC unroll 4
    for (int q = 0; q < kPanelStep / kQuadCols; ++q) {
      if (q == 2 && cut_ == kPanelStep / 2) block = fold_.block(block_of(step, 1));
      __m512i w[4];
      weigh_quad(codes + q * E2m1Codec::kQuadBytes, table, block, w);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) _mm512_store_si512(tile + (4 * q + j) * 64, w[j]);
    }
  }

  /// What the rows' sums are worth.
  __m512 scale() const { return fold_.scale(); }

  static constexpr std::int64_t kStepBytes = kPanelRows * kPanelStep / 2;

 private:
  std::int64_t block_of(std::int64_t step, int half) const {
    if (cut_ == kPanelStep / 2) return 2 * step + half;
    return cut_ == kPanelStep ? step : step * kPanelStep / cut_;
  }

  const std::byte* codes_;
  std::int64_t cut_;
  Fold fold_;
};

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace switchyard::ops
