// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/float_math.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

namespace switchyard {
namespace {

/// Largest error in units of the result's last place over a sweep of all float exponents.
template <class F, class G>
double worst_ulp(F f, G exact, float low, float high) {
  double worst = 0;
  constexpr std::uint64_t kStride = 4057;  // prime: hits every exponent with changing low bits
  for (std::uint64_t i = 0; i < (1ull << 32); i += kStride) {
    const float x = float_of(std::uint32_t(i));
    if (!(x >= low && x <= high)) continue;
    const double want = exact(double(x));
    if (std::fabs(want) > double(FLT_MAX)) {
      if (!std::isinf(f(x))) return HUGE_VAL;
      continue;
    }
    const float size = float(std::fabs(want));
    const double ulp = double(std::nextafter(size, HUGE_VALF)) - double(size);
    const double error = std::fabs(double(f(x)) - want) / ulp;
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

double exact_sigmoid(double x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

TEST(FloatMath, ExpKeepsTwoUlp) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LE(worst_ulp([](float x) { return exp_float(x); }, exact, -200, 88.7f), 2);
  EXPECT_EQ(exp_float(-HUGE_VALF), 0);
  EXPECT_EQ(exp_float(HUGE_VALF), HUGE_VALF);
  EXPECT_EQ(exp_float(0), 1);
  // The bound sees a last bit that is wrong by more than two places.
  const auto worse = [](float x) { return exp_float(x) * (1 + 4 * FLT_EPSILON); };
  EXPECT_GT(worst_ulp(worse, exact, -80, 80), 2);
}

TEST(FloatMath, SigmoidKeepsThreeUlpOnBothTails) {
  EXPECT_LE(worst_ulp([](float x) { return sigmoid_float(x); }, exact_sigmoid, -200, 200), 3);
  // The common tanh form loses the lower tail.
  const auto by_tanh = [](float x) { return 0.5f * std::tanh(0.5f * x) + 0.5f; };
  EXPECT_GT(worst_ulp(by_tanh, exact_sigmoid, -20, 20), 1000);
}

TEST(FloatMath, TanhKeepsTwoUlpNearZeroToo) {
  const auto exact = [](double x) { return std::tanh(x); };
  EXPECT_LE(worst_ulp([](float x) { return tanh_float(x); }, exact, -FLT_MAX, FLT_MAX), 2);
  const auto by_sigmoid = [](float x) { return 2 * sigmoid_float(2 * x) - 1; };
  EXPECT_GT(worst_ulp(by_sigmoid, exact, -1, 1), 1000);
}

TEST(FloatMath, NormalDistributionKeepsItsLowerTail) {
  const auto exact = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  EXPECT_LE(worst_ulp([](float x) { return normal_cdf_float(x); }, exact, -100, 100), 6);
  const auto by_erf = [](float x) { return 0.5f * (1 + std::erf(x * 0.70710678f)); };
  EXPECT_GT(worst_ulp(by_erf, exact, -6, 6), 1000);
}

TEST(FloatMath, SoftplusRootNeverOverflowsAndKeepsItsTail) {
  const auto exact = [](double x) {
    return std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
  };
  EXPECT_LE(worst_ulp([](float x) { return sqrt_softplus_float(x); }, exact, -200, FLT_MAX), 3);
  const auto naive = [](float x) { return std::sqrt(std::log(1 + std::exp(x))); };
  EXPECT_GT(worst_ulp(naive, exact, -200, 100), 1000);
}

TEST(FloatMath, NanInGivesNanOut) {
  EXPECT_TRUE(std::isnan(exp_float(NAN)));
  EXPECT_TRUE(std::isnan(sigmoid_float(NAN)));
  EXPECT_TRUE(std::isnan(tanh_float(NAN)));
  EXPECT_TRUE(std::isnan(normal_cdf_float(NAN)));
  EXPECT_TRUE(std::isnan(log1p_unit(NAN)));
  EXPECT_TRUE(std::isnan(sqrt_softplus_float(NAN)));
}

}  // namespace
}  // namespace switchyard
