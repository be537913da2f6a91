// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/route/router_gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "switchyard/base/errors.h"
#include "switchyard/ops/route/router_dots.h"
#include "tests/cases/moe_case.h"

namespace switchyard::ops {
namespace {

constexpr float kPoison = -1.25e30f;

/// Seeded operands; x has padded rows of NaN, logits a padded stride.
struct GemmCase {
  GemmCase(Dtype type, std::int64_t t, std::int64_t e, std::int64_t h, bool with_bias)
      : dtype(type), rows(t), experts(e), hidden(h), x_stride(h + 3), stride(e + 2) {
    std::mt19937 random(unsigned(t * 131 + e * 17 + h));
    std::normal_distribution<float> spread(0, 1);
    x.resize(std::size_t(rows * x_stride) * size_of(dtype));
    for (std::int64_t i = 0; i < rows * x_stride; ++i)
      store_element(dtype, x.data(), i, i % x_stride < hidden ? spread(random) : NAN);
    for (std::int64_t i = 0; i < e * h; ++i) weight.push_back(spread(random));
    for (std::int64_t i = 0; with_bias && i < e; ++i) bias.push_back(spread(random));
    logits.assign(std::size_t(rows * stride), kPoison);
  }

  RouterGemmArgs args() {
    return {.dtype = dtype,
            .x = x.data(),
            .x_stride = x_stride,
            .hidden = hidden,
            .weight = weight.data(),
            .bias = bias.empty() ? nullptr : bias.data(),
            .isa = isa,
            .logits = {logits.data(), rows, experts, stride}};
  }

  std::vector<float> run_cpu(RouterTile tile) {
    logits.assign(logits.size(), kPoison);
    args().check();
    router_gemm_cpu(args(), tile);
    return logits;
  }
  std::vector<float> run_cpu() { return run_cpu({0, rows, 0, experts}); }

  std::vector<float> run_ref() {
    logits.assign(logits.size(), kPoison);
    router_gemm_ref(args());
    return logits;
  }

  CpuIsa isa = CpuIsa::kPortable;
  Dtype dtype;
  std::int64_t rows, experts, hidden, x_stride, stride;
  std::vector<std::byte> x;
  std::vector<float> weight, bias, logits;
};

double relative_l2(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (want[i] == kPoison && got[i] == kPoison) continue;
    difference += std::pow(double(got[i]) - double(want[i]), 2);
    size += std::pow(double(want[i]), 2);
  }
  return size == 0 ? difference : std::sqrt(difference / size);
}

constexpr double kBound = 1e-6;  // 16 lanes halve the depth of the sum several times

TEST(RouterGemm, CpuMatchesOracleOverDtypesAndShapes) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kFp16})
    for (std::int64_t hidden : {1, 15, 16, 17, 96, 511, 512, 513, 2880})
      for (std::int64_t experts : {1, 2, 3, 31, 128, 257}) {
        GemmCase c(dtype, 3, experts, hidden, experts % 2 == 1);
        SCOPED_TRACE(std::string(to_string(dtype)) + " H " + std::to_string(hidden) + " E " +
                     std::to_string(experts));
        const std::vector<float> want = c.run_ref();
        EXPECT_LE(relative_l2(c.run_cpu(), want), kBound);
      }
}

TEST(RouterGemm, BoundCatchesARoundedInputAndALostBias) {
  GemmCase c(Dtype::kF32, 4, 32, 256, true);
  const std::vector<float> want = c.run_ref();
  GemmCase rounded = c;
  auto* x = reinterpret_cast<float*>(rounded.x.data());
  for (std::int64_t i = 0; i < c.rows * c.x_stride; ++i) x[i] = bf16_to_float(float_to_bf16(x[i]));
  EXPECT_GT(relative_l2(rounded.run_cpu(), want), 100 * kBound);
  GemmCase unbiased = c;
  unbiased.bias.clear();
  EXPECT_GT(relative_l2(unbiased.run_cpu(), want), 1000 * kBound);
}

TEST(RouterGemm, BitsDoNotDependOnTheBatchNorOnTheTile) {
  GemmCase c(Dtype::kBf16, 9, 301, 1100, true);
  const std::vector<float> whole = c.run_cpu();
  c.logits.assign(c.logits.size(), kPoison);
  for (std::int64_t t = 0; t < 9; ++t)
    for (std::int64_t e = 0; e < 301; e += 43) router_gemm_cpu(c.args(), {t, t + 1, e, e + 43});
  EXPECT_EQ(c.logits, whole);
}

TEST(RouterGemm, EveryTierHasTheSameBits) {
  if (test::runnable_tiers().back() < CpuIsa::kAvx512) GTEST_SKIP() << "needs AVX-512";
  // Else the comparison below would be one of a twin with itself.
  ASSERT_TRUE(router_dots_twin(CpuIsa::kAvx512) != &router_dots_portable);
  ASSERT_TRUE(router_dots_twin(CpuIsa::kPortable) == &router_dots_portable);
  for (std::int64_t hidden : {1, 15, 16, 31, 512, 517, 1100})
    for (std::int64_t experts : {1, 7, 8, 9, 301}) {
      GemmCase c(Dtype::kBf16, 3, experts, hidden, true);
      const std::vector<float> portable = c.run_cpu();
      c.isa = CpuIsa::kAvx512;
      EXPECT_EQ(c.run_cpu(), portable) << hidden << " " << experts;
    }
}

TEST(RouterGemm, WritesItsTileOnly) {
  GemmCase c(Dtype::kBf16, 3, 9, 40, false);
  const std::vector<float> got = c.run_cpu({1, 2, 2, 5});
  for (std::int64_t t = 0; t < 3; ++t)
    for (std::int64_t e = 0; e < c.stride; ++e)
      EXPECT_EQ(got[std::size_t(t * c.stride + e)] != kPoison, t == 1 && e >= 2 && e < 5);
}

TEST(RouterGemm, NoRowsIsLegal) {
  GemmCase c(Dtype::kBf16, 0, 8, 32, true);
  EXPECT_NO_THROW(c.run_cpu());
  EXPECT_NO_THROW(c.run_ref());
}

TEST(RouterGemm, CheckNamesWhatIsWrongAndAGoodCallFollows) {
  GemmCase c(Dtype::kBf16, 2, 4, 8, false);
  const auto refused = [&](const RouterGemmArgs& args, const char* text) {
    try {
      router_gemm_ref(args);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(text));
    }
    EXPECT_NO_THROW(c.run_ref());
  };
  RouterGemmArgs bad = c.args();
  bad.hidden = 0;
  refused(bad, "hidden is 0");
  bad = c.args();
  bad.x_stride = 7;
  refused(bad, "row stride of x is 7");
  bad = c.args();
  bad.logits.stride = 3;
  refused(bad, "row stride of logits is 3");
  bad = c.args();
  bad.weight = nullptr;
  refused(bad, "weight is null");
  bad = c.args();
  bad.x = nullptr;
  refused(bad, "x or logits is null");
}

}  // namespace
}  // namespace switchyard::ops
