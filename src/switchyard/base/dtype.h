// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "switchyard/base/check.h"
#include "switchyard/base/host_device.h"

namespace switchyard {

/// Element type of hidden states and outputs.
enum class Dtype : std::uint8_t { kF32, kBf16, kFp16 };

/// "f32", "bf16" or "fp16".
constexpr std::string_view to_string(Dtype t) {
  return t == Dtype::kF32 ? "f32" : t == Dtype::kBf16 ? "bf16" : "fp16";
}

/// Inverse of to_string(). Errors: UsageError on any other word.
inline Dtype to_dtype(std::string_view s) {
  for (Dtype t : {Dtype::kF32, Dtype::kBf16, Dtype::kFp16})
    if (to_string(t) == s) return t;
  throw UsageError(cat("dtype '", s, "' is unknown; use f32, bf16 or fp16"));
}

/// Units: bytes.
constexpr std::size_t size_of(Dtype t) { return t == Dtype::kF32 ? 4 : 2; }

/// bf16 bits to float; exact.
SWITCHYARD_HD inline float bf16_to_float(std::uint16_t bits) {
  std::uint32_t u = std::uint32_t(bits) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

/// Float to bf16 bits, nearest even; NaN stays NaN (quieted), overflow goes to infinity.
SWITCHYARD_HD inline std::uint16_t float_to_bf16(float f) {
  std::uint32_t u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return std::uint16_t((u >> 16) | 0x40);
  return std::uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

/// IEEE half bits to float; exact, subnormals included.
SWITCHYARD_HD inline float fp16_to_float(std::uint16_t bits) {
  std::uint32_t sign = std::uint32_t(bits & 0x8000) << 16;
  std::uint32_t exponent = (bits >> 10) & 0x1f, mantissa = bits & 0x3ff, u;
  if (exponent == 0x1f) {
    u = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    u = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {
    float magnitude = float(mantissa) * 0x1p-24f;
    memcpy(&u, &magnitude, 4);
    u |= sign;
  }
  float f;
  memcpy(&f, &u, 4);
  return f;
}

/// Float to IEEE half bits, nearest even; overflow goes to infinity, NaN stays NaN.
SWITCHYARD_HD inline std::uint16_t float_to_fp16(float f) {
  std::uint32_t u;
  memcpy(&u, &f, 4);
  std::uint32_t sign = (u >> 16) & 0x8000, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return std::uint16_t(sign | 0x7e00);
  if (magnitude >= 0x477ff000u) return std::uint16_t(sign | 0x7c00);
  if (magnitude < 0x38800000u) {  // subnormal half: adding 0.5 aligns its last bit with float's
    float shifted;
    memcpy(&shifted, &magnitude, 4);
    shifted += 0.5f;
    std::uint32_t bits;
    memcpy(&bits, &shifted, 4);
    return std::uint16_t(sign | (bits - 0x3f000000u));
  }
  magnitude += 0xc8000fffu + ((magnitude >> 13) & 1);
  return std::uint16_t(sign | (magnitude >> 13));
}

/// Element `i` of an array of `t` as float; exact.
inline float load_element(Dtype t, const void* data, std::int64_t i) {
  if (t == Dtype::kF32) return static_cast<const float*>(data)[i];
  std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return t == Dtype::kBf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

/// Stores `value` as element `i` of an array of `t`, rounding once to nearest even.
inline void store_element(Dtype t, void* data, std::int64_t i, float value) {
  if (t == Dtype::kF32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<std::uint16_t*>(data)[i] =
        t == Dtype::kBf16 ? float_to_bf16(value) : float_to_fp16(value);
  }
}

}  // namespace switchyard
