// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "switchyard/base/host_device.h"

namespace switchyard::formats {

/// The IEEE bits of a float.
SWITCHYARD_HD inline std::uint32_t float_bits(float f) {
  std::uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

/// The float that has these IEEE bits.
SWITCHYARD_HD inline float bits_float(std::uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

/// Bits of infinity; a magnitude above them is a NaN.
inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;
/// Bits of the quiet NaN that decoders return.
inline constexpr std::uint32_t kNanBits = 0x7fc00000u;

}  // namespace switchyard::formats
