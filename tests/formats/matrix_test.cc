// SPDX-License-Identifier: Apache-2.0
#include "switchyard/formats/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "switchyard/base/dtype.h"
#include "switchyard/base/errors.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/mxfp4.h"
#include "switchyard/formats/mxfp8.h"
#include "switchyard/formats/nvfp4.h"
#include "tests/support/slow_codec.h"

namespace switchyard::formats {
namespace {

using Floats = std::vector<float>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr WeightLayout kBf16Layout{.element = Element::kBf16};

WeightLayout with_power_of_two(WeightLayout l) {
  l.power_of_two = true;
  return l;
}

/// Every layout that a checkpoint or a format uses, and a few that only the general path serves.
std::vector<WeightLayout> scaled_layouts() {
  return {
      kFp8BlockLayout,
      with_power_of_two(kFp8BlockLayout),
      kFp8ChannelLayout,
      kFp8TensorLayout,
      kMxfp8Layout,
      {.element = Element::kE4m3, .scale = ScaleType::kE8m0, .block_rows = 128, .block_cols = 128},
      kMxfp4Layout,
      kNvfp4Layout,
      kNvfp4WideLayout,
      {.element = Element::kE2m1, .scale = ScaleType::kE8m0, .block_rows = 3, .block_cols = 10},
      {.element = Element::kE2m1,
       .scale = ScaleType::kE4m3,
       .block_rows = 1,
       .block_cols = 0,
       .global_scale = true}};
}

std::int64_t scale_index(const Matrix& m, std::int64_t r, std::int64_t c) {
  std::int64_t row = m.layout.block_rows == 0 ? 0 : r / m.layout.block_rows;
  std::int64_t col = m.layout.block_cols == 0 ? 0 : c / m.layout.block_cols;
  return row * m.layout.scale_cols(m.cols) + col;
}

double stored_scale(const Matrix& m, std::int64_t i) {
  if (m.layout.scale == ScaleType::kF32) {
    float f;
    std::memcpy(&f, m.scales.data() + 4 * i, 4);
    return f;
  }
  int code = int(m.scales[std::size_t(i)]);
  return m.layout.scale == ScaleType::kE8m0 ? test::slow_e8m0(code)
                                            : test::slow_decode_e4m3(std::uint8_t(code));
}

int stored_code(const Matrix& m, std::int64_t r, std::int64_t c) {
  if (m.layout.element == Element::kE4m3) return int(m.codes[std::size_t(r * m.cols + c)]);
  int byte = int(m.codes[std::size_t((r * m.cols + c) / 2)]);
  return c % 2 == 0 ? byte & 15 : byte >> 4;
}

/// The block of `m` that holds (r, c), gathered from the source by plain loops.
Floats block_of(const Floats& x, const Matrix& m, std::int64_t r, std::int64_t c) {
  std::int64_t height = m.layout.block_rows == 0 ? m.rows : m.layout.block_rows;
  std::int64_t width = m.layout.block_cols == 0 ? m.cols : m.layout.block_cols;
  Floats block;
  for (std::int64_t i = r / height * height; i < std::min(m.rows, (r / height + 1) * height); ++i)
    for (std::int64_t j = c / width * width; j < std::min(m.cols, (c / width + 1) * width); ++j)
      block.push_back(x[std::size_t(i * m.cols + j)]);
  return block;
}

test::SlowBlock slow_block(const Floats& block, const Matrix& m) {
  if (m.layout.scale == ScaleType::kE4m3) return test::slow_nvfp4(block, 1 / m.global_scale);
  if (m.layout.scale == ScaleType::kE8m0)
    return m.layout.element == Element::kE2m1 ? test::slow_mxfp4(block) : test::slow_mxfp8(block);
  double amax = test::slow_amax(block);
  float scale = m.layout.power_of_two ? float(test::slow_e8m0(test::slow_mx_code(amax, 448)))
                                      : float(amax) / 448;
  return test::slow_fp8(block, scale);
}

TEST(Quantize, EveryLayoutMatchesTheSlowQuantiserOnRaggedShapes) {
  for (const WeightLayout& layout : scaled_layouts()) {
    for (auto [rows, cols] : {std::pair{1, 2}, {3, 34}, {131, 258}, {129, 96}}) {
      Floats x = test::normal_values(std::size_t(rows * cols), unsigned(rows));
      Matrix m = quantize_matrix(x, rows, cols, layout);
      m.check("m");
      if (layout.global_scale) {
        EXPECT_EQ(m.global_scale, float(test::slow_amax(x)) / 2688);
      }
      for (std::int64_t i = 0; i < m.layout.scale_rows(rows) * m.layout.scale_cols(cols); ++i) {
        std::int64_t r = i / layout.scale_cols(cols) * layout.block_rows;
        std::int64_t c = i % layout.scale_cols(cols) * layout.block_cols;
        test::SlowBlock slow = slow_block(block_of(x, m, r, c), m);
        ASSERT_EQ(stored_scale(m, i), slow.scale) << r << " " << c;
        ASSERT_EQ(stored_code(m, r, c), slow.codes[0]) << "the block's first element";
      }
      for (std::int64_t r = 0; r < rows; r += 7) {
        for (std::int64_t c = 0; c < cols; ++c) {
          double scale = stored_scale(m, scale_index(m, r, c));
          float source = x[std::size_t(r * cols + c)];
          float multiplier = 1 / m.global_scale / float(scale);
          int code = layout.element == Element::kE2m1
                         ? test::slow_e2m1(layout.global_scale ? double(source * multiplier)
                                                               : source / scale)
                         : test::slow_e4m3(double(source / float(scale)));
          ASSERT_EQ(stored_code(m, r, c), code) << r << " " << c;
        }
      }
    }
  }
}

TEST(Decode, ValueIsTheExactProductAndRowsRoundItOnce) {
  for (const WeightLayout& layout : scaled_layouts()) {
    std::int64_t rows = 131, cols = 258;
    Matrix m =
        quantize_matrix(test::normal_values(std::size_t(rows * cols), 9), rows, cols, layout);
    Floats row(std::size_t(cols), -77.0f);
    for (std::int64_t r = 0; r < rows; ++r) {
      m.decode_row(r, row);
      for (std::int64_t c = 0; c < cols; ++c) {
        int code = stored_code(m, r, c);
        double element = layout.element == Element::kE2m1
                             ? test::slow_decode_e2m1(std::uint8_t(code))
                             : test::slow_decode_e4m3(std::uint8_t(code));
        double expected = element * stored_scale(m, scale_index(m, r, c)) * double(m.global_scale);
        ASSERT_EQ(m.value(r, c), expected);
        ASSERT_EQ(row[std::size_t(c)], float(expected)) << r << " " << c;
      }
    }
  }
}

/// Relative RMS error of a layout on N(0, 1).
double rel_rms(const WeightLayout& layout) {
  std::int64_t rows = 256, cols = 1024;
  Floats x = test::normal_values(std::size_t(rows * cols), 11), row(std::size_t(cols), 0);
  Matrix m = quantize_matrix(x, rows, cols, layout);
  double error = 0, norm = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    m.decode_row(r, row);
    for (std::int64_t c = 0; c < cols; ++c) {
      double source = x[std::size_t(r * cols + c)], d = row[std::size_t(c)] - source;
      error += d * d;
      norm += source * source;
    }
  }
  return std::sqrt(error / norm);
}

TEST(Quantize, ErrorOnGaussianWeightsIsThePublishedOne) {
  EXPECT_NEAR(rel_rms(kBf16Layout), .00166, .00002);
  EXPECT_NEAR(rel_rms(kFp8TensorLayout), .0265, .0002);
  EXPECT_NEAR(rel_rms(kFp8BlockLayout), .0265, .0002);
  EXPECT_NEAR(rel_rms(with_power_of_two(kFp8BlockLayout)), .0266, .0002);
  EXPECT_NEAR(rel_rms(kMxfp8Layout), .0266, .0002) << "the floored exponent gives .0294";
  EXPECT_NEAR(rel_rms(kMxfp4Layout), .1155, .0005);
  EXPECT_NEAR(rel_rms(kNvfp4Layout), .0950, .0005);
  EXPECT_NEAR(rel_rms(kNvfp4WideLayout), .1016, .0005);
}

TEST(Quantize, AnotherNibbleOrderOrScaleGridIsFarOutsideTheError) {
  std::int64_t rows = 16, cols = 128;
  Floats x = test::normal_values(std::size_t(rows * cols), 12);
  Matrix m = quantize_matrix(x, rows, cols, kNvfp4Layout);
  std::vector<std::byte> swapped(m.codes.begin(), m.codes.end()),
      moved(m.scales.begin(), m.scales.end());
  for (std::byte& b : swapped) b = b << 4 | b >> 4;
  std::rotate(moved.begin(), moved.begin() + 1, moved.end());
  auto error = [&](const Matrix& other) {
    double sum = 0, norm = 0;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        double source = x[std::size_t(r * cols + c)], d = other.value(r, c) - source;
        sum += d * d;
        norm += source * source;
      }
    return std::sqrt(sum / norm);
  };
  Matrix wrong_codes = m, wrong_scales = m;
  wrong_codes.codes = swapped;
  wrong_scales.scales = moved;
  EXPECT_LT(error(m), .11);
  EXPECT_GT(error(wrong_codes), 1);
  EXPECT_GT(error(wrong_scales), .2);
}

