// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "switchyard/base/host_device.h"

/// Elementary functions in float from adds, multiplies and divides only, all free of branches.
///
/// Every twin that compiles them without contraction gets the same bits: scalar, any vector width,
/// host or device. They are forced inline, because a shared out-of-line copy could come from a
/// source file that was built for a wider instruction set than the machine has.
/// NaN in gives NaN out everywhere.
namespace switchyard {

/// Bits of a float.
[[gnu::always_inline]] SWITCHYARD_HD inline std::uint32_t bits_of(float x) {
  std::uint32_t u;
  memcpy(&u, &x, sizeof(u));
  return u;
}

/// Float of the bits.
[[gnu::always_inline]] SWITCHYARD_HD inline float float_of(std::uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof(x));
  return x;
}

/// |x|, sign bit cleared.
[[gnu::always_inline]] SWITCHYARD_HD inline float magnitude_of(float x) {
  return float_of(bits_of(x) & 0x7fffffffu);
}

/// `yes` where `condition` holds, else `no`, by masks: a compiler that honours floating-point traps
/// keeps `?:` as a branch, and the loop around it scalar.
[[gnu::always_inline]] SWITCHYARD_HD inline float select(bool condition, float yes, float no) {
  const std::uint32_t mask = 0u - std::uint32_t(condition);
  return float_of((bits_of(yes) & mask) | (bits_of(no) & ~mask));
}

/// e^(hi + lo) for a small correction lo (|lo| < 0.1); gradual underflow,
/// infinity past the top.
[[gnu::always_inline]] SWITCHYARD_HD inline float exp_sum(float hi, float lo) {
  constexpr float kLog2e = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e4p-1f;  // 15 bits: exact when multiplied by n
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kRound = 0x1.8p+23f;  // adding it leaves the nearest integer in the low bits
  // What underflows to 0 takes another way: multiplying down to it costs a trap on common cores.
  const bool vanishes = hi < -104.0f;
  float x = select(vanishes, 0.0f, hi);
  x = select(x > 89.0f, 89.0f, x);
  const float shifted = x * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = ((x - n * kLn2High) - n * kLn2Low) + lo;
  float q = 0x1.6d10fcp-10f;
  q = q * r + 0x1.120b62p-7f;
  q = q * r + 0x1.55551ap-5f;
  q = q * r + 0x1.5554dep-3f;
  q = q * r + 0.5f;
  const float p = (q * (r * r) + r) + 1.0f;
  // Two factors, since 2^n alone leaves the range of normal floats at both ends.
  const std::int32_t whole = std::int32_t(bits_of(shifted) - bits_of(kRound));
  const std::int32_t half = whole >> 1;
  const float first = float_of(std::uint32_t(half + 127) << 23);
  const float second = float_of((std::uint32_t(whole) - std::uint32_t(half) + 127u) << 23);
  return select(vanishes, 0.0f, p * first * second);
}

/// e^x within 1.1 ulp.
[[gnu::always_inline]] SWITCHYARD_HD inline float exp_float(float x) { return exp_sum(x, 0.0f); }

/// 1 / (1 + e^-x) with small relative error on both tails.
[[gnu::always_inline]] SWITCHYARD_HD inline float sigmoid_float(float x) {
  const float e = exp_float(-magnitude_of(x));
  return select(x < 0, e, 1.0f) / (1.0f + e);
}

/// tanh(x) with small relative error, also near 0.
[[gnu::always_inline]] SWITCHYARD_HD inline float tanh_float(float x) {
  const float m = magnitude_of(x);
  const float z = m * m;
  float p = -0x1.8fc7e2p-8f;
  p = p * z + 0x1.580e82p-6f;
  p = p * z - 0x1.b92698p-5f;
  p = p * z + 0x1.110e22p-3f;
  p = p * z - 0x1.555552p-2f;
  const float near = m * z * p + m;
  const float far = 1.0f - 2.0f / (exp_float(2.0f * m) + 1.0f);
  const float y = select(m < 0.625f, near, far);
  return float_of(bits_of(y) | (bits_of(x) & 0x80000000u));
}

/// Normal distribution function, with small relative error on the lower tail too.
[[gnu::always_inline]] SWITCHYARD_HD inline float normal_cdf_float(float x) {
  float m = magnitude_of(x);
  m = select(m > 16.0f, 16.0f, m);  // the tail is 0 in float from 15 on
  // P(-m) = e^(-m^2/2) R(m); (m + 4) R(m) is a polynomial in (m - 4) / (m + 4).
  const float q = (m - 4.0f) / (m + 4.0f);
  float p = -0x1.10e2e2p-13f;
  p = p * q + 0x1.777e6ap-13f;
  p = p * q + 0x1.99d3fcp-10f;
  p = p * q - 0x1.ccd6aap-9f;
  p = p * q - 0x1.ecfcb4p-8f;
  p = p * q + 0x1.eed778p-5f;
  p = p * q - 0x1.7e0036p-3f;
  p = p * q + 0x1.8c6d9p-2f;
  p = p * q - 0x1.373e38p-1f;
  p = p * q + 0x1.82b4bcp-1f;
  // The square in two parts: its rounding alone would cost m^2/2 ulps of the exponential.
  const float head = float_of(bits_of(m) & 0xfffff000u);
  const float rest = (m - head) * (m + head);
  const float tail = exp_sum(-0.5f * (head * head), -0.5f * rest) * p / (m + 4.0f);
  return select(x < 0, tail, 1.0f - tail);
}

/// log(1 + y) for 0 <= y <= 1, with small relative error near 0.
[[gnu::always_inline]] SWITCHYARD_HD inline float log1p_unit(float y) {
  const float s = y / (2.0f + y);  // log(1 + y) = 2 atanh(s)
  const float z = s * s;
  float p = 0x1.dba26p-4f;
  p = p * z + 0x1.bc8cf8p-4f;
  p = p * z + 0x1.24c926p-3f;
  p = p * z + 0x1.9998d4p-3f;
  p = p * z + 0x1.555556p-2f;
  const float twice = s + s;
  return twice * z * p + twice;
}

/// log(1 + e^x), finite for every finite x.
[[gnu::always_inline]] SWITCHYARD_HD inline float softplus_float(float x) {
  const float e = exp_float(-magnitude_of(x));
  return select(x > 0, x, 0.0f) + log1p_unit(e);
}

/// sqrt(softplus(x)) given `root`, the square root of softplus_float(x): far below 0 it is e^(x/2),
/// where e^x itself would have lost its bits. Apart, because a square root keeps loops scalar.
[[gnu::always_inline]] SWITCHYARD_HD inline float softplus_root(float x, float root) {
  return select(x < -17.0f, exp_float(0.5f * x), root);
}

/// sqrt(log(1 + e^x)).
[[gnu::always_inline]] SWITCHYARD_HD inline float sqrt_softplus_float(float x) {
  return softplus_root(x, std::sqrt(softplus_float(x)));
}

}  // namespace switchyard
