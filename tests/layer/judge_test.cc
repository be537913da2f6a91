// SPDX-License-Identifier: Apache-2.0
// The judge itself: what it must let pass, and what it must not.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <memory>

#include "switchyard/api/layer_builder.h"
#include "switchyard/base/random.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/layer/oracle.h"
#include "tests/cases/leaf_case.h"

namespace switchyard::layer {
namespace {

using test::Call;

const leaves::Leaf& leaf_of(const char* format) {
  return *leaves::find_leaf(format, Device::kCpu).leaf;
}

MoeLayer make_layer(const Problem& p, const leaves::Leaf& leaf, Dtype dtype) {
  BuildOptions o;
  o.dtype = dtype;
  return test::build_layer(test::make_weights(p, leaf), o, test::runnable_tiers().back());
}

// Outputs below the dtype's smallest normal number round by a fixed step, which no relative budget
// covers; a factor that is twice too large is still caught.
TEST(Judge, AllowsTheStepOfSubnormalOutputsAndNoMore) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32, Dtype::kFp16}) {
    Problem p = test::small_problem(leaf_of("none"));
    p.routed_scaling_factor = dtype == Dtype::kFp16  ? 1e-7f
                              : dtype == Dtype::kF32 ? 1e-43f
                                                     : 1e-39f;
    const MoeLayer layer = make_layer(p, leaf_of("none"), dtype);
    const Judgement j = test::judge(layer, 9);
    EXPECT_TRUE(j.ok(test::budgets_of(layer))) << to_string(dtype) << " " << j.rel_l2_oracle;
    Problem twice = p;
    twice.routed_scaling_factor *= 2;
    const MoeLayer other = make_layer(twice, leaf_of("none"), dtype);
    const Judgement o = test::judge(other, 9);
    EXPECT_GT(rel_l2(o.out.data(), j.out.data(), o.out.size(), rounding_slack(dtype)),
              10 * test::budgets_of(layer).oracle)
        << to_string(dtype);
  }
}

/// The values that rows of 128 have behind the quantiser of fp8_block_scales.
std::vector<double> quantised(const std::vector<float>& x) {
  std::vector<double> out;
  for (std::size_t i = 0; i < x.size(); i += 128) {
    std::uint8_t codes[128];
    float scale = 0;
    formats::quantize_row_fp8_block(x.data() + i, 128, false, codes, &scale);
    for (std::uint8_t c : codes) out.push_back(double(formats::decode_e4m3(c)) * double(scale));
  }
  return out;
}

// What sums of E4M3 are off by flips fewer codes than the allowance, what their budget is flips
// more.
TEST(Judge, FlipsOfE4m3SumsAreThoseOfASmallMove) {
  const Random random(7, 1);
  constexpr std::int64_t kRows = 200;
  const auto share = [&](float move) {
    std::vector<float> x, moved;
    for (std::uint64_t i = 0; i < 128 * kRows; ++i) {
      x.push_back(random.normal(i));
      moved.push_back(x.back() + move * random.normal(i + (1 << 20)));
    }
    const std::vector<double> a = quantised(x), b = quantised(moved);
    std::vector<std::uint8_t> flipped(kRows);
    std::int64_t flips = 0;
    for (std::size_t r = 0; r < kRows; ++r) flips += find_flips({a, b, 128, 1e-2}, r, flipped);
    return double(flips) / double(a.size());
  };
  EXPECT_LE(share(1e-4f), kE4m3Flips);
  EXPECT_GT(share(1e-4f), 10 * kCodeFlips) << "why fp32's share does not do";
  EXPECT_GT(share(2e-3f), kE4m3Flips) << "the control";
}

// One field out of bounds at a time: each of them alone is a no.
TEST(Judge, EachFaultAloneIsANo) {
  Budgets b{};
  b.oracle = 5e-3;
  Judgement good;
  good.rel_l2_oracle = 5e-3;
  good.codes = 30000;
  good.codes_differing = 3;
  EXPECT_TRUE(good.ok(b));
  auto spoilt = [&](auto change) {
    Judgement j = good;
    change(j);
    return j.ok(b);
  };
  EXPECT_FALSE(spoilt([](Judgement& j) { j.rel_l2_oracle = 5.01e-3; }));
  EXPECT_FALSE(spoilt([](Judgement& j) { j.rel_l2_oracle = std::nan(""); }));
  EXPECT_FALSE(spoilt([](Judgement& j) { j.ids_differing = 1; }));
  EXPECT_FALSE(spoilt([](Judgement& j) { j.codes_differing = 4; }));
  EXPECT_TRUE(spoilt([](Judgement& j) { j.ids_near_tie = 9; })) << "near ties are counted only";
  EXPECT_TRUE(spoilt([](Judgement& j) { j.codes = 10, j.codes_differing = 1; }));
  EXPECT_FALSE(spoilt([](Judgement& j) { j.codes = 10, j.codes_differing = 2; }));
}

