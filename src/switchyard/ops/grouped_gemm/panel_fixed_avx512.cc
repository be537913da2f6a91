// SPDX-License-Identifier: Apache-2.0
// E2M1 panels times integer rows: byte dot products, exact within a block, whose sum is then scaled
// in fp32.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

#include "switchyard/ops/grouped_gemm/panel_decode_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_fixed.h"

namespace switchyard::ops {
namespace {

// ---- rows ----

/// 16 columns as fp32, in the order of the digits.
__m512 load_columns(const std::uint16_t* pairs) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
  const __m512i order = _mm512_set_epi32(15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);
  return _mm512_castsi512_ps(
      _mm512_permutexvar_epi32(order, _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
}

std::uint32_t largest_bits(__m512 v) {
  return _mm512_reduce_max_epu32(
      _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
}

float power_of_two(int exponent) { return std::bit_cast<float>((exponent + 127) << 23); }

/// Writes the digits of 16 columns, `plane` bytes apart, and adds their integers to `sum`. Returns
/// the quads, one bit each, that hold something else; their digits are zero.
unsigned store_digits(__m512 v, float to_integer, int digits, std::int64_t plane, std::byte* out,
                      std::int32_t& sum) {
  const __m512 scaled = _mm512_mul_ps(v, _mm512_set1_ps(to_integer));
  __m512i i = _mm512_cvtps_epi32(scaled);
  const unsigned odd = _mm512_cmp_ps_mask(_mm512_cvtepi32_ps(i), scaled, _CMP_NEQ_UQ);
  const unsigned quads = unsigned((odd & 0xff) != 0) | unsigned((odd >> 8) != 0) << 1;
  if (quads != 0) [[unlikely]] {
    const unsigned kept = (quads & 1 ? 0u : 0xffu) | (quads & 2 ? 0u : 0xff00u);
    i = _mm512_maskz_mov_epi32(__mmask16(kept), i);
  }
  sum += _mm512_reduce_add_epi32(i);
  for (int d = 0; d < digits; ++d) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + d * plane), _mm512_cvtepi32_epi8(i));
    i = _mm512_srai_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(128)), 8);
  }
  return quads;
}

/// Writes one block's record; returns its listed quads, one bit each.
unsigned fix_block(const FixedForm& f, const std::uint16_t* pairs, std::byte* record) {
  constexpr int kSmallest = -100, kInfinite = 128;
  std::uint32_t bits = 0;
  for (int c = 0; c < f.cols; c += 16) bits = std::max(bits, largest_bits(load_columns(pairs + c)));
  const int exponent = int(bits >> 23) - 127, top = 8 * f.digits - 3;
  FixedHeader header{};
  unsigned quads = 0;
  if (bits == 0 || exponent < kSmallest || exponent == kInfinite) {
    std::memset(record + sizeof(header), 0, std::size_t(f.cols) * std::size_t(f.digits));
    if (bits != 0) quads = (1u << f.cols / 8) - 1;
  } else {
    std::int32_t sum = 0;
    for (int c = 0; c < f.cols; c += 16)
      quads |= store_digits(load_columns(pairs + c), power_of_two(top - exponent), f.digits, f.cols,
                            record + sizeof(header) + c, sum)
               << c / 8;
    header = {.offset = -12 * sum, .unit = power_of_two(exponent - top - 1)};
  }
  std::memcpy(record, &header, sizeof(header));
  return quads;
}

// ---- weights ----

// 2w + 12 of the 16 codes, four times: the permute reads 6 index bits, of which ours uses 4.
struct DoubledE2m1 {
  alignas(64) std::uint8_t byte[64];
  constexpr DoubledE2m1() : byte{} {
    constexpr int kDoubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    for (int i = 0; i < 64; ++i) byte[i] = std::uint8_t(12 + (i & 8 ? -1 : 1) * kDoubled[i & 7]);
  }
};
constexpr DoubledE2m1 kDoubledE2m1;

