// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decoders of packed panels in AVX2 registers, for the twin of that tier only. Everything has
// internal linkage: a weak copy with this instruction set must not reach the rest of the program.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see above.

constexpr std::int64_t kQuadCols = 8;    // four column pairs: the unit that every decoder yields
constexpr std::int64_t kHalfRows = 8;    // rows of a register; a panel is two halves
constexpr std::int64_t kHalfBytes = 32;  // of each 64-byte line; every element lies by rows in it

inline __m256i load_half(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

/// The same 16 bytes in both lanes: a table for the byte shuffle, which works by lane.
inline __m256i byte_table(const std::uint8_t (&bytes)[16]) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// ---- decoders: the 4 pair registers of half a quad, lane r holding (w[r, k], w[r, k + 1]) ----
// Up to kFewRows rows it is faster to decode again for every use than to keep what was decoded.

struct Raw16 {
  static constexpr std::int64_t kQuadBytes = 256;
  static constexpr int kFewRows = 4;
  static void decode(const std::byte* p, __m256i w[4]) {
    for (int j = 0; j < 4; ++j) w[j] = load_half(p + 64 * j);
  }
};

struct Bf16Codec : Raw16 {
  static __m256 even(__m256i w) { return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)); }
  static __m256 odd(__m256i w) {
    return _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(int(0xffff0000u))));
  }
};

struct Fp16Codec : Raw16 {
  static __m256 even(__m256i w) {
    return low_halves(_mm256_and_si256(w, _mm256_set1_epi32(0xffff)));
  }
  static __m256 odd(__m256i w) { return low_halves(_mm256_srli_epi32(w, 16)); }

 private:
  static __m256 low_halves(__m256i w) {
    const __m256i packed = _mm256_packus_epi32(w, w);  // each lane's four words, twice
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }
};

// The upper byte of a bf16 follows from sign and upper three exponent bits of an E4M3 code, the
// lower byte is the code's lower nibble moved up. Zero and subnormals are corrected by xor.
struct E4m3Tables {
  alignas(16) std::uint8_t high[16];     // by the upper nibble
  alignas(16) std::uint8_t fix_low[16];  // by a magnitude below 16; those from 8 on are normal
  alignas(16) std::uint8_t fix_high[16];
  constexpr E4m3Tables() : high{}, fix_low{}, fix_high{} {
    for (int nibble = 0; nibble < 16; ++nibble) {
      const int sign = nibble >> 3, exponent = (nibble & 7) * 2 + 120;
      high[nibble] = std::uint8_t(sign << 7 | exponent >> 1);
    }
    for (int mantissa = 0; mantissa < 8; ++mantissa) {  // m * 2^-9, normal in bf16
      const int shift = mantissa >= 4 ? 0 : mantissa >= 2 ? 1 : 2;
      const int bits =
          mantissa == 0 ? 0 : (120 - shift) << 7 | ((mantissa << (shift + 1) & 7) << 4);
      const int naive = 120 << 7 | mantissa << 4;
      fix_low[mantissa] = std::uint8_t(bits ^ naive);
      fix_high[mantissa] = std::uint8_t((bits ^ naive) >> 8);
    }
  }
};
constexpr E4m3Tables kE4m3;

struct E4m3Codec : Bf16Codec {
  static constexpr std::int64_t kQuadBytes = 128;
  static void decode(const std::byte* p, __m256i w[4]) {
    const __m256i high_table = byte_table(kE4m3.high);
    const __m256i fix_low = byte_table(kE4m3.fix_low), fix_high = byte_table(kE4m3.fix_high);
    const __m256i nibble = _mm256_set1_epi8(0x0f), magnitude = _mm256_set1_epi8(0x7f);
    for (int j = 0; j < 2; ++j) {
      const __m256i codes = load_half(p + 64 * j);
      const __m256i m = _mm256_and_si256(codes, magnitude);
      // From 16 on the sum's top bit is set, for which the shuffle yields zero: no correction.
      const __m256i fix = _mm256_adds_epu8(m, _mm256_set1_epi8(0x70));
      __m256i low = _mm256_slli_epi16(_mm256_and_si256(codes, nibble), 4);
      __m256i high =
          _mm256_shuffle_epi8(high_table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble));
      low = _mm256_xor_si256(low, _mm256_shuffle_epi8(fix_low, fix));
      high = _mm256_xor_si256(high, _mm256_shuffle_epi8(fix_high, fix));
      high = _mm256_or_si256(high, _mm256_cmpeq_epi8(m, magnitude));  // NaN stays one
      w[2 * j] = _mm256_unpacklo_epi8(low, high);
      w[2 * j + 1] = _mm256_unpackhi_epi8(low, high);
    }
  }
};

// bf16 of the 16 E2M1 codes, as separate bytes.
alignas(16) constexpr std::uint8_t kE2m1Low[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                                   0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};
alignas(16) constexpr std::uint8_t kE2m1High[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                    0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};

struct E2m1Codec : Bf16Codec {
  static constexpr std::int64_t kQuadBytes = 64;
  static constexpr int kFewRows = 2;
  static void decode(const std::byte* p, __m256i w[4]) {
    const __m256i low_table = byte_table(kE2m1Low), high_table = byte_table(kE2m1High);
    const __m256i nibble = _mm256_set1_epi8(0x0f), even_bytes = _mm256_set1_epi16(0x00ff);
    const __m256i codes = load_half(p);
    for (int j = 0; j < 2; ++j) {  // pairs j and j + 2 lie in neighbouring bytes
      const __m256i index = _mm256_and_si256(_mm256_srli_epi16(codes, 4 * j), nibble);
      const __m256i low = _mm256_shuffle_epi8(low_table, index);
      const __m256i high = _mm256_shuffle_epi8(high_table, index);
      w[j] = _mm256_or_si256(_mm256_and_si256(low, even_bytes), _mm256_slli_epi16(high, 8));
      w[j + 2] = _mm256_or_si256(_mm256_srli_epi16(low, 8), _mm256_andnot_si256(even_bytes, high));
    }
  }
};

// ---- scales: half `h` of the rows of one block as floats ----

struct NoScale {
  static constexpr bool kScaled = false;
  static __m256 load(const std::byte*, std::int64_t, int) { return _mm256_set1_ps(1); }
};
struct F32Scale {
  static constexpr bool kScaled = true;
  static __m256 load(const std::byte* p, std::int64_t b, int h) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p) + b * kPanelRows + h * kHalfRows);
  }
};

inline __m128i load_scale_codes(const std::byte* p, std::int64_t b, int h) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + b * kPanelRows + h * kHalfRows));
}

struct E8m0Scale {
  static constexpr bool kScaled = true;
  static __m256 load(const std::byte* p, std::int64_t b, int h) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(load_scale_codes(p, b, h)), 23);
    return _mm256_castsi256_ps(_mm256_max_epu32(bits, _mm256_set1_epi32(0x00400000)));  // 0: 2^-127
  }
};
struct E4m3Scale {
  static constexpr bool kScaled = true;
  static __m256 load(const std::byte* p, std::int64_t b, int h) {
    // Through fp16, whose conversion takes subnormals at full speed; never negative: checked.
    const __m128i half = _mm_slli_epi16(_mm_cvtepu8_epi16(load_scale_codes(p, b, h)), 7);
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(0x1p8f));
  }
};

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace switchyard::ops