TEST(Quantize, PlainElementsRoundOnce) {
  Floats x = test::all_bf16(2048);
  for (Element e : {Element::kF32, Element::kBf16, Element::kFp16}) {
    Matrix m = quantize_matrix(x, 256, 256, {.element = e});
    m.check("m");
    EXPECT_EQ(std::int64_t(m.codes.size()), m.layout.stored_bytes(256, 256));
    Floats row(256, -77.0f);
    for (std::int64_t r = 0; r < 256; ++r) {
      m.decode_row(r, row);
      for (std::int64_t c = 0; c < 256; ++c) {
        float source = x[std::size_t(r * 256 + c)], got = row[std::size_t(c)];
        float expected = e == Element::kFp16 ? fp16_to_float(float_to_fp16(source)) : source;
        ASSERT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected))) << source;
        ASSERT_TRUE(m.value(r, c) == double(got) || std::isnan(got));
      }
    }
  }
}

TEST(Quantize, ZerosTinyHugeAndNanMatrices) {
  for (const WeightLayout& layout : scaled_layouts()) {
    Floats zeros(64, 0.0f), row(32), tiny(64, 0x1p-149f), huge(64, 3e38f);
    Matrix z = quantize_matrix(zeros, 2, 32, layout);
    z.check("zeros");
    for (std::int64_t c = 0; c < 32; ++c) EXPECT_EQ(z.value(1, c), 0);
    Matrix t = quantize_matrix(tiny, 2, 32, layout);
    t.check("tiny");
    EXPECT_LE(t.value(0, 0), 0x1p-130);
    Matrix h = quantize_matrix(huge, 2, 32, layout);
    h.check("huge");
    EXPECT_NEAR(h.value(1, 31) / 3e38, 1, .15);
    Floats nan = test::normal_values(64, 4);
    nan[5] = kNan;
    Matrix n = quantize_matrix(nan, 2, 32, layout);
    EXPECT_TRUE(std::isnan(n.value(0, 5)));
    n.decode_row(0, row);
    EXPECT_TRUE(std::isnan(row[5]));
    EXPECT_NE(test::usage_error_or_empty([&] { n.check("weights"); }).find("weights"),
              std::string::npos);
    if (layout.global_scale) {
      EXPECT_TRUE(std::isfinite(n.global_scale));
    }
  }
}