template <int Cols>
void decode_block(const std::byte* codes, __m512i (&w)[Cols / 4]) {
  const __m512i table = _mm512_load_si512(kDoubledE2m1.byte);
#pragma GCC unroll 4
  for (int q = 0; q < Cols / 8; ++q) {
    const __m512i c = _mm512_loadu_si512(codes + 64 * q);
    w[2 * q] = _mm512_permutexvar_epi8(c, table);
    w[2 * q + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(c, 4), table);
  }
}

// ---- what ends the sums ----

/// The sums of quad `q`: bf16 pairs, as in the twin that has no digits.
__m512 pair_quad(const std::byte* codes, const std::uint16_t* x, std::int64_t q) {
  __m512i w[4];
  E2m1Codec::decode(codes + q * E2m1Codec::kQuadBytes, w);
  __m512 sum = _mm512_setzero_ps();
  for (int j = 0; j < 4; ++j) {
    int pair;
    std::memcpy(&pair, x + q * kQuadCols + 2 * j, 4);
    sum = _mm512_dpbf16_ps(sum, __m512bh(w[j]), __m512bh(_mm512_set1_epi32(pair)));
  }
  return sum;
}

std::span<const std::int32_t> listed_quads(const std::byte* list) {
  const auto* words = reinterpret_cast<const std::int32_t*>(list);
  return {words + 1, std::size_t(words[0])};
}

/// What of a row its sums do not hold yet.
struct RestOfRow {
  std::span<const std::int32_t> quads;  // those that were left out
  const std::uint16_t* pairs;
  float row_scale;
};

/// The outputs of a panel from the `total` of all blocks: listed quads in order, scales, bias.
template <class Scale>
__m512 finish_sum(const PanelMatrix& w, std::int64_t panel, const RestOfRow& row, __m512 total) {
  const PanelLayout& l = w.layout;
  const std::byte* codes = w.codes + panel * std::int64_t(l.panel_code_bytes());
  const std::byte* scales = w.scales + panel * std::int64_t(l.panel_scale_bytes());
  for (const std::int32_t q : row.quads)
    total = _mm512_fmadd_ps(pair_quad(codes, row.pairs, q),
                            Scale::load(scales, q * kQuadCols / l.cut()), total);
  __m512 y =
      _mm512_mul_ps(_mm512_mul_ps(total, _mm512_set1_ps(row.row_scale)), _mm512_set1_ps(w.alpha));
  if (w.bias != nullptr) y = _mm512_add_ps(y, _mm512_loadu_ps(w.bias + panel * kPanelRows));
  return y;
}

// ---- one panel times up to kMaxRows rows ----

constexpr int kMaxRows = 16;

struct FixedRows {
  int count;
  const std::byte* fixed[kMaxRows];
  const std::uint16_t* pairs[kMaxRows];
  float row_scale[kMaxRows];
  float* y[kMaxRows];
};

FixedRows select_rows(const PanelGemmArgs& a, std::int64_t first) {
  FixedRows rows;
  rows.count = int(std::min<std::int64_t>(kMaxRows, a.num_rows - first));
  for (int m = 0; m < rows.count; ++m) {
    const std::int64_t i = a.index != nullptr ? a.index[first + m] : first + m;
    rows.fixed[m] = a.x.fixed + i * a.x.fixed_stride;
    rows.pairs[m] = a.x.pairs + i * a.x.stride;
    rows.row_scale[m] = a.x.row_scales != nullptr ? a.x.row_scales[i] : 1.0f;
    rows.y[m] = a.y + (first + m) * a.y_stride;
  }
  return rows;
}

/// Four digits, or a header's field, in all lanes: straight from memory, without a register
/// between.
inline __m512i broadcast_4(const std::byte* p) {
  return _mm512_castps_si512(_mm512_broadcastss_ps(_mm_load_ss(reinterpret_cast<const float*>(p))));
}

