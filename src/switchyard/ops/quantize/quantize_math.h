// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/host_device.h"
#include "switchyard/formats/bits.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"

namespace switchyard::ops {

/// Bits of the nearest bf16, ties to even, without a branch; a NaN stays a (quiet) NaN.
SWITCHYARD_HD inline std::uint16_t bf16_bits(float x) {
  std::uint32_t bits = formats::float_bits(x);
  std::int32_t magnitude = std::int32_t(bits & 0x7fffffffu);
  std::uint32_t nan = std::uint32_t((std::int32_t(formats::kInfinityBits) - magnitude) >> 31);
  std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return std::uint16_t((rounded & ~nan) | ((bits >> 16 | 0x40u) & nan));
}

/// Bits of a float whose value is exact in bf16.
SWITCHYARD_HD inline std::uint16_t exact_bf16_bits(float x) {
  return std::uint16_t(formats::float_bits(x) >> 16);
}

/// The element value of an FP8 activation: e4m3(x / scale), as bf16 bits.
SWITCHYARD_HD inline std::uint16_t fp8_value(float x, float scale) {
  return exact_bf16_bits(formats::round_e4m3(x / scale));
}

/// The value of an MXFP8 activation with its power-of-two scale folded in, as bf16 bits.
SWITCHYARD_HD inline std::uint16_t mxfp8_value(float x, float reciprocal, float scale) {
  return bf16_bits(formats::round_e4m3(x * reciprocal) * scale);
}

/// The value of an NVFP4 activation with its block scale folded in, as bf16 bits: at most six
/// significant bits, so exact.
SWITCHYARD_HD inline std::uint16_t nvfp4_value(float x, float multiplier, float scale) {
  return exact_bf16_bits(formats::round_e2m1(x * multiplier) * scale);
}

}  // namespace switchyard::ops
