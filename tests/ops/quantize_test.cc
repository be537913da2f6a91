// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/quantize/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "switchyard/base/check.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/errors.h"
#include "tests/cases/moe_case.h"
#include "tests/support/slow_codec.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using Floats = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr ActivationQuant kKinds[] = {
    ActivationQuant::kNone,     ActivationQuant::kFp8Block128, ActivationQuant::kFp8Block128Ue8m0,
    ActivationQuant::kFp8Token, ActivationQuant::kFp8Tensor,   ActivationQuant::kMxfp8,
    ActivationQuant::kNvfp4};
constexpr float kStatic = 0.0123f;

bool per_128(ActivationQuant k) {
  return k == ActivationQuant::kFp8Block128 || k == ActivationQuant::kFp8Block128Ue8m0;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

struct Row {
  std::vector<std::uint16_t> values;
  Floats block_scales;
  float row_scale = -7;

  double dequantised(ActivationQuant kind, std::size_t i) const {
    double block = per_128(kind) ? double(block_scales[i / 128]) : 1;
    return double(bf16_to_float(values[i])) * block * double(row_scale);
  }
};

/// Runs the CPU twin into poisoned buffers and checks that nothing behind them was touched.
Row run(ActivationQuant kind, const Floats& x, float static_scale = kStatic) {
  std::size_t blocks = (x.size() + 127) / 128;
  Row r{std::vector<std::uint16_t>(x.size() + 8, 0xbeef), Floats(blocks + 2, -5)};
  quantize_row_cpu({kind, x.data(), std::int64_t(x.size()), static_scale, r.values.data(),
                    r.block_scales.data(), &r.row_scale});
  for (std::size_t i = x.size(); i < r.values.size(); ++i) EXPECT_EQ(r.values[i], 0xbeef);
  for (std::size_t i = per_128(kind) ? blocks : 0; i < blocks + 2; ++i)
    EXPECT_EQ(r.block_scales[i], -5) << "block scales belong to the 1 x 128 kinds";
  r.values.resize(x.size());
  return r;
}

std::vector<double> oracle(ActivationQuant kind, const Floats& x, float static_scale = kStatic) {
  std::vector<double> out(x.size() + 1, -3);
  quantize_row_ref(
      {.kind = kind, .x = x.data(), .cols = std::int64_t(x.size()), .static_scale = static_scale},
      out.data());
  EXPECT_EQ(out.back(), -3);
  out.pop_back();
  return out;
}

/// Positions where the twin and the oracle give other values.
int mismatches(ActivationQuant kind, const Floats& x, float static_scale = kStatic) {
  Row r = run(kind, x, static_scale);
  std::vector<double> expected = oracle(kind, x, static_scale);
  int count = 0;
  for (std::size_t i = 0; i < x.size(); ++i) count += !same(r.dequantised(kind, i), expected[i]);
  return count;
}

TEST(QuantizeRow, EqualsTheOracleAtEveryWidth) {
  for (ActivationQuant kind : kKinds)
    for (std::size_t cols : {0,  1,  2,   3,   15,  16,  17,  31,  32,  33,   63,  64,
                             65, 96, 127, 128, 129, 255, 256, 257, 360, 1408, 2880})
      EXPECT_EQ(mismatches(kind, test::normal_values(cols, unsigned(cols))), 0)
          << to_string(kind) << " " << cols;
}

TEST(QuantizeRow, EqualsTheOracleOnEveryBf16Value) {
  for (ActivationQuant kind : kKinds)
    for (int stride : {1, 64, 2048}) {
      Floats x = test::all_bf16(stride);
      if (kind == ActivationQuant::kMxfp8)  // see the folding rule: these are not exact in bf16
        for (float& v : x)
          if (std::fabs(v) < 0x1p-110f || std::fabs(v) > 0x1.8p127f) v = v > 0 ? 1.f : -2.f;
      EXPECT_EQ(mismatches(kind, x), 0) << to_string(kind) << " " << stride;
    }
}

TEST(QuantizeRow, EqualsTheOracleOnTies) {
  for (ActivationQuant kind : kKinds) {
    for (const auto* magnitudes : {&test::e2m1_magnitudes(), &test::e4m3_magnitudes()}) {
      Floats x = test::around_ties(*magnitudes);
      for (float scale : {1.0f, 1 / 168.0f, 0.37f})
        EXPECT_EQ(mismatches(kind, x, scale), 0) << to_string(kind) << " " << scale;
    }
  }
}

TEST(QuantizeRow, OracleEqualsASearchOverAllCodes) {
  Floats x = test::normal_values(320, 6);
  for (std::size_t i = 0; i < 320; ++i) {
    Floats block(x.begin() + std::ptrdiff_t(i / 32 * 32),
                 x.begin() + std::ptrdiff_t(i / 32 * 32 + 32));
    test::SlowBlock mx = test::slow_mxfp8(block);
    EXPECT_EQ(oracle(ActivationQuant::kMxfp8, x)[i],
              test::slow_decode_e4m3(mx.codes[i % 32]) * mx.scale);
    Floats half(x.begin() + std::ptrdiff_t(i / 16 * 16),
                x.begin() + std::ptrdiff_t(i / 16 * 16 + 16));
    test::SlowBlock nv = test::slow_nvfp4(half, 1 / kStatic);
    EXPECT_EQ(oracle(ActivationQuant::kNvfp4, x)[i],
              test::slow_decode_e2m1(nv.codes[i % 16]) * nv.scale * double(kStatic));
    test::SlowBlock tensor = test::slow_fp8({x[i]}, kStatic);
    EXPECT_EQ(oracle(ActivationQuant::kFp8Tensor, x)[i],
              test::slow_decode_e4m3(tensor.codes[0]) * double(kStatic));
    EXPECT_EQ(oracle(ActivationQuant::kNone, x)[i], bf16_to_float(float_to_bf16(x[i])));
  }
}

double rel_rms(ActivationQuant kind, const Floats& x, const std::vector<double>& y) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (y[i] - x[i]) * (y[i] - x[i]);
    norm += double(x[i]) * x[i];
  }
  EXPECT_EQ(mismatches(kind, x), 0);
  return std::sqrt(error / norm);
}