TEST(Quantize, InfinityDoesNotSpoilNvfp4sGlobalScale) {
  Floats x = test::normal_values(64, 4);
  Floats clean = x;
  x[3] = -kInf;
  clean[3] = 0;
  Matrix m = quantize_matrix(x, 2, 32, kNvfp4Layout);
  EXPECT_EQ(m.global_scale, quantize_matrix(clean, 2, 32, kNvfp4Layout).global_scale);
  EXPECT_EQ(m.value(0, 3), -2688.0 * double(m.global_scale));
}

TEST(Quantize, RefusalsNameTheValue) {
  Floats x(6);
  auto error = [&](std::int64_t rows, std::int64_t cols, WeightLayout l) {
    std::string text = test::usage_error_or_empty([&] { quantize_matrix(x, rows, cols, l); });
    EXPECT_EQ(quantize_matrix(x, 3, 2, kMxfp4Layout).rows, 3);
    return text;
  };
  EXPECT_NE(error(2, 3, kMxfp4Layout).find("3 columns"), std::string::npos);
  EXPECT_NE(error(2, 4, kMxfp8Layout).find("6 values"), std::string::npos);
  EXPECT_NE(error(-2, -3, kMxfp8Layout), "");
  EXPECT_NE(error(3, 2, {.element = Element::kE4m3, .scale = ScaleType::kE4m3}).find("e4m3"),
            std::string::npos);
  EXPECT_NE(error(3, 2, {.element = Element::kE2m1, .scale = ScaleType::kF32}).find("e2m1"),
            std::string::npos);
  EXPECT_NE(error(3, 2, {.element = Element::kBf16, .scale = ScaleType::kF32}), "");
  EXPECT_NE(error(3, 2, {.element = Element::kE2m1, .scale = ScaleType::kE4m3, .block_cols = 16}),
            "");
  EXPECT_NE(error(3, 2, {.element = Element::kE2m1, .scale = ScaleType::kE8m0, .block_cols = 15}),
            "");
}