// The oracle is given other weights than the leaf packed: in every format the verdict is a no, so
// neither the flips nor the leaf's own codes can talk a wrong layer into passing.
TEST(Judge, ALayerThatPackedOtherWeightsFails) {
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu)) {
    const auto swapped = std::make_shared<bool>(false);
    checkpoint::LayerWeights w = test::make_weights(test::small_problem(*leaf), *leaf);
    w.expert = [source = w.expert, swapped](std::int64_t e) {
      checkpoint::ExpertWeights expert = source(e);
      if (*swapped && e == 2) std::swap(*expert.gate, expert.up);
      return expert;
    };
    const MoeLayer layer = test::build_layer(std::move(w), {}, test::runnable_tiers().back());
    EXPECT_TRUE(test::judge(layer, 32).ok(test::budgets_of(layer))) << leaf->id.quant;
    *swapped = true;
    EXPECT_FALSE(test::judge(layer, 32).ok(test::budgets_of(layer))) << leaf->id.quant;
  }
}

TEST(Judge, SlackIsTakenOffEachDifference) {
  const double y[] = {1, 2, 3}, r[] = {1.25, 2, 2};
  EXPECT_EQ(rel_l2(y, r, 3, 1), 0);
  EXPECT_DOUBLE_EQ(rel_l2(y, r, 3, 0.25), 0.75 / std::sqrt(1.25 * 1.25 + 8));
  EXPECT_DOUBLE_EQ(rel_l2(y, r, 3), rel_l2(y, r, 3, 0));
  const double bad[] = {1, std::nan(""), 3};
  EXPECT_TRUE(std::isnan(rel_l2(bad, r, 3, 1)));
}

// The shared expert's codes are counted, and where one flips the oracle goes on from the leaf's.
TEST(Judge, CountsTheSharedExpertsCodes) {
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu)) {
    Problem p = test::small_problem(*leaf);
    const MoeLayer plain = make_layer(p, *leaf, Dtype::kBf16);
    p.num_shared = 1, p.shared_inter = 64;
    const MoeLayer shared = make_layer(p, *leaf, Dtype::kBf16);
    const bool quantises = budgets_of(leaf->activation).output > 0.05;
    EXPECT_EQ(test::judge(plain, 9).codes, quantises ? 9 * 3 * 96 : 0) << leaf->id.str();
    EXPECT_EQ(test::judge(shared, 9).codes, quantises ? 9 * 3 * 96 + 9 * 64 : 0);
  }
}

TEST(Judge, TheOracleReadsTheGivenSharedCodes) {
  const leaves::Leaf& leaf = leaf_of("nvfp4");
  Problem p = test::small_problem(leaf);
  p.num_shared = 1, p.shared_inter = 64;
  const MoeLayer layer = make_layer(p, leaf, Dtype::kF32);
  Call call(layer.impl(), 3);
  const OracleArgs ask{
      .tokens = 3, .hidden = call.exact.data(), .token_ids = nullptr, .logits = {}};
  const OracleResult own = run_oracle(layer.impl(), ask);
  ASSERT_EQ(own.shared_inter.size(), 3u * 64);
  std::vector<double> given = own.shared_inter;
  for (std::size_t i = 64; i < 128; ++i) given[i] += 1;
  const std::uint8_t use[] = {0, 1, 0};
  OracleArgs other = ask;
  other.leaf_shared_inter = given.data();
  other.use_leaf_shared_inter = use;
  const OracleResult changed = run_oracle(layer.impl(), other);
  for (std::size_t t = 0; t < 3; ++t)
    EXPECT_EQ(std::equal(own.out.begin() + std::ptrdiff_t(t * 160),
                         own.out.begin() + std::ptrdiff_t((t + 1) * 160),
                         changed.out.begin() + std::ptrdiff_t(t * 160)),
              t != 1);
}

TEST(Judge, NamesTheWorstRow) {
  const MoeLayer layer =
      make_layer(test::small_problem(leaf_of("none")), leaf_of("none"), Dtype::kBf16);
  const Judgement j = test::judge(layer, 9);
  Call call(layer.impl(), 9);
  const std::vector<double> oracle =
      run_oracle(layer.impl(),
                 {.tokens = 9, .hidden = call.exact.data(), .token_ids = nullptr, .logits = {}})
          .out;
  double worst = 0;
  std::int64_t row = -1;
  for (std::int64_t t = 0; t < 9; ++t) {
    const double d = rel_l2(j.out.data() + t * 160, oracle.data() + t * 160, 160);
    if (d > worst) worst = d, row = t;
  }
  EXPECT_EQ(j.worst_row, row);
  EXPECT_DOUBLE_EQ(j.worst_row_rel_l2, worst);
}

}  // namespace
}  // namespace switchyard::layer
