// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/formats/bits.h"

namespace switchyard::formats {

/// The E8M0 code of NaN.
inline constexpr std::uint8_t kE8m0Nan = 255;

/// Decodes E8M0, 2^(code - 127); code 0 is the subnormal float 2^-127, code 255 is NaN. Exact.
///
/// Source: OCP Microscaling Formats (MX) v1.0, E8M0.
SWITCHYARD_HD inline float decode_e8m0(std::uint8_t code) {
  std::uint32_t bits = code == 0 ? 0x00400000u : std::uint32_t(code) << 23;
  return bits_float(code == kE8m0Nan ? kNanBits : bits);
}

/// 1 / decode_e8m0(code), exact for every code.
SWITCHYARD_HD inline float reciprocal_e8m0(std::uint8_t code) {
  return decode_e8m0(code == kE8m0Nan ? kE8m0Nan : std::uint8_t(254 - code));
}

/// Code of the smallest power of two >= |x|, by bit fields (a float log2 is off by one near powers
/// of two); at most 2^127, zero gives code 0, NaN gives 255.
SWITCHYARD_HD inline std::uint8_t encode_e8m0_ceil(float x) {
  std::uint32_t magnitude = float_bits(x) & 0x7fffffffu;
  std::uint32_t exponent = magnitude >> 23, mantissa = magnitude & 0x7fffffu;
  std::uint32_t code = exponent + (mantissa > (exponent == 0 ? 0x400000u : 0u) ? 1u : 0u);
  code = code < 254u ? code : 254u;
  return std::uint8_t(magnitude > kInfinityBits ? kE8m0Nan : code);
}

/// Code of 2^ceil(log2(amax / max)) for a constant max = 1.f * 2^e, given as its float bits: the
/// shared exponent of an MX block, with which no element saturates. Exact, no division.
///
/// Zero and anything down to max * 2^-127 give code 0, infinity the code of a quotient 2^(128 - e),
/// NaN gives 255.
SWITCHYARD_HD inline std::uint8_t encode_e8m0_ceil_ratio(float amax, std::uint32_t max_bits) {
  std::uint32_t magnitude = float_bits(amax) & 0x7fffffffu;
  std::int32_t code = std::int32_t(magnitude >> 23) - std::int32_t(max_bits >> 23) + 127;
  code += (magnitude & 0x7fffffu) > (max_bits & 0x7fffffu) ? 1 : 0;
  code = code < 0 ? 0 : code > 254 ? 254 : code;
  return std::uint8_t(magnitude > kInfinityBits ? std::int32_t(kE8m0Nan) : code);
}

}  // namespace switchyard::formats
