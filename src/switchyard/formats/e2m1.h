// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/formats/bits.h"

namespace switchyard::formats {

/// Largest E2M1 value, code 7.
inline constexpr float kE2m1Max = 6;

/// Decodes the low nibble as E2M1 (1-2-1, bias 1): 0, .5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign.
///
/// Source: OCP Microscaling Formats (MX) v1.0, E2M1.
SWITCHYARD_HD inline float decode_e2m1(std::uint8_t code) {
  std::uint32_t magnitude = code & 7u;
  std::uint32_t normal = (magnitude << 22) + (126u << 23);
  std::uint32_t bits = magnitude < 2u ? magnitude * 0x3f000000u : normal;
  return bits_float(bits | std::uint32_t(code & 8u) << 28);
}

/// Encodes to nearest even, saturating: above 5 and infinity give 6; the sign of zero is kept.
/// NaN gives 7 (+6), as the hardware conversion does: E2M1 has no NaN, so a quantiser reports a NaN
/// through the block scale. Needs the default rounding mode.
SWITCHYARD_HD inline std::uint8_t encode_e2m1(float x) {
  std::uint32_t bits = float_bits(x);
  std::int32_t exact = std::int32_t(bits & 0x7fffffffu);
  std::int32_t m = exact < 0x40c00000 ? exact : 0x40c00000;  // 6
  std::int32_t exponent = m & 0x7f800000;
  exponent = exponent > 0x3f800000 ? exponent : 0x3f800000;  // below 1 the last place is fixed
  // 2^22 times the binade has the element's last place as its own: the addition rounds.
  std::int32_t magic = exponent + (22 << 23);
  float sum = bits_float(std::uint32_t(m)) + bits_float(std::uint32_t(magic));
  std::int32_t code = ((exponent - 0x3f800000) >> 22) + std::int32_t(float_bits(sum)) - magic;
  std::int32_t nan = (std::int32_t(kInfinityBits) - exact) >> 31;  // all ones for NaN
  return std::uint8_t(code | (std::int32_t(bits >> 28 & 8u) & ~nan));
}

/// decode_e2m1(encode_e2m1(x)) without the code in between.
SWITCHYARD_HD inline float round_e2m1(float x) {
  std::uint32_t bits = float_bits(x);
  std::int32_t exact = std::int32_t(bits & 0x7fffffffu);
  std::int32_t m = exact < 0x40c00000 ? exact : 0x40c00000;
  std::int32_t exponent = m & 0x7f800000;
  exponent = exponent > 0x3f800000 ? exponent : 0x3f800000;
  float magic = bits_float(std::uint32_t(exponent + (22 << 23)));
  std::uint32_t rounded = float_bits((bits_float(std::uint32_t(m)) + magic) - magic);
  std::uint32_t nan = std::uint32_t((std::int32_t(kInfinityBits) - exact) >> 31);
  return bits_float(rounded | (bits & 0x80000000u & ~nan));
}

}  // namespace switchyard::formats
