// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "switchyard/base/dtype.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/e8m0.h"
#include "switchyard/formats/mxfp4.h"
#include "switchyard/formats/mxfp8.h"
#include "tests/support/slow_codec.h"

namespace switchyard::formats {
namespace {

using test::around_ties;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// All bf16 values, ties with their neighbours, and floats with random bits.
std::vector<float> inputs(const std::vector<double>& magnitudes) {
  std::vector<float> values = test::all_bf16();
  for (float v : around_ties(magnitudes)) values.push_back(v);
  std::mt19937 generator(7);
  for (int i = 0; i < 100000; ++i) values.push_back(bits_float(generator()));
  std::uniform_real_distribution<float> near(-8, 8);
  for (int i = 0; i < 100000; ++i) values.push_back(near(generator));
  return values;
}

/// Number of inputs where `candidate` and `expected` give other codes.
template <class Candidate, class Expected>
int mismatches(const std::vector<float>& values, Candidate candidate, Expected expected) {
  int count = 0;
  for (float v : values) count += candidate(v) != expected(v);
  return count;
}

TEST(E2m1, DecodesEveryCode) {
  for (int code = 0; code < 16; ++code) {
    double value = test::slow_decode_e2m1(std::uint8_t(code));
    EXPECT_EQ(decode_e2m1(std::uint8_t(code)), value) << code;
    EXPECT_EQ(std::signbit(decode_e2m1(std::uint8_t(code))), code >= 8) << code;
    EXPECT_EQ(decode_e2m1(std::uint8_t(code | 0xf0)), value) << "reads the low nibble only";
    EXPECT_EQ(encode_e2m1(float(value)), code);
  }
}

TEST(E2m1, EncodesToTheNearestOfAllCodes) {
  std::vector<float> values = inputs(test::e2m1_magnitudes());
  EXPECT_EQ(mismatches(values, encode_e2m1, [](float v) { return test::slow_e2m1(v); }), 0);
  for (float v : values)
    ASSERT_EQ(float_bits(round_e2m1(v)), float_bits(decode_e2m1(encode_e2m1(v)))) << v;
}

TEST(E2m1, PublishedMidpoints) {
  const float cases[][2] = {{.25f, 0}, {.75f, 1},  {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4},
                            {5, 4},    {5.01f, 6}, {7, 6},     {kInf, 6},  {-5, -4},  {-kInf, -6}};
  for (auto [x, y] : cases) EXPECT_EQ(decode_e2m1(encode_e2m1(x)), y) << x;
  EXPECT_EQ(encode_e2m1(kNan), 7);
  EXPECT_EQ(encode_e2m1(-kNan), 7);
  EXPECT_EQ(encode_e2m1(-0.0f), 8);
  EXPECT_EQ(encode_e2m1(-.25f), 8) << "a negative value that rounds to zero keeps its sign";
}

TEST(E2m1, TiesAwayFromZeroWouldBeSeen) {
  auto away = [](float v) { return encode_e2m1(std::nextafter(v, v < 0 ? -kInf : kInf)); };
  EXPECT_GE(mismatches(around_ties(test::e2m1_magnitudes()), encode_e2m1, away), 8);
}

TEST(E4m3, DecodesEveryCode) {
  for (int code = 0; code < 256; ++code) {
    float value = decode_e4m3(std::uint8_t(code));
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    EXPECT_EQ(encode_e4m3(value), code);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(value, test::slow_decode_e4m3(std::uint8_t(code))) << code;
    }
  }
}

TEST(E4m3, EncodesToTheNearestOfAllCodes) {
  std::vector<float> values = inputs(test::e4m3_magnitudes());
  EXPECT_EQ(mismatches(values, encode_e4m3, [](float v) { return test::slow_e4m3(v); }), 0);
  for (float v : values) {
    float rounded = round_e4m3(v), decoded = decode_e4m3(encode_e4m3(v));
    ASSERT_TRUE(float_bits(rounded) == float_bits(decoded) ||
                (std::isnan(rounded) && std::isnan(decoded)))
        << v;
  }
}

TEST(E4m3, PublishedValues) {
  const std::pair<float, int> cases[] = {
      {1.0625f, 0x38}, {1.1875f, 0x3a},      {17, 0x58},   {19, 0x5a},    {248, 0x78},
      {0x1p-10f, 0},   {1.5f * 0x1p-9f, 2},  {464, 0x7e},  {1e9f, 0x7e},  {kInf, 0x7e},
      {-kInf, 0xfe},   {.0146484375f, 0x08}, {kNan, 0x7f}, {-kNan, 0xff}, {-0.0f, 0x80},
      {0x1p-6f, 0x08}, {0x1p-149f, 0},       {448, 0x7e}};
  for (auto [x, code] : cases) EXPECT_EQ(encode_e4m3(x), code) << x;
}

TEST(E4m3, TruncationWouldBeSeen) {
  auto truncated = [](float v) {
    std::uint8_t code = encode_e4m3(v);
    return std::fabs(decode_e4m3(code)) > std::fabs(v) ? std::uint8_t(code - 1) : code;
  };
  auto slow = [](float v) { return test::slow_e4m3(v); };
  EXPECT_GT(mismatches(test::all_bf16(), truncated, slow), 1000);
}

TEST(Products, ElementTimesBlockScaleIsExactInSixteenBits) {
  for (int code = 0; code < 8; ++code) {
    for (int scale = 0; scale < 0x7f; ++scale) {
      float product = decode_e2m1(std::uint8_t(code)) * decode_e4m3(std::uint8_t(scale));
      EXPECT_EQ(bf16_to_float(float_to_bf16(product)), product);
      EXPECT_EQ(fp16_to_float(float_to_fp16(product)), product);
    }
    for (int scale = 0; scale <= 252; ++scale) {
      float product = decode_e2m1(std::uint8_t(code)) * decode_e8m0(std::uint8_t(scale));
      EXPECT_EQ(bf16_to_float(float_to_bf16(product)), product);
    }
  }
}

TEST(E8m0, DecodesEveryCodeAndItsReciprocal) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(decode_e8m0(std::uint8_t(code)), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(reciprocal_e8m0(std::uint8_t(code)), std::ldexp(1.0, 127 - code)) << code;
    EXPECT_EQ(encode_e8m0_ceil(decode_e8m0(std::uint8_t(code))), code);
  }
  EXPECT_EQ(float_bits(decode_e8m0(0)), 0x00400000u);
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
  EXPECT_TRUE(std::isnan(reciprocal_e8m0(255)));
}