TEST(QuantizeRow, ErrorOnGaussianRowsIsThePublishedOne) {
  Floats x = test::normal_values(1 << 16, 21);
  auto error = [&](ActivationQuant kind) { return rel_rms(kind, x, oracle(kind, x)); };
  EXPECT_NEAR(error(ActivationQuant::kNone), .00166, .00003);
  EXPECT_NEAR(error(ActivationQuant::kFp8Block128), .0258, .0004);
  EXPECT_NEAR(error(ActivationQuant::kFp8Block128Ue8m0), .0266, .0004);
  EXPECT_NEAR(error(ActivationQuant::kMxfp8), .0266, .0004);
  EXPECT_NEAR(rel_rms(ActivationQuant::kNvfp4, x, oracle(ActivationQuant::kNvfp4, x, 5 / 2688.f)),
              .095, .002);
}

TEST(QuantizeRow, AnotherRuleIsSeen) {
  Floats x = test::normal_values(512, 3);  // over 23 octaves: power-of-two scales differ visibly
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], -int(i * 7 % 23));
  for (ActivationQuant kind : kKinds) {
    std::vector<double> expected = oracle(kind, x);
    Floats shifted(x.begin() + 1, x.end());
    shifted.push_back(x[0]);
    for (ActivationQuant other : kKinds) {
      std::vector<double> wrong = oracle(other, x), moved = oracle(kind, shifted);
      int differ = 0, moved_differ = 0;
      for (std::size_t i = 0; i + 1 < x.size(); ++i) {
        differ += wrong[i] != expected[i];
        moved_differ += moved[i] != expected[i + 1];
      }
      if (other != kind) {
        EXPECT_GT(differ, 50) << to_string(kind) << " " << to_string(other);
      }
      if (kind == ActivationQuant::kMxfp8 || kind == ActivationQuant::kNvfp4) {
        EXPECT_GT(moved_differ, 2) << "blocks start at the row's start";
      }
    }
  }
}

TEST(QuantizeRow, ZeroRowsAndSignsOfZero) {
  for (ActivationQuant kind : kKinds) {
    Floats zeros(130, 0.0f);
    zeros[7] = -0.0f;
    Row r = run(kind, zeros);
    for (std::size_t i = 0; i < zeros.size(); ++i) {
      EXPECT_EQ(r.dequantised(kind, i), 0) << to_string(kind);
      if (kind == ActivationQuant::kMxfp8 || kind == ActivationQuant::kNvfp4) {
        EXPECT_EQ(r.values[i], 0);
      } else {
        EXPECT_EQ(r.values[i], i == 7 ? 0x8000 : 0);
      }
    }
  }
}

