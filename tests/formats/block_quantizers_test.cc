// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "switchyard/formats/blocks.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/mxfp4.h"
#include "switchyard/formats/mxfp8.h"
#include "switchyard/formats/nvfp4.h"
#include "tests/support/slow_codec.h"

namespace switchyard::formats {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;
using test::SlowBlock;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A row's codes (packed for 4 bits) and scale codes.
struct Coded {
  Bytes codes, scales;
  bool operator==(const Coded&) const = default;
};

std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

Coded poisoned(std::size_t codes, std::size_t scales) {
  return {Bytes(codes, 0xcd), Bytes(scales, 0xab)};
}

Coded fast_mxfp4(const Floats& x) {
  Coded c = poisoned(x.size() / 2, ceil_div(x.size(), 32));
  quantize_row_mxfp4(x.data(), std::int64_t(x.size()), c.codes.data(), c.scales.data());
  return c;
}

Coded fast_mxfp8(const Floats& x) {
  Coded c = poisoned(x.size(), ceil_div(x.size(), 32));
  quantize_row_mxfp8(x.data(), std::int64_t(x.size()), c.codes.data(), c.scales.data());
  return c;
}

Coded fast_nvfp4(const Floats& x, std::int64_t block, float g) {
  Coded c = poisoned(x.size() / 2, ceil_div(x.size(), std::size_t(block)));
  quantize_row_nvfp4({x.data(), std::int64_t(x.size()), block, g, c.codes.data(), c.scales.data()});
  return c;
}

Coded slow_row(const Floats& x, std::size_t width, bool nibbles,
               const std::function<SlowBlock(const Floats&)>& quantise) {
  Coded c;
  for (std::size_t b = 0; b < x.size(); b += width) {
    Floats block(x.begin() + std::ptrdiff_t(b),
                 x.begin() + std::ptrdiff_t(std::min(b + width, x.size())));
    SlowBlock s = quantise(block);
    c.codes.insert(c.codes.end(), s.codes.begin(), s.codes.end());
    c.scales.push_back(std::uint8_t(s.scale_code));
  }
  if (nibbles) c.codes = test::pack_nibbles(c.codes);
  return c;
}

int differing(const Bytes& a, const Bytes& b) {
  EXPECT_EQ(a.size(), b.size());
  int count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

/// Rows that hold every bf16 value, with like and with unlike neighbours, and ragged random ones.
std::vector<Floats> rows() {
  std::vector<Floats> all{test::all_bf16(), test::all_bf16(2048), test::all_bf16(64)};
  for (std::size_t cols : {2, 4, 14, 16, 18, 30, 32, 34, 62, 66, 126, 128, 130, 2880})
    all.push_back(test::normal_values(cols, unsigned(cols)));
  return all;
}

TEST(Mxfp4, MatchesTheSlowQuantiserOnEveryBf16Value) {
  for (const Floats& x : rows())
    EXPECT_TRUE(fast_mxfp4(x) ==
                slow_row(x, 32, true, [](const Floats& b) { return test::slow_mxfp4(b); }))
        << x.size();
}

TEST(Mxfp8, MatchesTheSlowQuantiserOnEveryBf16Value) {
  for (const Floats& x : rows())
    EXPECT_TRUE(fast_mxfp8(x) ==
                slow_row(x, 32, false, [](const Floats& b) { return test::slow_mxfp8(b); }))
        << x.size();
}

TEST(Nvfp4, MatchesTheSlowQuantiserOnEveryBf16Value) {
  for (const Floats& x : rows())
    for (std::int64_t block : {16, 32})
      for (float g : {1.0f, 168.0f, 0x1p-118f, 0x1p120f, 1.0f / 3})
        EXPECT_TRUE(fast_nvfp4(x, block, g) ==
                    slow_row(x, std::size_t(block), true,
                             [g](const Floats& b) { return test::slow_nvfp4(b, g); }))
            << x.size() << " " << block << " " << g;
}

TEST(Fp8Block, MatchesTheSlowQuantiserOnEveryBf16Value) {
  for (bool power_of_two : {false, true}) {
    for (const Floats& x : rows()) {
      Bytes codes(x.size(), 0xcd);
      Floats scales(ceil_div(x.size(), 128), -1);
      quantize_row_fp8_block(x.data(), std::int64_t(x.size()), power_of_two, codes.data(),
                             scales.data());
      for (std::size_t b = 0; b < scales.size(); ++b) {
        Floats block(x.begin() + std::ptrdiff_t(b * 128),
                     x.begin() + std::ptrdiff_t(std::min(b * 128 + 128, x.size())));
        double amax = test::slow_amax(block);
        amax = amax < 1e-4f ? 1e-4f : amax;
        double scale = power_of_two ? test::slow_e8m0(test::slow_mx_code(amax, 448))
                                    : double(float(amax) / 448.0f);
        if (std::isnan(amax)) {
          EXPECT_TRUE(std::isnan(scales[b]));
        } else {
          ASSERT_EQ(scales[b], scale);
        }
        Bytes slow = test::slow_fp8(block, float(scale)).codes;
        Bytes fast(codes.begin() + std::ptrdiff_t(b * 128),
                   codes.begin() + std::ptrdiff_t(b * 128 + slow.size()));
        ASSERT_EQ(fast, slow) << block[0];
      }
    }
  }
}

/// +1, -2, +3, -4 ... times `step`.
Floats alternating(std::size_t count, float step) {
  Floats x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = float(i + 1) * (i % 2 == 0 ? step : -step);
  return x;
}

TEST(Examples, Nvfp4Bytes) {
  Coded c = fast_nvfp4(alternating(16, .5f), 16, 168);
  EXPECT_EQ(c.scales, Bytes{0x76});
  EXPECT_EQ(c.codes, (Bytes{0xa1, 0xb2, 0xc4, 0xd5, 0xe5, 0xe6, 0xf6, 0xf7}));
  EXPECT_EQ(nvfp4_multiplier(224, 168), .75f);
}

TEST(Examples, Mxfp4Bytes) {
  Coded c = fast_mxfp4(alternating(32, .25f));
  EXPECT_EQ(c.scales, Bytes{128});
  EXPECT_EQ(c.codes, (Bytes{0x80, 0x91, 0xa1, 0xa2, 0xa2, 0xb3, 0xc3, 0xc4, 0xc4, 0xc4, 0xd5, 0xd5,
                            0xd5, 0xe5, 0xe6, 0xe6}));
}

TEST(Controls, AnotherNibbleOrderOrTheFlooredExponentIsSeen) {
  Floats x = test::normal_values(4096, 3);
  Coded c = fast_mxfp4(x);
  Bytes swapped;
  for (std::uint8_t b : c.codes) swapped.push_back(std::uint8_t(b << 4 | b >> 4));
  EXPECT_GT(differing(c.codes, swapped), 1500);
  auto floored = [](const Floats& b) { return test::slow_mxfp4(b, true); };
  EXPECT_GT(differing(c.scales, slow_row(x, 32, true, floored).scales), 20);
  auto floored8 = [](const Floats& b) { return test::slow_mxfp8(b, true); };
  EXPECT_GT(differing(fast_mxfp8(x).scales, slow_row(x, 32, false, floored8).scales), 5);
}

TEST(ZeroBlocks, GiveCodeZeroAndZeroElements) {
  Floats x(64, 0.0f);
  for (std::size_t i = 0; i < 16; ++i) x[i] = -0.0f;
  x[63] = 5;  // the second block of 32 and the fourth of 16 are not zero
  Coded mx = fast_mxfp4(x);
  EXPECT_EQ(mx.scales, (Bytes{0, 127}));
  EXPECT_EQ(Bytes(mx.codes.begin(), mx.codes.begin() + 31), Bytes(31, 0));
  EXPECT_EQ(mx.codes[31], 0x60) << "a tie of 4 and 6 goes to the even code";
  Coded mx8 = fast_mxfp8(x);
  EXPECT_EQ(mx8.scales[0], 0);
  EXPECT_EQ(Bytes(mx8.codes.begin(), mx8.codes.begin() + 63), Bytes(63, 0));
  Coded nv = fast_nvfp4(x, 16, 100);
  EXPECT_EQ(nv.scales, (Bytes{0, 0, 0, encode_e4m3(500.0f / 6)}));
  EXPECT_EQ(Bytes(nv.codes.begin(), nv.codes.begin() + 31), Bytes(31, 0));
}

TEST(ZeroBlocks, Nvfp4FlushesWhereTheScaleRoundsToZero) {
  Floats tiny(16, -6 * 0x1p-10f);
  EXPECT_EQ(fast_nvfp4(tiny, 16, 1), (Coded{Bytes(8, 0), Bytes{0}}));
  tiny[3] = std::nextafter(6 * 0x1p-10f, 1.0f);
  EXPECT_EQ(fast_nvfp4(tiny, 16, 1).scales, Bytes{1});
}

TEST(NanBlocks, GiveNanScalesAndLeaveTheirNeighboursAlone) {
  Floats x = test::normal_values(128, 5);
  Coded clean4 = fast_mxfp4(x), clean8 = fast_mxfp8(x), clean_nv = fast_nvfp4(x, 16, 500);
  x[40] = kNan;
  Coded mx4 = fast_mxfp4(x), mx8 = fast_mxfp8(x), nv = fast_nvfp4(x, 16, 500);
  EXPECT_EQ(mx4.scales[1], 255);
  EXPECT_EQ(mx8.scales[1], 255);
  EXPECT_EQ(nv.scales[2], 0x7f);
  for (std::size_t i = 32; i < 64; ++i) EXPECT_EQ(mx8.codes[i], 0x7f);
  for (std::size_t b : {0, 2, 3}) {
    EXPECT_EQ(mx4.scales[b], clean4.scales[b]);
    EXPECT_EQ(mx8.scales[b], clean8.scales[b]);
  }
  EXPECT_EQ(differing(mx4.codes, clean4.codes),
            differing({mx4.codes.begin() + 16, mx4.codes.begin() + 32},
                      {clean4.codes.begin() + 16, clean4.codes.begin() + 32}));
  EXPECT_EQ(differing(nv.scales, clean_nv.scales), 1);
}

TEST(Extremes, InfinitySaturatesAndTheLargestFloatsKeepTheirScale) {
  Floats x(32, 1.0f);
  x[0] = kInf;
  x[1] = -kInf;
  Coded mx4 = fast_mxfp4(x), mx8 = fast_mxfp8(x), nv = fast_nvfp4(x, 16, 1);
  EXPECT_EQ(mx4.scales[0], 253);
  EXPECT_EQ(mx4.codes[0], 0xf7);
  EXPECT_EQ(mx8.scales[0], 247);
  EXPECT_EQ(mx8.codes[0], 0x7e);
  EXPECT_EQ(mx8.codes[1], 0xfe);
  EXPECT_EQ(nv.scales[0], 0x7e);
  EXPECT_EQ(nv.codes[0], 0xf7);
  EXPECT_EQ(nv.scales[1], encode_e4m3(1.0f / 6));
  EXPECT_EQ(mxfp4_scale(std::numeric_limits<float>::max()), 253);
  EXPECT_EQ(mxfp4_scale(0x1p-149f), 0);
}

TEST(Fp8Scales, FloorsAndSpecials) {
  EXPECT_EQ(fp8_activation_scale(0, false), 1e-4f / 448);
  EXPECT_EQ(fp8_activation_scale(9.9e-5f, false), 1e-4f / 448);
  EXPECT_EQ(fp8_activation_scale(448, false), 1);
  EXPECT_EQ(fp8_activation_scale(449, true), 2);
  EXPECT_EQ(fp8_activation_scale(448, true), 1);
  EXPECT_EQ(fp8_activation_scale(0, true), 0x1p-22f);
  EXPECT_TRUE(std::isnan(fp8_activation_scale(kNan, false)));
  EXPECT_TRUE(std::isnan(fp8_activation_scale(kNan, true)));
  EXPECT_EQ(fp8_weight_scale(224, false), .5f);
  EXPECT_EQ(fp8_weight_scale(225, true), 1);
  EXPECT_EQ(fp8_weight_scale(0, false), 0x1p-126f);
  EXPECT_EQ(fp8_weight_scale(0, true), 0x1p-126f);
  EXPECT_EQ(fp8_weight_scale(0x1p-140f, false), 0x1p-126f);
  EXPECT_TRUE(std::isnan(fp8_weight_scale(kNan, false)));
  EXPECT_TRUE(std::isnan(fp8_weight_scale(kNan, true)));
}

TEST(Nvfp4, ScaleNearTiesTellTheOrderOfOperations) {
  const std::vector<double>& scales = test::e4m3_magnitudes();
  int reciprocal_differs = 0, order_differs = 0;
  for (float g : {1.0f, 1 / 3.0f, 0.7f, 168.0f}) {
    for (std::size_t i = 0; i + 1 < scales.size(); ++i) {
      float amax = float(3 * (scales[i] + scales[i + 1]) / double(g));
      for (int step = 0; step < 4; ++step) amax = std::nextafter(amax, 0.0f);
      for (int step = 0; step < 8; ++step, amax = std::nextafter(amax, kInf)) {
        float product = g * amax, quotient = product / 6;
        int expected = test::slow_e4m3(double(quotient));
        EXPECT_EQ(nvfp4_scale(amax, g), expected) << amax << " " << g;
        reciprocal_differs += encode_e4m3(product * (1.0f / 6)) != expected;
        order_differs += encode_e4m3(g * (amax / 6)) != expected;
      }
    }
  }
  EXPECT_GT(reciprocal_differs, 0);
  EXPECT_GT(order_differs, 0);
}

TEST(Nvfp4, GlobalScaleOfATensor) {
  EXPECT_EQ(nvfp4_global_scale(2688), 1);
  EXPECT_EQ(nvfp4_global_scale(16), 16.0f / 2688);
  EXPECT_EQ(nvfp4_global_scale(0), 1);
  EXPECT_EQ(nvfp4_global_scale(0x1p-149f), 0x1p-126f);
  EXPECT_TRUE(std::isfinite(nvfp4_encode_scale(nvfp4_global_scale(0x1p-149f))));
}

TEST(Nvfp4, RefusesWhatItCannotPackInOneLine) {
  Floats x = test::normal_values(16, 1);
  Bytes codes(8), scales(1);
  Nvfp4RowArgs good{x.data(), 16, 16, 1, codes.data(), scales.data()};
  auto error = [&](auto change) {
    Nvfp4RowArgs bad = good;
    change(bad);
    std::string text = test::usage_error_or_empty([&] { quantize_row_nvfp4(bad); });
    quantize_row_nvfp4(good);
    return text;
  };
  EXPECT_NE(error([](auto& a) { a.cols = 15; }).find("15"), std::string::npos);
  EXPECT_NE(error([](auto& a) { a.block = 24; }).find("24"), std::string::npos);
  EXPECT_NE(error([](auto& a) { a.g = -2; }).find("-2"), std::string::npos);
  EXPECT_NE(error([](auto& a) { a.g = kNan; }).find("nan"), std::string::npos);
  EXPECT_NE(error([](auto& a) { a.g = kInf; }).find("inf"), std::string::npos);
}

TEST(Amax, NanWinsAndPaddingDoesNotCount) {
  Floats x = test::normal_values(200, 2);
  for (std::size_t count : {0, 1, 63, 64, 65, 200})
    EXPECT_EQ(amax_of(x.data(), std::int64_t(count)),
              test::slow_amax(Floats(x.begin(), x.begin() + std::ptrdiff_t(count))));
  for (std::size_t at : {0, 63, 64, 199}) {
    Floats y = x;
    y[at] = -kNan;
    y[(at + 1) % 200] = kInf;
    EXPECT_TRUE(std::isnan(amax_of(y.data(), 200)));
  }
}

}  // namespace
}  // namespace switchyard::formats
