// SPDX-License-Identifier: Apache-2.0
#pragma once

// What ends the sums of fixed rows, for the twins of AVX-512 and above only; internal linkage as in
// panel_decode_avx512.h.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/ops/grouped_gemm/panel_decode_avx512.h"

namespace switchyard::ops {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers)

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

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace switchyard::ops