TEST(Layout, GridAndBytes) {
  EXPECT_EQ(kFp8BlockLayout.scale_rows(129), 2);
  EXPECT_EQ(kFp8BlockLayout.scale_cols(128), 1);
  EXPECT_EQ(kFp8BlockLayout.stored_bytes(129, 300), 129 * 300 + 2 * 3 * 4);
  EXPECT_EQ(kFp8ChannelLayout.scale_rows(129), 129);
  EXPECT_EQ(kFp8ChannelLayout.scale_cols(300), 1);
  EXPECT_EQ(kFp8TensorLayout.stored_bytes(129, 300), 129 * 300 + 4);
  EXPECT_EQ(kNvfp4Layout.stored_bytes(5, 34), 5 * 17 + 5 * 3 + 4);
  EXPECT_EQ(kMxfp4Layout.stored_bytes(5, 34), 5 * 17 + 5 * 2);
  EXPECT_EQ(kBf16Layout.stored_bytes(5, 33), 330);
  EXPECT_EQ(kBf16Layout.scale_rows(5), 0);
  EXPECT_EQ(kBf16Layout.scale_cols(5), 0);
}

/// A matrix over bytes of its own that a test may spoil.
struct Spoiled {
  std::vector<std::byte> codes, scales;
  Matrix m;
  explicit Spoiled(const WeightLayout& layout) {
    Matrix good = quantize_matrix(test::normal_values(4 * 96, 8), 4, 96, layout);
    codes.assign(good.codes.begin(), good.codes.end());
    scales.assign(good.scales.begin(), good.scales.end());
    m = good;
    m.codes = codes;
    m.scales = scales;
    m.storage = nullptr;
  }
  std::string error() const {
    return test::usage_error_or_empty([this] { m.check("layers.3.up_proj"); });
  }
};

TEST(Check, BadScalesAreNamedWithPlaceAndValue) {
  const std::pair<WeightLayout, int> cases[] = {{kNvfp4Layout, 0x7f}, {kNvfp4Layout, 0xff},
                                                {kNvfp4Layout, 0x80}, {kNvfp4Layout, 0xb8},
                                                {kMxfp4Layout, 255},  {kMxfp8Layout, 255}};
  for (auto [layout, code] : cases) {
    Spoiled s(layout);
    EXPECT_EQ(s.error(), "");
    std::int64_t cols = layout.scale_cols(96);
    s.scales[std::size_t(2 * cols + 1)] = std::byte(code);
    EXPECT_NE(s.error().find("layers.3.up_proj"), std::string::npos);
    EXPECT_NE(s.error().find("row 2, column 1 is "), std::string::npos) << s.error();
  }
  for (float bad : {kNan, -1.5f, -0.0f, kInf}) {
    Spoiled s(kFp8ChannelLayout);
    std::memcpy(s.scales.data() + 12, &bad, 4);
    EXPECT_NE(s.error().find("row 3, column 0 is "), std::string::npos) << bad;
    if (bad == -1.5f) {
      EXPECT_NE(s.error().find("-1.5"), std::string::npos);
    }
    Spoiled g(kNvfp4Layout);
    g.m.global_scale = bad;
    EXPECT_NE(g.error().find("global scale"), std::string::npos) << bad;
    Spoiled i(kNvfp4Layout);
    i.m.input_scale = bad;
    EXPECT_NE(i.error().find("input scale"), std::string::npos) << bad;
  }
  Spoiled zero(kNvfp4Layout);
  zero.m.input_scale = 0;
  EXPECT_NE(zero.error().find("input scale is 0; activations are divided"), std::string::npos);
  zero.m.input_scale = .5f;
  zero.scales[0] = std::byte(0);
  zero.m.global_scale = 0;
  EXPECT_EQ(zero.error(), "") << "zero block and global scales are legal";
}