TEST(E8m0, CeilNearEveryPowerOfTwo) {
  int log2_wrong = 0;
  for (int e = -127; e <= 127; ++e) {
    float power = std::ldexp(1.0f, e), above = std::nextafter(power, kInf);
    EXPECT_EQ(encode_e8m0_ceil(power), e + 127);
    EXPECT_EQ(encode_e8m0_ceil(std::nextafter(power, 0.0f)), e + 127) << e;
    EXPECT_EQ(encode_e8m0_ceil(above), std::min(e + 128, 254)) << e;
    log2_wrong += std::ceil(std::log2(above)) != e + 1;
  }
  EXPECT_GT(log2_wrong, 100) << "the sweep no longer tells a float log2 from bit fields";
  EXPECT_EQ(encode_e8m0_ceil(0.0f), 0);
  EXPECT_EQ(encode_e8m0_ceil(0x1p-149f), 0);
  EXPECT_EQ(encode_e8m0_ceil(std::nextafter(0x1p-127f, 0.0f)), 0);
  EXPECT_EQ(encode_e8m0_ceil(kInf), 254);
  EXPECT_EQ(encode_e8m0_ceil(kNan), 255);
  EXPECT_EQ(encode_e8m0_ceil(-3.0f), encode_e8m0_ceil(3.0f));
}

TEST(E8m0, SharedExponentsMatchTheTable) {
  struct Row {
    float amax;
    int fp4_ceil, fp4_floor, fp8_ceil, fp8_floor;
  };
  const Row table[] = {
      {0, 0, 0, 0, 0},           {1, 125, 125, 119, 119},     {4, 127, 127, 121, 121},
      {6, 127, 127, 121, 121},   {6.01f, 128, 127, 121, 121}, {7.99f, 128, 127, 122, 121},
      {8, 128, 128, 122, 122},   {448, 134, 133, 127, 127},   {449, 134, 133, 128, 127},
      {1000, 135, 134, 129, 128}};
  for (const Row& r : table) {
    EXPECT_EQ(mxfp4_scale(r.amax), r.fp4_ceil) << r.amax;
    EXPECT_EQ(mxfp8_scale(r.amax), r.fp8_ceil) << r.amax;
    EXPECT_EQ(test::slow_mx_code(r.amax, 6, true), r.fp4_floor) << r.amax;
    EXPECT_EQ(test::slow_mx_code(r.amax, 448, true), r.fp8_floor) << r.amax;
  }
}

TEST(E8m0, SharedExponentsOfEveryMagnitude) {
  std::vector<float> values = test::all_bf16();
  for (int e = -149; e < 126; ++e)
    for (float base : {1.0f, 6.0f, 448.0f}) {
      float v = float(std::ldexp(double(base), e));
      for (float near : {std::nextafter(v, 0.0f), v, std::nextafter(v, kInf)})
        values.push_back(near);
    }
  int floor_differs = 0;
  for (float v : values) {
    double amax = std::fabs(double(v));
    ASSERT_EQ(mxfp4_scale(v), test::slow_mx_code(amax, 6)) << v;
    ASSERT_EQ(mxfp8_scale(v), test::slow_mx_code(amax, 448)) << v;
    floor_differs += mxfp4_scale(v) != test::slow_mx_code(amax, 6, true);
  }
  EXPECT_GT(floor_differs, int(values.size()) / 5);
}

}  // namespace
}  // namespace switchyard::formats
