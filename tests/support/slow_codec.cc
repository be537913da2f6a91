// SPDX-License-Identifier: Apache-2.0
#include "tests/support/slow_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "switchyard/base/dtype.h"
#include "switchyard/base/errors.h"

namespace switchyard::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::size_t nearest(const std::vector<double>& magnitudes, double x) {
  double target = std::min(std::fabs(x), magnitudes.back());
  std::size_t best = 0;
  for (std::size_t code = 1; code < magnitudes.size(); ++code) {
    double closer = std::fabs(magnitudes[best] - target) - std::fabs(magnitudes[code] - target);
    if (closer > 0 || (closer == 0 && code % 2 == 0)) best = code;
  }
  return best;
}

}  // namespace

const std::vector<double>& e2m1_magnitudes() {
  static const std::vector<double> values{0, .5, 1, 1.5, 2, 3, 4, 6};
  return values;
}

const std::vector<double>& e4m3_magnitudes() {
  static const std::vector<double> values = [] {
    std::vector<double> v;
    for (int code = 0; code < 0x7f; ++code) {
      int exponent = code >> 3, mantissa = code & 7;
      v.push_back(exponent == 0 ? std::ldexp(mantissa, -9)
                                : std::ldexp(8 + mantissa, exponent - 10));
    }
    return v;
  }();
  return values;
}

std::uint8_t slow_e2m1(double x) {
  if (std::isnan(x)) return 7;
  return std::uint8_t(nearest(e2m1_magnitudes(), x) + (std::signbit(x) ? 8 : 0));
}

std::uint8_t slow_e4m3(double x) {
  std::size_t code = std::isnan(x) ? 0x7f : nearest(e4m3_magnitudes(), x);
  return std::uint8_t(code + (std::signbit(x) ? 0x80 : 0));
}

double slow_decode_e2m1(std::uint8_t code) {
  double v = e2m1_magnitudes()[code & 7];
  return code & 8 ? -v : v;
}

double slow_decode_e4m3(std::uint8_t code) {
  if ((code & 0x7f) == 0x7f) return kNan;
  double v = e4m3_magnitudes()[code & 0x7f];
  return code & 0x80 ? -v : v;
}

int slow_mx_code(double amax, double max, bool floored) {
  if (std::isnan(amax)) return 255;
  if (std::isinf(amax)) amax = 0x1p128;
  if (floored) {
    if (amax == 0) return 0;
    return std::max(0, std::ilogb(amax) - std::ilogb(max) + 127);
  }
  int e = -127;
  while (std::ldexp(max, e) < amax) ++e;
  return e + 127;
}

double slow_e8m0(int code) { return code == 255 ? kNan : std::ldexp(1.0, code - 127); }

double slow_amax(const std::vector<float>& x) {
  double amax = 0;
  for (float v : x) {
    if (std::isnan(v)) return kNan;
    amax = std::max(amax, std::fabs(double(v)));
  }
  return amax;
}

SlowBlock slow_mxfp4(const std::vector<float>& block, bool floored) {
  double amax = slow_amax(block);
  SlowBlock b;
  b.scale_code = slow_mx_code(amax, 6, floored);
  b.scale = slow_e8m0(b.scale_code);
  for (float v : block) b.codes.push_back(amax == 0 ? 0 : slow_e2m1(v / b.scale));
  return b;
}

SlowBlock slow_mxfp8(const std::vector<float>& block, bool floored) {
  double amax = slow_amax(block);
  SlowBlock b;
  b.scale_code = slow_mx_code(amax, 448, floored);
  b.scale = slow_e8m0(b.scale_code);
  for (float v : block)
    b.codes.push_back(amax == 0 ? 0 : std::isnan(amax) ? 0x7f : slow_e4m3(v / b.scale));
  return b;
}

SlowBlock slow_nvfp4(const std::vector<float>& block, float g) {
  SlowBlock b;
  float product = g * float(slow_amax(block));
  b.scale_code = slow_e4m3(double(product / 6.0f));
  b.scale = slow_decode_e4m3(std::uint8_t(b.scale_code));
  float multiplier = g / float(b.scale);
  for (float v : block) {
    float scaled = v * multiplier;
    b.codes.push_back(b.scale == 0 ? 0 : slow_e2m1(double(scaled)));
  }
  return b;
}

SlowBlock slow_fp8(const std::vector<float>& block, float scale) {
  SlowBlock b;
  b.scale = scale;
  for (float v : block) {
    float quotient = v / scale;
    b.codes.push_back(std::isfinite(scale) ? slow_e4m3(double(quotient)) : 0x7f);
  }
  return b;
}

std::vector<std::uint8_t> pack_nibbles(const std::vector<std::uint8_t>& codes) {
  std::vector<std::uint8_t> bytes((codes.size() + 1) / 2);
  for (std::size_t i = 0; i < codes.size(); ++i)
    bytes[i / 2] = std::uint8_t(bytes[i / 2] + codes[i] * (i % 2 == 0 ? 1 : 16));
  return bytes;
}

std::vector<float> all_bf16(int stride) {
  std::vector<float> values;
  for (int first = 0; first < stride; ++first)
    for (int bits = first; bits < 65536; bits += stride)
      values.push_back(bf16_to_float(std::uint16_t(bits)));
  return values;
}

std::vector<float> around_ties(const std::vector<double>& magnitudes) {
  std::vector<float> values;
  auto add = [&](double v) {
    float f = float(v);
    for (float near : {std::nextafter(f, 0.0f), f, std::nextafter(f, 1e30f)}) {
      values.push_back(near);
      values.push_back(-near);
    }
  };
  for (std::size_t i = 0; i + 1 < magnitudes.size(); ++i) {
    add(magnitudes[i]);
    add((magnitudes[i] + magnitudes[i + 1]) / 2);
  }
  add(magnitudes.back());
  add(magnitudes.back() * 33 / 32);
  add(magnitudes.back() * 17 / 16);
  return values;
}

std::vector<float> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(generator);
  return values;
}

}  // namespace switchyard::test