// Inlined by force: out of line, the weights' registers would be passed through memory.
template <int P, int Cols, int Digits>
inline __attribute__((always_inline)) void dot_block(const __m512i (&w)[P][Cols / 4],
                                                     const std::byte* record, __m512 (&part)[P]) {
  constexpr int kChains = Cols / 16;  // per digit: longer ones would wait for each other's latency
  __m512i sum[P][Digits][kChains];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 3
    for (int d = 0; d < Digits; ++d) {
      sum[p][d][0] =
          d == 0 ? broadcast_4(record + offsetof(FixedHeader, offset)) : _mm512_setzero_si512();
      if constexpr (kChains > 1) sum[p][d][kChains - 1] = _mm512_setzero_si512();
    }
  const std::byte* digits = record + sizeof(FixedHeader);
#pragma GCC unroll 8
  for (int j = 0; j < Cols / 4; ++j)
#pragma GCC unroll 3
    for (int d = 0; d < Digits; ++d) {
      const __m512i four = broadcast_4(digits + d * Cols + 4 * j);
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p)
        sum[p][d][j % kChains] = _mm512_dpbusd_epi32(sum[p][d][j % kChains], w[p][j], four);
    }
  const __m512 unit = _mm512_castsi512_ps(broadcast_4(record + offsetof(FixedHeader, unit)));
  // Modulo 2^32, and the true sum fits: 12 * 32 * 2^22 < 2^31.
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
    __m512i total = sum[p][Digits - 1][0];
#pragma GCC unroll 3
    for (int d = Digits - 1; d >= 0; --d) {
      if (d < Digits - 1) total = _mm512_add_epi32(_mm512_slli_epi32(total, 8), sum[p][d][0]);
      if constexpr (kChains > 1) total = _mm512_add_epi32(total, sum[p][d][kChains - 1]);
    }
    part[p] = _mm512_mul_ps(_mm512_cvtepi32_ps(total), unit);
  }
}

template <class Scale, int P, int Rows, int Cols, int Digits>
void panel_rows(const PanelGemmArgs& a, std::int64_t panel, const FixedRows& rows) {
  const int count = Rows == 0 ? rows.count : Rows;
  constexpr std::int64_t kRecord = 8 + Cols * Digits, kBytes = Cols / kQuadCols * 64;
  // Far enough for memory, into the second level, whose misses the first level's few buffers need
  // not hold; then near, out of it.
  constexpr std::int64_t kFarAhead = 8192, kAhead = 1024, kScalesAhead = 512;
  const PanelLayout& l = a.w->layout;
  const std::byte* codes[P];
  const std::byte* scales[P];
  for (int p = 0; p < P; ++p) {
    codes[p] = a.w->codes + (panel + p) * std::int64_t(l.panel_code_bytes());
    scales[p] = a.w->scales + (panel + p) * std::int64_t(l.panel_scale_bytes());
  }
  const std::int64_t blocks = l.padded_cols() / Cols, per_cut = l.cut() / Cols;
  // Past the end of their panels the far streams go on where the next P panels begin.
  const std::int64_t panel_bytes = std::int64_t(l.panel_code_bytes());
  const std::int64_t far_blocks = std::max<std::int64_t>(0, blocks - kFarAhead / kBytes);
  const std::byte* const after = a.next != nullptr && panel + P >= a.panel_end
                                     ? a.next - blocks * kBytes
                                     : codes[0] + (P - 1) * panel_bytes;
  const std::byte* far = codes[0];
  std::int64_t cut = 0, cut_end = per_cut;  // counted: a division a block would show
  __m512 total[Rows == 0 ? kMaxRows : Rows][P];
  for (int m = 0; m < count; ++m)
    for (int p = 0; p < P; ++p) total[m][p] = _mm512_setzero_ps();
  for (std::int64_t b = 0; b < blocks; ++b) {
    if (b == cut_end) ++cut, cut_end += per_cut;
    if (b == far_blocks) far = after;
    __m512i w[P][Cols / 4];
    __m512 scale[P], part[P];
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      const std::byte* here = codes[p] + b * kBytes;
      for (std::int64_t line = 0; line < kBytes; line += 64) {
        const std::byte* away = far + p * panel_bytes + b * kBytes + line + kFarAhead;
        _mm_prefetch(reinterpret_cast<const char*>(away), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(here + line + kAhead), _MM_HINT_T0);
      }
      decode_block<Cols>(here, w[p]);
      _mm_prefetch(reinterpret_cast<const char*>(scales[p] + cut * kPanelRows + kScalesAhead),
                   _MM_HINT_T0);
      scale[p] = Scale::load(scales[p], cut);
    }
    for (int m = 0; m < count; ++m) {
      const std::byte* record = rows.fixed[m] + b * kRecord;
      dot_block<P, Cols, Digits>(w, record, part);
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) total[m][p] = _mm512_fmadd_ps(part[p], scale[p], total[m][p]);
    }
  }
  for (int m = 0; m < count; ++m) {
    const auto quads = listed_quads(rows.fixed[m] + blocks * kRecord);
    for (int p = 0; p < P; ++p) {
      const __m512 y = finish_sum<Scale>(*a.w, panel + p, {quads, rows.pairs[m], rows.row_scale[m]},
                                         total[m][p]);
      _mm512_storeu_ps(rows.y[m] + (panel + p - a.panel_begin) * kPanelRows, y);
    }
  }
}

