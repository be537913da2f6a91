// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/route/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <set>

#include "switchyard/base/errors.h"
#include "tests/support/route_case.h"

namespace switchyard::ops {
namespace {

using Method = RoutingMethodType;
using test::all_recipes;
using test::RouteCase;
using test::Routed;
using test::RouteError;

/// z - max rounds to half an ulp of at most 16 (8 units of 2^-24), the exponential and the score
/// take 5, the sum 6, the division and the scale 2; doubled.
constexpr double kBound = 42 * 0x1p-24;
/// Choice scores closer than this may fall either way in float.
constexpr double kGap = 1e-5;

struct Golden {
  const char* what;
  RoutingSpec spec;
  bool use_bias;
  std::vector<std::int32_t> ids;
  std::vector<double> weights;
};

std::vector<Golden> golden() {
  RoutingSpec v3 = make_routing(Method::kDeepSeekV3, 8, 3);
  v3.n_group = 4;
  v3.topk_group = 2;
  RoutingSpec v4_free = make_routing(Method::kDeepSeekV4, 8, 3);
  v4_free.choice_bias = false;
  const auto named = [](Method m, std::int64_t k = 3) { return make_routing(m, 8, k); };
  return {
      {"Default", named(Method::kDefault), false, {4, 7, 0}, {.547114, .201272, .074044}},
      {"Renormalize", named(Method::kRenormalize), false, {4, 7, 0}, {.665241, .244728, .090031}},
      {"Naive", named(Method::kRenormalizeNaive), false, {4, 7, 0}, {.665241, .244728, .090031}},
      {"Sigmoid", named(Method::kSigmoid), false, {4, 7, 0}, {.952574, .880797, .731059}},
      {"TopKSigmoid", named(Method::kTopKSigmoid), false, {4, 7, 0}, {.952574, .880797, .731059}},
      {"SigmoidRenorm",
       named(Method::kSigmoidRenorm),
       false,
       {4, 7, 0},
       {.371456, .343467, .285077}},
      {"MiniMax2", named(Method::kMiniMax2), true, {2, 6, 5}, {.117952, .615928, .266120}},
      {"DeepSeekV3", v3, true, {2, 0, 1}, {.075382, .462309, .462309}},
      {"Llama4", named(Method::kLlama4, 1), false, {4}, {.952574}},
      {"TopK", named(Method::kTopK), false, {4, 7, 0}, {3, 2, 1}},
      {"V4 without bias", v4_free, false, {4, 7, 0}, {.401347, .335234, .263419}},
      {"V4", named(Method::kDeepSeekV4), true, {2, 6, 0}, {.143126, .396494, .460379}},
      {"SparseMixer", named(Method::kSparseMixer, 2), false, {4, 7}, {1, 1}},
  };
}

TEST(Route, GoldenVectors) {
  for (const Golden& g : golden()) {
    SCOPED_TRACE(g.what);
    RouteCase c(g.spec, 1);
    c.set_row(0, {1, 1, -2, .5, 3, -1, .5, 2});
    if (g.use_bias) c.bias = {0, 0, 2, 0, -1, .5, .25, -1};
    for (const Routed& got : {c.run_cpu(), c.run_ref()}) {
      EXPECT_EQ(got.ids, g.ids);
      for (std::size_t j = 0; j < g.weights.size(); ++j)
        EXPECT_NEAR(got.weights[j], g.weights[j], 6e-7);
    }
  }
}

TEST(Route, CpuMatchesOracleOverMethodsAndShapes) {
  std::int64_t rows = 0, compared = 0;
  for (std::int64_t experts : {1, 2, 3, 5, 8, 20, 31, 33, 64, 160, 256, 384, 512, 2048})
    for (std::int64_t k : {1, 2, 3, 4, 6, 8, 10, 22, 32})
      for (const RoutingSpec& spec : all_recipes(experts, k)) {
        if (k > experts && k != 32) continue;  // 32 stands for k == E on small E
        SCOPED_TRACE(describe(spec));
        RouteCase c(spec, experts > 256 ? 3 : 6, unsigned(experts * 64 + k));
        const Routed want = c.run_ref();
        const RouteError error = compare(c, c.run_cpu(), want, c.gaps(), kGap);
        EXPECT_EQ(error.wrong_ids, 0);
        EXPECT_LE(error.worst_weight, kBound);
        rows += c.rows;
        compared += error.rows;
      }
  EXPECT_GT(compared, rows * 85 / 100) << "too many rows were too close to compare";
  RecordProperty("rows_too_close", int(rows - compared));
}

RoutingSpec grouped(Method m, std::int64_t e, std::int64_t k, std::int64_t groups,
                    std::int64_t kept) {
  RoutingSpec spec = make_routing(m, e, k);
  spec.n_group = groups;
  spec.topk_group = kept;
  return spec;
}

TEST(Route, GroupsMatchOracle) {
  const std::vector<RoutingSpec> specs = {
      grouped(Method::kDeepSeekV3, 256, 8, 8, 4), grouped(Method::kDeepSeekV2, 160, 6, 8, 3),
      grouped(Method::kDeepSeekV3, 8, 2, 8, 2),   grouped(Method::kDefault, 60, 4, 6, 2),
      grouped(Method::kSoftmaxBias, 64, 6, 4, 2), grouped(Method::kDeepSeekV4, 384, 22, 12, 5),
      grouped(Method::kTopK, 2048, 32, 1024, 16), grouped(Method::kRenormalize, 6, 6, 3, 3),
      grouped(Method::kMiniMax2, 512, 8, 1, 1),
  };
  for (const RoutingSpec& spec : specs) {
    SCOPED_TRACE(describe(spec));
    RouteCase c(spec, 40, 7);
    const Routed want = c.run_ref();
    const RouteError error = compare(c, c.run_cpu(), want, c.gaps(), kGap);
    EXPECT_EQ(error.wrong_ids, 0);
    EXPECT_LE(error.worst_weight, kBound);
    EXPECT_GT(error.rows, 30);
  }
}

/// Ids when a rejected group's scores become 0 instead of never winning.
std::set<std::int32_t> choose_with_zero_mask(RouteCase c) {
  const std::int64_t size = c.spec.num_experts / c.spec.n_group;
  c.spec.top_k = c.spec.topk_group * size;  // all experts of the kept groups
  const Routed kept = c.run_ref();
  std::vector<double> choice(static_cast<std::size_t>(c.num_ids), 0.0);
  for (std::int32_t id : kept.ids)
    choice[std::size_t(id)] =
        1 / (1 + std::exp(-double(c.logits[std::size_t(id)]))) + double(c.bias[std::size_t(id)]);
  std::vector<std::int32_t> order(choice.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return choice[std::size_t(a)] > choice[std::size_t(b)]; });
  return {order.begin(), order.begin() + 4};
}

TEST(Route, RejectedGroupsNeverWinWhenAllKeptScoresAreNegative) {
  RouteCase c(grouped(Method::kDeepSeekV3, 32, 4, 4, 2), 1, 3);
  for (float& b : c.bias) b = -2.5f + 0.25f * b;
  const Routed got = c.run_cpu(), want = c.run_ref();
  EXPECT_EQ(got.ids, want.ids);
  std::set<std::int32_t> groups;
  for (std::int32_t id : got.ids) {
    const double score = 1 / (1 + std::exp(-double(c.logits[std::size_t(id)])));
    EXPECT_LT(score + double(c.bias[std::size_t(id)]), 0) << "the case must be all negative";
    groups.insert(id / 8);
  }
  EXPECT_LE(groups.size(), 2u);
  // Control: the mask of 0.0 that some references use lets rejected experts in.
  EXPECT_NE(choose_with_zero_mask(c), std::set<std::int32_t>(got.ids.begin(), got.ids.end()));
}

TEST(Route, TiesGoToTheLowestIndexAndZeroHasNoSign) {
  for (const RoutingSpec& spec : all_recipes(70, 4)) {
    if (spec.choice == ChoiceRule::kHash) continue;
    SCOPED_TRACE(describe(spec));
    RouteCase c(spec, 3);
    std::fill(c.bias.begin(), c.bias.end(), 0.5f);
    c.set_row(0, {1});  // all equal
    c.set_row(1, {-0.0f, 0.0f, -0.0f, -0.0f, 0.0f, -1.0f});
    std::vector<float> late(70, -3.0f);
    late[41] = late[69] = late[5] = 2;  // across lane and vector boundaries
    late[68] = late[3] = 1;
    c.set_row(2, late);
    const std::vector<std::int32_t> want[] = {{0, 1, 2, 3}, {0, 1, 2, 3}, {5, 41, 69, 3}};
    for (const Routed& got : {c.run_cpu(), c.run_ref()})
      for (std::int64_t t = 0; t < 3; ++t)
        for (std::int64_t j = 0; j < spec.top_k; ++j)
          EXPECT_EQ(got.ids[std::size_t(t * spec.top_k + j)], want[t][std::size_t(j)]);
  }
}

TEST(Route, TheOtherTieRuleIsCaught) {
  // Reversing the experts turns "lowest index" into "highest index"; mapped back, ids must differ.
  RouteCase c(make_routing(Method::kRenormalize, 16, 4), 1);
  const std::vector<float> z = {1, 3, 2, 3, 2, 3, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0};
  c.set_row(0, z);
  const std::vector<std::int32_t> ids = c.run_cpu().ids;
  EXPECT_EQ(ids, (std::vector<std::int32_t>{1, 3, 5, 8}));
  c.set_row(0, {z.rbegin(), z.rend()});
  std::vector<std::int32_t> reversed = c.run_cpu().ids;
  for (std::int32_t& id : reversed) id = 15 - id;
  EXPECT_NE(reversed, ids);
}

TEST(Route, EqualGroupsGoToTheLowerGroup) {
  RouteCase c(grouped(Method::kDeepSeekV3, 12, 2, 4, 1), 1);
  c.set_row(0, {0, 1, 0, /**/ 2, 1, 0, /**/ 1, 2, 0, /**/ 2, 0, 1});
  std::fill(c.bias.begin(), c.bias.end(), -1.0f);
  EXPECT_EQ(c.run_cpu().ids, (std::vector<std::int32_t>{3, 4}));
  EXPECT_EQ(c.run_ref().ids, (std::vector<std::int32_t>{3, 4}));
}

TEST(Route, BiasChoosesButNeverWeighs) {
  for (Method m :
       {Method::kDeepSeekV3, Method::kMiniMax2, Method::kDeepSeekV4, Method::kSoftmaxBias}) {
    RouteCase c(make_routing(m, 64, 6), 20);
    const Routed want = c.run_ref();
    const std::vector<double> gaps = c.gaps();
    EXPECT_LE(compare(c, c.run_cpu(), want, gaps, kGap).worst_weight, kBound);
    // Control: the bias added to the logits reaches the weights too.
    RouteCase leak = c;
    for (std::int64_t t = 0; t < c.rows; ++t)
      for (std::int64_t i = 0; i < c.num_ids; ++i)
        leak.logits[std::size_t(t * c.stride + i)] += c.bias[std::size_t(i)];
    EXPECT_GT(compare(c, leak.run_cpu(), want, gaps, kGap).worst_weight, 1000 * kBound);
    // Control: a bias in bf16 chooses other experts.
    RouteCase coarse = c;
    for (float& b : coarse.bias) b = 8.0f + 0.004f * b;
    RouteCase rounded = coarse;
    for (float& b : rounded.bias) b = 8.0f;
    EXPECT_NE(coarse.run_cpu().ids, rounded.run_cpu().ids);
  }
}

std::vector<std::vector<float>> hostile_rows() {
  const float inf = HUGE_VALF, nan = NAN;
  return {{nan},
          {-inf},
          {nan, 2, nan, 1, nan},
          {nan, nan, nan, nan, nan, nan, nan, -50},
          {inf, 1, inf, 0, inf, -1},
          {inf},
          {-inf, 3, -inf, inf, nan, -3, -inf},
          {FLT_MAX, -FLT_MAX, FLT_MAX, 0},
          {-FLT_MAX},
          {1e-42f, -1e-42f, 1e-45f, 0, -0.0f},
          {200, 90, 0, -90, -200, -300},
          {-200, -201, -300, -110, -104, -1000},
          {-nan, inf, -inf, 0, nan, 5}};
}

void expect_sound(const RouteCase& c, const Routed& got, std::int64_t t) {
  const float* z = c.logits.data() + t * c.stride;
  const std::int64_t k = c.spec.top_k;
  const auto is_valid = [&](std::int32_t id) { return z[id] >= -FLT_MAX; };
  std::int64_t valid = 0;
  for (std::int32_t i = 0; i < c.num_ids; ++i) valid += is_valid(i);
  std::set<std::int32_t> seen;
  for (std::int64_t j = 0; j < k; ++j) {
    const std::int32_t id = got.ids[std::size_t(t * k + j)];
    const float w = got.weights[std::size_t(t * k + j)];
    ASSERT_TRUE(id >= 0 && id < c.num_ids) << id;
    EXPECT_TRUE(seen.insert(id).second) << "id " << id << " twice";
    EXPECT_TRUE(std::isfinite(w)) << w;
    EXPECT_TRUE(is_valid(id) || w == 0) << "weight " << w << " of id " << id;
    if (c.spec.choice == ChoiceRule::kHash) continue;
    EXPECT_EQ(is_valid(id), j < valid) << "slot " << j;
  }
}

TEST(Route, HostileRowsGiveDistinctIdsAndFiniteWeights) {
  const auto rows = hostile_rows();
  for (std::int64_t experts : {8, 33, 256})
    for (RoutingSpec spec : all_recipes(experts, 4)) {
      SCOPED_TRACE(describe(spec));
      RouteCase c(spec, std::int64_t(rows.size()));
      std::fill(c.bias.begin(), c.bias.end(), 0.25f);
      for (std::size_t t = 0; t < rows.size(); ++t) c.set_row(std::int64_t(t), rows[t]);
      const Routed got = c.run_cpu(), want = c.run_ref();
      for (std::int64_t t = 0; t < c.rows; ++t) {
        SCOPED_TRACE("row " + std::to_string(t));
        expect_sound(c, got, t);
        expect_sound(c, want, t);
      }
      const bool exact = !spec.choice_bias && spec.score != ScoreFunction::kSigmoid;
      EXPECT_TRUE(!exact || got.ids == want.ids);
      const RouteError error = compare(c, got, want, c.gaps(), kGap);
      EXPECT_EQ(error.wrong_ids, 0);
    }
}

TEST(Route, RowsShortOfValidScoresFillUpFromTheLowestUnusedIds) {
  RouteCase c(make_routing(Method::kRenormalize, 9, 5), 1);
  c.set_row(0, {NAN, NAN, 4, NAN, -HUGE_VALF, NAN, 5, NAN});
  for (const Routed& got : {c.run_cpu(), c.run_ref()}) {
    EXPECT_EQ(got.ids, (std::vector<std::int32_t>{6, 2, 0, 1, 3}));
    EXPECT_NEAR(got.weights[0] + got.weights[1], 1, 1e-6);
    for (int j : {2, 3, 4}) EXPECT_EQ(got.weights[std::size_t(j)], 0);
  }
}

TEST(Route, AGroupOfOneValidScoreRanksBetweenTwoAndNone) {
  RouteCase c(grouped(Method::kDeepSeekV3, 9, 2, 3, 2), 1);
  std::fill(c.bias.begin(), c.bias.end(), 0.0f);
  c.set_row(0, {NAN, NAN, NAN, /**/ NAN, 9, NAN, /**/ -3, -4, NAN});
  for (const Routed& got : {c.run_cpu(), c.run_ref()})
    EXPECT_EQ(got.ids, (std::vector<std::int32_t>{4, 6}));
}

TEST(Route, SpecialBiasNeverWins) {
  RouteCase c(make_routing(Method::kMiniMax2, 6, 3), 1);
  c.set_row(0, {0});
  c.bias = {NAN, 1, -HUGE_VALF, 2, HUGE_VALF, 0};
  for (const Routed& got : {c.run_cpu(), c.run_ref()})
    EXPECT_EQ(got.ids, (std::vector<std::int32_t>{4, 3, 1}));
}

TEST(Route, SoftmaxOrderSurvivesUnderflow) {
  // exp() of the last three is 0 in float: ordering by probability would tie them.
  for (Method m : {Method::kDefault, Method::kRenormalizeNaive, Method::kLpNorm}) {
    RouteCase c(make_routing(m, 4, 4), 1);
    c.set_row(0, {-300, 0, -200, -250});
    EXPECT_EQ(c.run_cpu().ids, (std::vector<std::int32_t>{1, 2, 3, 0}));
  }
}

TEST(Route, LargeAndSmallLogitsKeepSoftplusFinite) {
  RouteCase c(make_routing(Method::kDeepSeekV4, 4, 4), 1);
  c.spec.choice_bias = false;
  c.spec.map = WeightMap::kNone;
  c.bias.clear();
  c.set_row(0, {10000, 89, -30, -90});
  const Routed got = c.run_cpu();
  const double want[] = {100, std::sqrt(89.0), std::exp(-15.0), std::exp(-45.0)};
  for (int j = 0; j < 4; ++j) EXPECT_NEAR(got.weights[std::size_t(j)] / want[j], 1, 1e-6);
}

TEST(Route, NoRowsIsLegalEvenWithNullPointers) {
  for (const RoutingSpec& spec : all_recipes(16, 2)) {
    RouteCase c(spec, 0);
    RouteArgs args = c.args();
    args.logits.data = nullptr;
    args.ids.data = nullptr;
    args.weights.data = nullptr;
    args.token_ids = nullptr;
    EXPECT_NO_THROW(args.check());
    EXPECT_NO_THROW(route_cpu(args, 0, 0));
    EXPECT_NO_THROW(route_ref(args));
  }
}

TEST(Route, ARowHasTheSameBitsAloneAndAmongOthers) {
  for (const RoutingSpec& spec : all_recipes(160, 6)) {
    RouteCase c(spec, 9);
    const Routed together = c.run_cpu();
    const Routed alone = c.run([](const RouteArgs& a) {
      for (std::int64_t t = a.logits.rows; t-- > 0;) route_cpu(a, t, t + 1);
    });
    EXPECT_EQ(alone.ids, together.ids);
    EXPECT_EQ(alone.weights, together.weights);
  }
}

TEST(Route, ZeroExpertsComeOutWithTheirIdAndWeight) {
  RoutingSpec spec = make_routing(Method::kSoftmaxBias, 12, 4);
  spec.zero_experts = 5;
  spec.map = WeightMap::kNone;
  spec.per_expert_scale = true;
  RouteCase c(spec, 30);
  for (float& b : c.bias) b *= 0.05f;
  const Routed got = c.run_cpu(), want = c.run_ref();
  const RouteError error = compare(c, got, want, c.gaps(), kGap);
  EXPECT_EQ(error.wrong_ids, 0);
  EXPECT_LE(error.worst_weight, kBound);
  const auto zeros =
      std::count_if(got.ids.begin(), got.ids.end(), [](auto id) { return id >= 12; });
  EXPECT_GT(zeros, 10);
  // The scale is the routed experts' alone: without it, weights of zero experts stay.
  RouteCase plain = c;
  plain.spec.per_expert_scale = false;
  plain.scale.clear();
  const Routed unscaled = plain.run_cpu();
  for (std::size_t i = 0; i < got.ids.size(); ++i)
    EXPECT_EQ(got.weights[i] == unscaled.weights[i], got.ids[i] >= 12) << i;
}

TEST(Route, HashTableChoosesAndScoresWeigh) {
  RoutingSpec spec = make_routing(Method::kHash, 16, 4);
  RouteCase c(spec, 10);
  const Routed got = c.run_cpu(), want = c.run_ref();
  for (std::int64_t t = 0; t < c.rows; ++t)
    for (std::int64_t j = 0; j < 4; ++j)
      EXPECT_EQ(got.ids[std::size_t(t * 4 + j)],
                c.table[std::size_t(c.tokens[std::size_t(t)] * 4 + j)]);
  EXPECT_LE(compare(c, got, want, c.gaps(), kGap).worst_weight, kBound);
  EXPECT_EQ(compare(c, got, want, c.gaps(), kGap).rows, c.rows);
}

TEST(Route, SparseMixerSharesWithEveryCloseLogit) {
  RoutingSpec spec = make_routing(Method::kSparseMixer, 32, 2);
  spec.jitter = 0.3f;
  RouteCase c(spec, 50);
  const Routed got = c.run_cpu(), want = c.run_ref();
  const RouteError error = compare(c, got, want, c.gaps(), kGap);
  EXPECT_EQ(error.wrong_ids, 0);
  EXPECT_LE(error.worst_weight, kBound);
  EXPECT_GT(error.rows, 40);
  EXPECT_LT(*std::min_element(got.weights.begin(), got.weights.end()), 0.6);
  // Control: the jitter of the published model shares with fewer.
  RouteCase other = c;
  other.spec.jitter = 0.01f;
  EXPECT_GT(compare(c, other.run_cpu(), want, c.gaps(), kGap).worst_weight, 1000 * kBound);
}

TEST(Route, LpNormOfTwoAndOthers) {
  for (float p : {1.0f, 2.0f, 3.5f}) {
    RoutingSpec spec = make_routing(Method::kLpNorm, 16, 4);
    spec.p = p;
    RouteCase c(spec, 8);
    const Routed got = c.run_cpu();
    EXPECT_LE(compare(c, got, c.run_ref(), c.gaps(), kGap).worst_weight, kBound);
    double norm = 0;
    for (int j = 0; j < 4; ++j) norm += std::pow(double(got.weights[std::size_t(j)]), double(p));
    EXPECT_NEAR(norm, 1, 1e-6);
  }
}

struct Refused {
  const char* text;
  Method method;
  void (*spoil)(RouteCase&, RouteArgs&);
};

constexpr Refused kRefused[] = {
    {"the routing spec is null", Method::kDefault, [](auto&, auto& a) { a.spec = nullptr; }},
    {"top_k is 40", Method::kDefault, [](auto& c, auto&) { c.spec.top_k = 40; }},
    {"logits is [5, 15]", Method::kDefault, [](auto&, auto& a) { a.logits.cols = 15; }},
    {"stride of logits is 15", Method::kDefault, [](auto&, auto& a) { a.logits.stride = 15; }},
    {"logits has -1 rows", Method::kDefault, [](auto&, auto& a) { a.logits.rows = -1; }},
    {"ids is [4, 2]", Method::kDefault, [](auto&, auto& a) { a.ids.rows = 4; }},
    {"weights is [5, 3]", Method::kDefault, [](auto&, auto& a) { a.weights.cols = 3; }},
    {"weights is null", Method::kDefault, [](auto&, auto& a) { a.weights.data = nullptr; }},
    {"choice_bias is null", Method::kMiniMax2, [](auto&, auto& a) { a.choice_bias = nullptr; }},
    {"choice_bias is given", Method::kDefault,
     [](auto& c, auto& a) { a.choice_bias = c.logits.data(); }},
    {"per_expert_scale is given", Method::kDefault,
     [](auto& c, auto& a) { a.per_expert_scale = c.logits.data(); }},
    {"hash_table is null", Method::kHash, [](auto&, auto& a) { a.hash_table = nullptr; }},
    {"token_ids is null", Method::kHash, [](auto&, auto& a) { a.token_ids = nullptr; }},
    {"token id 37 in row 3 lies outside the hash table of 37", Method::kHash,
     [](auto& c, auto&) { c.tokens[3] = 37; }},
    {"token id -1 in row 0", Method::kHash, [](auto& c, auto&) { c.tokens[0] = -1; }},
    {"names expert 16 for token 5 (row 0); ids lie in 0..15", Method::kHash,
     [](auto& c, auto&) { c.table[10] = 16; }},
    {"names expert -1 for token 5", Method::kHash, [](auto& c, auto&) { c.table[11] = -1; }},
    {"twice for token 5", Method::kHash, [](auto& c, auto&) { c.table[11] = c.table[10]; }},
    {"takes ids and weights from the caller", Method::kDefault,
     [](auto& c, auto&) { c.spec.choice = ChoiceRule::kCaller; }},
};

TEST(Route, CheckNamesWhatIsWrongAndAGoodCallFollows) {
  for (const Refused& r : kRefused) {
    SCOPED_TRACE(r.text);
    RouteCase c(make_routing(r.method, 16, 2), 5);
    const Routed want = c.run_cpu();
    RouteCase spoilt = c;
    RouteArgs args = spoilt.args();
    r.spoil(spoilt, args);
    try {
      args.check();
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(r.text));
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    }
    EXPECT_EQ(c.run_cpu().ids, want.ids);
  }
}

TEST(Route, GapsTellHowCloseAChoiceWas) {
  RouteCase c(make_routing(Method::kTopK, 5, 2), 2);
  c.set_row(0, {4, 1, 3.5f, 3.25f, 0});
  c.set_row(1, {4, 1, 3, 3, 0});
  const std::vector<double> gaps = c.gaps();
  EXPECT_EQ(gaps[0], 0.25);
  EXPECT_EQ(gaps[1], 0);
}

}  // namespace
}  // namespace switchyard::ops