TEST(QuantizeRow, ANanReachesItsBlockAndNothingElse) {
  const std::pair<ActivationQuant, std::size_t> widths[] = {
      {ActivationQuant::kNone, 1},
      {ActivationQuant::kFp8Block128, 128},
      {ActivationQuant::kFp8Token, 300},
      {ActivationQuant::kFp8Tensor, 1},
      {ActivationQuant::kMxfp8, 32},
      {ActivationQuant::kNvfp4, 16},
      {ActivationQuant::kFp8Block128Ue8m0, 128}};
  Floats x = test::normal_values(300, 13);
  for (auto [kind, width] : widths) {
    Row clean = run(kind, x);
    Floats y = x;
    y[150] = -kNan;
    Row r = run(kind, y);
    for (std::size_t i = 0; i < x.size(); ++i) {
      bool hit = i / width == 150 / width;
      EXPECT_EQ(std::isnan(r.dequantised(kind, i)), hit) << to_string(kind) << " " << i;
      if (!hit) {
        EXPECT_EQ(r.values[i], clean.values[i]);
      }
    }
    EXPECT_EQ(mismatches(kind, y), 0);
    y[150] = kInf;
    // MXFP8's saturated 448 * 2^120 is past bf16, where the fold rule makes it infinity again.
    EXPECT_EQ(mismatches(kind, y), kind == ActivationQuant::kMxfp8 ? 1 : 0) << to_string(kind);
    if (kind == ActivationQuant::kMxfp8) {
      EXPECT_EQ(run(kind, y).values[150], 0x7f80);
    }
  }
}

TEST(QuantizeRow, Mxfp8RoundsOnlyWhereTheFoldRuleSays) {
  Floats x = test::normal_values(32, 31);
  for (int e = -149; e <= 120; e += 3) {
    Floats scaled;
    float largest = 0;
    for (float v : x) {
      scaled.push_back(float(std::ldexp(double(v), e)));
      largest = std::max(largest, std::fabs(scaled.back()));
    }
    if (largest > 448 * 0x1p-125f) {
      EXPECT_EQ(mismatches(ActivationQuant::kMxfp8, scaled), 0) << e;
    }
    Row r = run(ActivationQuant::kMxfp8, scaled);
    std::vector<double> expected = oracle(ActivationQuant::kMxfp8, scaled);
    for (std::size_t i = 0; i < 32; ++i)
      EXPECT_NEAR(r.dequantised(ActivationQuant::kMxfp8, i), expected[i], 0x1p-134) << e;
  }
}

TEST(QuantizeRow, FloorsStaticScalesAndRowScales) {
  Floats tiny(128, 5e-5f);
  EXPECT_EQ(run(ActivationQuant::kFp8Block128, tiny).block_scales[0], 1e-4f / 448);
  EXPECT_EQ(run(ActivationQuant::kFp8Token, tiny).row_scale, 1e-4f / 448);
  EXPECT_EQ(run(ActivationQuant::kFp8Block128Ue8m0, tiny).block_scales[0], 0x1p-22f);
  EXPECT_EQ(run(ActivationQuant::kFp8Tensor, tiny, .25f).row_scale, .25f);
  EXPECT_EQ(run(ActivationQuant::kNvfp4, tiny, .25f).row_scale, .25f);
  EXPECT_EQ(run(ActivationQuant::kMxfp8, tiny).row_scale, 1);
  EXPECT_EQ(run(ActivationQuant::kNone, tiny).row_scale, 1);
  EXPECT_EQ(run(ActivationQuant::kFp8Block128, tiny).row_scale, 1);
  Floats big(4, 1e6f);
  Row saturated = run(ActivationQuant::kFp8Tensor, big, 1);
  EXPECT_EQ(bf16_to_float(saturated.values[0]), 448);
}

/// Codes x scales in the public form, decoded by the slow codec.
double decode_public(ActivationQuant kind, const std::uint8_t* codes, const std::uint8_t* scales,
                     std::size_t i, float static_scale) {
  auto fp32 = [&](std::size_t at) {
    float f;
    std::memcpy(&f, scales + 4 * at, 4);
    return double(f);
  };
  switch (kind) {
    case ActivationQuant::kNone: {
      std::uint16_t bits;
      std::memcpy(&bits, codes + 2 * i, 2);
      return bf16_to_float(bits);
    }
    case ActivationQuant::kFp8Block128:
    case ActivationQuant::kFp8Block128Ue8m0:
      return test::slow_decode_e4m3(codes[i]) * fp32(i / 128);
    case ActivationQuant::kFp8Token:
      return test::slow_decode_e4m3(codes[i]) * fp32(0);
    case ActivationQuant::kFp8Tensor:
      return test::slow_decode_e4m3(codes[i]) * double(static_scale);
    case ActivationQuant::kMxfp8:
      return test::slow_decode_e4m3(codes[i]) * test::slow_e8m0(scales[i / 32]);
    default:
      return test::slow_decode_e2m1(std::uint8_t(codes[i / 2] >> (i % 2 * 4) & 15)) *
             test::slow_decode_e4m3(scales[i / 16]) * double(static_scale);
  }
}

