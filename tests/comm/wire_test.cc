// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/wire.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"
#include "tests/support/same_bits.h"

namespace switchyard::comm {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> values(std::int64_t n) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < n; ++i)
    out.push_back(std::ldexp(float((i * 37) % 101) - 50.3F, int(i % 9) - 6));
  return out;
}

std::vector<float> through(Wire w, const std::vector<float>& x, float weight = 1) {
  const std::int64_t n = std::int64_t(x.size());
  std::vector<std::byte> row(std::size_t(wire_bytes(w, n)) + 1, std::byte{0xc5});
  encode_row(w, x.data(), n, row.data());
  EXPECT_EQ(row.back(), std::byte{0xc5}) << to_string(w) << " wrote behind its row of " << n;
  std::vector<float> out(x.size(), 0);
  add_row(w, row.data(), weight, n, out.data());
  return out;
}

/// What the definitions say, value by value.
float fp8_of(const std::vector<float>& x, std::size_t i) {
  float amax = 0;
  for (std::size_t j = i / 128 * 128; j < std::min(x.size(), i / 128 * 128 + 128); ++j)
    amax = std::max(amax, std::fabs(x[j]));
  float scale = std::max(amax, 1e-4F) / 448;
  return formats::round_e4m3(x[i] / scale) * scale;
}

float nvfp4_of(const std::vector<float>& x, std::size_t i) {
  float row = 0, amax = 0;
  for (float v : x) row = std::max(row, std::fabs(v));
  for (std::size_t j = i / 16 * 16; j < std::min(x.size(), i / 16 * 16 + 16); ++j)
    amax = std::max(amax, std::fabs(x[j]));
  float g = 2688 / row, sf = formats::round_e4m3(g * amax / 6);
  return sf == 0 ? 0 : formats::round_e2m1(x[i] * (g / sf)) * (sf / g);
}

TEST(Wire, RoundsOnceAsDefined) {
  for (std::int64_t n : {2, 8, 16, 18, 96, 128, 130, 264, 7168}) {
    std::vector<float> x = values(n);
    const std::vector<float> f32 = through(Wire::kF32, x), bf16 = through(Wire::kBf16, x),
                             fp16 = through(Wire::kFp16, x), fp8 = through(Wire::kFp8, x),
                             nvfp4 = through(Wire::kNvfp4, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(f32[i], x[i]);
      EXPECT_EQ(bf16[i], bf16_to_float(float_to_bf16(x[i])));
      EXPECT_EQ(fp16[i], fp16_to_float(float_to_fp16(x[i])));
      EXPECT_EQ(fp8[i], fp8_of(x, i)) << n << " " << i;
      EXPECT_EQ(nvfp4[i], nvfp4_of(x, i)) << n << " " << i;
    }
  }
}

TEST(Wire, FormsDifferAndKeepTheirErrors) {
  std::vector<float> x = values(512);
  auto error = [&](Wire w) {
    std::vector<float> y = through(w, x);
    double num = 0, den = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      num += double(y[i] - x[i]) * double(y[i] - x[i]);
      den += double(x[i]) * double(x[i]);
    }
    return std::sqrt(num / den);
  };
  EXPECT_LT(error(Wire::kBf16), 0x1p-8);
  EXPECT_LT(error(Wire::kFp8), 0x1p-4);
  EXPECT_GT(error(Wire::kFp8), 0x1p-8);  // control: bf16's bound is one that fp8 exceeds
  EXPECT_LT(error(Wire::kNvfp4), 0.25);
  EXPECT_GT(error(Wire::kNvfp4), 0x1p-4);
}

TEST(Wire, WeightMultipliesEachValue) {
  std::vector<float> x = values(40);
  for (Wire w : {Wire::kF32, Wire::kBf16, Wire::kFp16, Wire::kFp8, Wire::kNvfp4}) {
    std::vector<float> one = through(w, x), scaled = through(w, x, 0.3F);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(scaled[i], 0.3F * one[i]) << to_string(w);
  }
}

// Product and sum are rounded apart: neither a fused one nor an overwritten sum has these bits.
TEST(Wire, AddsToWhatIsThere) {
  const std::vector<float> x = values(264);
  constexpr float kWeight = 0.3F;
  for (Wire w : {Wire::kF32, Wire::kBf16, Wire::kFp16, Wire::kFp8, Wire::kNvfp4}) {
    const std::vector<float> one = through(w, x);
    std::vector<float> sums, want, fused;
    for (std::size_t i = 0; i < x.size(); ++i) {
      sums.push_back(std::ldexp(float((i * 53) % 97) - 48.7F, int(i % 5) - 3));
      const float product = kWeight * one[i];
      want.push_back(sums[i] + product);
      fused.push_back(std::fma(kWeight, one[i], sums[i]));
    }
    std::vector<std::byte> row(std::size_t(wire_bytes(w, 264)));
    encode_row(w, x.data(), 264, row.data());
    add_row(w, row.data(), kWeight, 264, sums.data());
    EXPECT_TRUE(test::same_bits(sums, want)) << to_string(w);
    EXPECT_FALSE(test::same_bits(sums, fused)) << to_string(w) << ": the control";
  }
}

TEST(Wire, ZerosNanAndInfinity) {
  for (Wire w : {Wire::kF32, Wire::kBf16, Wire::kFp16, Wire::kFp8, Wire::kNvfp4}) {
    std::vector<float> x(256, 0.0F);
    for (float v : through(w, x)) EXPECT_EQ(v, 0) << to_string(w);
    x[0] = 3;
    x[200] = kNan;
    std::vector<float> y = through(w, x);
    EXPECT_NEAR(y[0], 3, 1e-6) << to_string(w);  // in another block
    EXPECT_TRUE(std::isnan(y[200])) << to_string(w);
    x[200] = kInf;
    EXPECT_FALSE(std::isfinite(through(w, x)[200])) << to_string(w);
  }
}

TEST(Wire, FollowsDtypeAndPrecision) {
  EXPECT_EQ(to_wire(CombinePrecision::kBf16, Dtype::kF32), Wire::kF32);
  EXPECT_EQ(to_wire(CombinePrecision::kBf16, Dtype::kBf16), Wire::kBf16);
  EXPECT_EQ(to_wire(CombinePrecision::kBf16, Dtype::kFp16), Wire::kFp16);
  EXPECT_EQ(to_wire(CombinePrecision::kFp8, Dtype::kBf16), Wire::kFp8);
  EXPECT_EQ(to_wire(CombinePrecision::kNvfp4, Dtype::kBf16), Wire::kNvfp4);
}

}  // namespace
}  // namespace switchyard::comm