template <class Scale, int Cols, int Digits>
void gemm(const PanelGemmArgs& a) {
  constexpr std::int64_t kPanels = 4;  // so many stay in the second-level cache for all rows
  for (std::int64_t begin = a.panel_begin; begin < a.panel_end; begin += kPanels)
    for (std::int64_t i = 0; i < a.num_rows; i += kMaxRows) {
      const FixedRows rows = select_rows(a, i);
      const std::int64_t end = std::min(begin + kPanels, a.panel_end);
      std::int64_t p = begin;
      if (rows.count == 1) {
        for (; p < end; ++p) panel_rows<Scale, 1, 1, Cols, Digits>(a, p, rows);
      }
      for (; p + 2 <= end; p += 2) panel_rows<Scale, 2, 0, Cols, Digits>(a, p, rows);
      for (; p < end; ++p) panel_rows<Scale, 1, 0, Cols, Digits>(a, p, rows);
    }
}

template <class Scale>
void gemm(const PanelGemmArgs& a) {
  const bool narrow = a.w->layout.cut() == 16;
  if (a.x.digits == 2) return narrow ? gemm<Scale, 16, 2>(a) : gemm<Scale, 32, 2>(a);
  return narrow ? gemm<Scale, 16, 3>(a) : gemm<Scale, 32, 3>(a);
}

}  // namespace

void fix_row_avx512(const FixedForm& form, const std::uint16_t* pairs, std::int64_t padded_cols,
                    std::byte* row) {
  std::byte* record = row;
  std::byte* const list = row + form.list_offset(padded_cols);
  std::int32_t count = 0;
  for (std::int64_t k = 0; k < padded_cols; k += form.cols, record += form.record_bytes())
    for (unsigned quads = fix_block(form, pairs + k, record); quads != 0; quads &= quads - 1) {
      const auto q = std::int32_t(k / kQuadCols + std::countr_zero(quads));
      std::memcpy(list + 4 * ++count, &q, 4);
    }
  std::memcpy(list, &count, 4);
}

void panel_gemm_fixed_avx512(const PanelGemmArgs& a) {
  if (a.w->layout.scale == formats::ScaleType::kE8m0) return gemm<E8m0Scale>(a);
  gemm<E4m3Scale>(a);
}

}  // namespace switchyard::ops