TEST(QuantizeRowsToCodes, DecodeToTheSameValuesAsTheRows) {
  for (ActivationQuant kind : kKinds) {
    for (std::int64_t cols : {2, 34, 128, 258, 720}) {
      std::int64_t rows = 3;
      Floats x = test::normal_values(std::size_t(rows * cols), unsigned(cols));
      x[std::size_t(cols + 1)] = kNan;
      std::size_t code_bytes = std::size_t(activation_code_bytes(kind, cols));
      std::size_t scale_bytes = std::size_t(activation_scale_bytes(kind, cols));
      std::vector<std::uint8_t> codes(3 * code_bytes + 4, 0xee), scales(3 * scale_bytes + 5, 0xee);
      quantize_rows_to_codes({.kind = kind,
                              .x = x.data(),
                              .rows = rows,
                              .cols = cols,
                              .static_scale = kStatic,
                              .codes = codes.data(),
                              .scales = scales.data() + 1});  // fp32 scales at an odd address
      EXPECT_EQ(codes.back(), 0xee);
      EXPECT_EQ(scales.back(), 0xee);
      for (std::size_t r = 0; r < 3; ++r) {
        Floats row(x.begin() + std::ptrdiff_t(r) * cols, x.begin() + std::ptrdiff_t(r + 1) * cols);
        std::vector<double> expected = oracle(kind, row);
        for (std::size_t i = 0; i < row.size(); ++i)
          EXPECT_TRUE(same(decode_public(kind, codes.data() + r * code_bytes,
                                         scales.data() + 1 + r * scale_bytes, i, kStatic),
                           expected[i]))
              << to_string(kind) << " " << cols << " " << i;
      }
    }
  }
}

// Wherever it runs, the quantiser gives the portable tier's bits; a NaN may have another sign.
TEST(QuantizeRow, EveryTierHasTheSameBits) {
  constexpr std::size_t kGuards = 32;
  for (ActivationQuant kind : kKinds)
    for (std::int64_t cols : {1, 17, 33, 130, 720}) {
      Floats x = test::normal_values(std::size_t(cols), unsigned(cols) + 3);
      x[0] = -0.0F;
      if (cols > 100) x[100] = kInf, x[40] = std::nanf(""), x[64] = 0x1p-130F, x[2] = 1e30F;
      const std::size_t n = std::size_t(cols), blocks = (n + 127) / 128;
      std::vector<std::uint16_t> want(n, 0xeeee);
      Floats want_scales(blocks, -7);
      float want_row = -1;
      quantize_row_cpu({kind, x.data(), cols, kStatic, want.data(), want_scales.data(), &want_row});
      for (CpuIsa isa : test::runnable_tiers()) {
        SCOPED_TRACE(cat(to_string(kind), ", ", cols, " columns, ", to_string(isa)));
        // Poisoned for each tier, so that one that writes nothing shows; guards lie behind.
        std::vector<std::uint16_t> got(n + kGuards, 0xdddd);
        Floats got_scales(blocks + kGuards, -7);
        float got_row = -2;
        const QuantizeRowArgs args = {kind,       x.data(),          cols,    kStatic,
                                      got.data(), got_scales.data(), &got_row};
        if (isa == CpuIsa::kAvx512) {
          quantize_row_avx512(args);  // itself, not what a dispatch may give in its place
        } else {
          quantize_row_cpu(args, isa);
        }
        for (std::size_t i = 0; i < n; ++i)
          EXPECT_TRUE(got[i] == want[i] ||
                      (std::isnan(bf16_to_float(got[i])) && std::isnan(bf16_to_float(want[i]))))
              << i;
        EXPECT_EQ(std::memcmp(got_scales.data(), want_scales.data(), blocks * 4), 0);
        EXPECT_EQ(std::memcmp(&got_row, &want_row, 4), 0);
        for (std::size_t i = 0; i < kGuards; ++i) {
          EXPECT_EQ(got[n + i], 0xdddd);
          EXPECT_EQ(got_scales[blocks + i], -7);
        }
      }
    }
}