TEST(Check, SizesAreComparedWithTheShape) {
  Spoiled s(kMxfp4Layout);
  Matrix good = s.m;
  auto error = [&](auto change) {
    s.m = good;
    change(s.m);
    return s.error();
  };
  EXPECT_NE(error([](Matrix& m) { m.codes = m.codes.first(191); }).find("191 bytes of codes"),
            std::string::npos);
  EXPECT_NE(error([](Matrix& m) { m.scales = m.scales.first(11); }).find("11 bytes of scales"),
            std::string::npos);
  EXPECT_NE(error([](Matrix& m) { m.cols = 95; }).find("95 columns"), std::string::npos);
  EXPECT_NE(error([](Matrix& m) { m.rows = -1; }).find("-1"), std::string::npos);
  EXPECT_NE(error([](Matrix& m) { m.layout.block_cols = -32; }).find("-32"), std::string::npos);
  EXPECT_NE(error([](Matrix& m) { m.rows = m.cols = std::int64_t(1) << 40; }).find("64 bits"),
            std::string::npos);
  EXPECT_EQ(error([](Matrix&) {}), "");
  s.m.global_scale = 2;
  EXPECT_THROW(s.m.check("m"), InternalError);
}

TEST(Decode, ReadsFromAnyAddress) {
  for (const WeightLayout& layout : {kFp8BlockLayout, WeightLayout{.element = Element::kF32},
                                     kBf16Layout, WeightLayout{.element = Element::kFp16}}) {
    Matrix m = quantize_matrix(test::normal_values(130 * 140, 8), 130, 140, layout);
    std::vector<std::byte> codes(m.codes.size() + 1), scales(m.scales.size() + 1);
    std::copy(m.codes.begin(), m.codes.end(), codes.begin() + 1);
    std::copy(m.scales.begin(), m.scales.end(), scales.begin() + 1);
    Matrix shifted = m;
    shifted.codes = std::span(codes).subspan(1);
    shifted.scales = std::span(scales).subspan(1);
    shifted.check("shifted");
    Floats a(140), b(140);
    for (std::int64_t r : {0, 127, 128, 129}) {
      m.decode_row(r, a);
      shifted.decode_row(r, b);
      EXPECT_EQ(a, b);
      EXPECT_EQ(m.value(r, 139), shifted.value(r, 139));
    }
  }
}

TEST(Decode, OddBlocksAndFp32WithGlobalStillRoundOnce) {
  Spoiled odd({.element = Element::kE2m1, .scale = ScaleType::kE8m0, .block_cols = 32});
  odd.m.layout.block_cols = 33;  // 96 columns still have three scales
  Spoiled both(kFp8BlockLayout);
  both.m.layout.global_scale = true;
  both.m.global_scale = 1 / 3.0f;
  for (const Matrix& m : {odd.m, both.m}) {
    Floats row(96, -77.0f);
    m.check("m");
    m.decode_row(3, row);
    for (std::int64_t c = 0; c < 96; ++c) EXPECT_EQ(row[std::size_t(c)], float(m.value(3, c)));
  }
  EXPECT_EQ(odd.m.value(1, 32) / stored_scale(odd.m, 3),
            test::slow_decode_e2m1(std::uint8_t(stored_code(odd.m, 1, 32))));
}

TEST(Decode, PlacesOutsideAreOurFault) {
  Spoiled s(kMxfp4Layout);
  Floats row(96), narrow(95);
  EXPECT_THROW(s.m.value(4, 0), InternalError);
  EXPECT_THROW(s.m.value(0, 96), InternalError);
  EXPECT_THROW(s.m.decode_row(-1, row), InternalError);
  EXPECT_THROW(s.m.decode_row(0, narrow), InternalError);
  s.m.decode_row(3, row);
}

TEST(Decode, EmptyMatrices) {
  for (const WeightLayout& layout : scaled_layouts()) {
    Matrix m = quantize_matrix({}, 0, 32, layout);
    m.check("empty");
    EXPECT_EQ(m.codes.size(), 0u);
  }
}

TEST(Names, OfEveryEnumerator) {
  EXPECT_EQ(to_string(Element::kF32), "f32");
  EXPECT_EQ(to_string(Element::kE2m1), "e2m1");
  EXPECT_EQ(to_string(ScaleType::kE8m0), "e8m0");
  EXPECT_EQ(to_string(ScaleType::kE4m3), "e4m3");
  EXPECT_EQ(to_string(ActivationQuant::kNone), "none");
  EXPECT_EQ(to_string(ActivationQuant::kFp8Block128Ue8m0), "fp8_1x128_ue8m0");
  EXPECT_EQ(to_string(ActivationQuant::kFp8Tensor), "fp8_tensor");
  EXPECT_EQ(to_string(ActivationQuant::kNvfp4), "nvfp4");
}

}  // namespace
}  // namespace switchyard::formats
