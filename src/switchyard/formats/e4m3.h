// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/formats/bits.h"

namespace switchyard::formats {

/// Largest finite E4M3 value, code 0x7E.
inline constexpr float kE4m3Max = 448;
/// The positive NaN code.
inline constexpr std::uint8_t kE4m3Nan = 0x7f;

/// Decodes E4M3 (1-4-3, bias 7, no infinity); 0x7F and 0xFF are NaN. Exact.
///
/// Source: OCP 8-bit Floating Point Specification, E4M3.
SWITCHYARD_HD inline float decode_e4m3(std::uint8_t code) {
  std::uint32_t magnitude = code & 0x7fu;
  std::uint32_t normal = (magnitude << 20) + (120u << 23);
  // A subnormal is converted from an integer: shifting it into place would make a float subnormal,
  // which is slow and lost when the caller flushes them.
  std::uint32_t small = float_bits(float(std::int32_t(magnitude)) * 0x1p-9f);
  std::uint32_t bits = magnitude < 8u ? small : normal;
  bits = magnitude == 0x7fu ? kNanBits : bits;
  return bits_float(bits | std::uint32_t(code & 0x80u) << 24);
}

/// Encodes to nearest even, saturating: beyond +-448 and +-Inf give 0x7E / 0xFE, NaN gives
/// 0x7F / 0xFF; the sign is kept, of zero and NaN too. Needs the default rounding mode.
SWITCHYARD_HD inline std::uint8_t encode_e4m3(float x) {
  std::uint32_t bits = float_bits(x);
  std::int32_t exact = std::int32_t(bits & 0x7fffffffu);
  std::int32_t m = exact < 0x43e00000 ? exact : 0x43e00000;  // 448
  std::int32_t exponent = m & 0x7f800000;
  exponent = exponent > 0x3c800000 ? exponent : 0x3c800000;  // below 2^-6 the last place is fixed
  // 2^20 times the binade has the element's last place as its own: the addition rounds. Every
  // select is on integers, so the loops over this function vectorise.
  std::int32_t magic = exponent + (20 << 23);
  float sum = bits_float(std::uint32_t(m)) + bits_float(std::uint32_t(magic));
  std::int32_t code = ((exponent - 0x3c800000) >> 20) + std::int32_t(float_bits(sum)) - magic;
  code |= (std::int32_t(kInfinityBits) - exact) >> 31 & 1;  // NaN saturated to 0x7e: one bit more
  return std::uint8_t(std::uint32_t(code) | (bits >> 24 & 0x80u));
}

/// decode_e4m3(encode_e4m3(x)) without the code in between.
SWITCHYARD_HD inline float round_e4m3(float x) {
  std::uint32_t bits = float_bits(x);
  std::int32_t exact = std::int32_t(bits & 0x7fffffffu);
  std::int32_t m = exact < 0x43e00000 ? exact : 0x43e00000;
  std::int32_t exponent = m & 0x7f800000;
  exponent = exponent > 0x3c800000 ? exponent : 0x3c800000;
  float magic = bits_float(std::uint32_t(exponent + (20 << 23)));
  std::uint32_t rounded = float_bits((bits_float(std::uint32_t(m)) + magic) - magic);
  rounded |= std::uint32_t((std::int32_t(kInfinityBits) - exact) >> 31) & kNanBits;
  return bits_float(rounded | (bits & 0x80000000u));
}

}  // namespace switchyard::formats