// What a receiver reads out of codes: every bit that the quantiser of rows gives.
TEST(DecodeRow, GivesTheBitsOfTheRowQuantiser) {
  for (ActivationQuant kind : kKinds)
    for (std::int64_t cols : {2, 34, 128, 258, 720}) {
      Floats x = test::normal_values(std::size_t(cols), unsigned(cols) + 7);
      x[0] = -0.0F;
      std::fill(x.begin() + cols / 2, x.begin() + std::min<std::int64_t>(cols, cols / 2 + 40),
                0.0F);
      if (cols > 200) x[150] = kInf;
      const std::size_t n = std::size_t(cols), blocks = (n + 127) / 128;
      std::vector<std::uint16_t> want(n, 0xeeee), got(n + 1, 0xeeee);
      Floats want_scales(blocks, -7), got_scales(blocks, -7);
      float want_row = -1, got_row = -1;
      quantize_row_cpu({kind, x.data(), cols, kStatic, want.data(), want_scales.data(), &want_row});
      std::vector<std::uint8_t> codes(std::size_t(activation_code_bytes(kind, cols)));
      std::vector<std::uint8_t> scales(std::size_t(activation_scale_bytes(kind, cols)) + 1);
      quantize_rows_to_codes({kind, x.data(), 1, cols, kStatic, codes.data(), scales.data() + 1});
      decode_row_cpu({kind, codes.data(), scales.data() + 1, cols, kStatic, got.data(),
                      got_scales.data(), &got_row});
      for (std::size_t i = 0; i < n; ++i) {
        // An infinite scale stands beside codes that it turns into NaN, whichever they are.
        const bool blocks =
            kind == ActivationQuant::kFp8Block128 || kind == ActivationQuant::kFp8Block128Ue8m0;
        const float scale = blocks ? want_scales[i / 128] : want_row;
        const bool both_nan =
            std::isnan(bf16_to_float(want[i]) * scale) && std::isnan(bf16_to_float(got[i]) * scale);
        EXPECT_TRUE(both_nan || want[i] == got[i]) << to_string(kind) << " " << cols << " " << i;
      }
      EXPECT_EQ(got[n], 0xeeee) << "no further than the row";
      EXPECT_EQ(got_row, want_row) << to_string(kind);
      for (std::size_t b = 0; b < blocks; ++b)
        EXPECT_TRUE(same(got_scales[b], want_scales[b])) << to_string(kind) << " " << b;
    }
}

TEST(QuantizeErrors, OneLineEachAndAGoodCallAfterwards) {
  Floats x = test::normal_values(32, 1);
  std::vector<std::uint16_t> values(32);
  Floats scales(1);
  float row_scale;
  QuantizeRowArgs good{ActivationQuant::kNvfp4, x.data(),      32,        1,
                       values.data(),           scales.data(), &row_scale};
  for (float bad : {0.0f, -1.0f, kNan, kInf, 0x1p-127f}) {
    for (ActivationQuant kind : {ActivationQuant::kNvfp4, ActivationQuant::kFp8Tensor}) {
      QuantizeRowArgs args = good;
      args.kind = kind;
      args.static_scale = bad;
      EXPECT_NE(test::usage_error_or_empty([&] { quantize_row_cpu(args); }).find(to_string(kind)),
                std::string::npos);
      std::vector<double> out(32);
      EXPECT_NE(test::usage_error_or_empty([&] { quantize_row_ref(args, out.data()); }), "");
    }
    EXPECT_EQ(mismatches(ActivationQuant::kMxfp8, x, bad), 0) << "reads no static scale";
  }
  QuantizeRowArgs args = good;
  args.cols = -1;
  EXPECT_NE(test::usage_error_or_empty([&] { quantize_row_cpu(args); }).find("-1"),
            std::string::npos);
  auto broken = [&](auto change) {
    QuantizeRowArgs a = good;
    change(a);
    EXPECT_THROW(quantize_row_cpu(a), InternalError);
  };
  broken([](auto& a) { a.kind = ActivationQuant::kF32; });
  broken([](auto& a) { a.x = nullptr; });
  broken([](auto& a) { a.values = nullptr; });
  broken([](auto& a) { a.row_scale = nullptr; });
  broken([](auto& a) {
    a.kind = ActivationQuant::kFp8Block128;
    a.block_scales = nullptr;
  });
  quantize_row_cpu(good);
  std::uint8_t bytes[64];
  EXPECT_NE(test::usage_error_or_empty([&] {
              quantize_rows_to_codes({ActivationQuant::kNvfp4, x.data(), 1, 31, 1, bytes, bytes});
            }).find("31"),
            std::string::npos);
}

}  // namespace
}  // namespace switchyard::ops
