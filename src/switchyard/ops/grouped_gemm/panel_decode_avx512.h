// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decoders of packed panels in AVX-512 registers, for the twins of that tier and above only.
// Everything has internal linkage: a weak copy with this instruction set must not reach the rest of
// the program.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see above.

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

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace switchyard::ops
