// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <vector>

#include "switchyard/base/errors.h"

namespace switchyard {
namespace {

using Method = RoutingMethodType;
using Score = ScoreFunction;
using Map = WeightMap;

struct Expected {
  Method method;
  const char* name;
  Score score;
  bool choice_bias;
  Map map;
  float epsilon;
};

// Written out by hand from the published recipes.
const std::vector<Expected> kExpected = {
    {Method::kDefault, "Default", Score::kSoftmax, false, Map::kNone, 0},
    {Method::kRenormalize, "Renormalize", Score::kIdentity, false, Map::kSoftmaxOverChosen, 0},
    {Method::kRenormalizeNaive, "RenormalizeNaive", Score::kIdentity, false,
     Map::kSoftmaxOverChosen, 0},
    {Method::kDeepSeekV3, "DeepSeekV3", Score::kSigmoid, true, Map::kDivideByEpsilonSum, 1e-20f},
    {Method::kDeepSeekV2, "DeepSeekV2", Score::kSoftmax, false, Map::kNone, 0},
    {Method::kLlama4, "Llama4", Score::kIdentity, false, Map::kSigmoid, 0},
    {Method::kTopK, "TopK", Score::kIdentity, false, Map::kNone, 0},
    {Method::kSigmoid, "Sigmoid", Score::kSigmoid, false, Map::kNone, 0},
    {Method::kTopKSigmoid, "TopKSigmoid", Score::kIdentity, false, Map::kSigmoid, 0},
    {Method::kSigmoidRenorm, "SigmoidRenorm", Score::kSigmoid, false, Map::kDivideByMax, 1e-20f},
    {Method::kMiniMax2, "MiniMax2", Score::kSigmoid, true, Map::kDivideByEpsilonSum, 1e-20f},
    {Method::kDeepSeekV4, "DeepSeekV4", Score::kSqrtSoftplus, true, Map::kDivideByEpsilonSum,
     1e-20f},
    {Method::kHash, "Hash", Score::kSqrtSoftplus, false, Map::kDivideByEpsilonSum, 1e-20f},
    {Method::kSparseMixer, "SparseMixer", Score::kIdentity, false, Map::kNone, 0},
    {Method::kSoftmaxBias, "SoftmaxBias", Score::kSoftmax, true, Map::kDivideByMax, 1e-12f},
    {Method::kLpNorm, "LpNorm", Score::kSoftmax, false, Map::kLpNorm, 0},
    {Method::kUnspecified, "Unspecified", Score::kIdentity, false, Map::kNone, 0},
};

TEST(Routing, EveryNameStandsForItsRecipe) {
  for (const Expected& want : kExpected) {
    SCOPED_TRACE(want.name);
    const std::int64_t k = want.method == Method::kLlama4 ? 1 : 2;
    const RoutingSpec got = make_routing(want.method, 16, k);
    EXPECT_NO_THROW(got.check());
    EXPECT_EQ(got.method, want.method);
    EXPECT_EQ(got.num_experts, 16);
    EXPECT_EQ(got.top_k, k);
    EXPECT_EQ(got.score, want.score);
    EXPECT_EQ(got.choice_bias, want.choice_bias);
    EXPECT_EQ(got.map, want.map);
    EXPECT_EQ(got.epsilon, want.epsilon);
    EXPECT_EQ(got.n_group, 1);
    const auto placement = got.placement;
    EXPECT_EQ(placement == WeightPlacement::kInput, want.method == Method::kLlama4);
  }
  EXPECT_EQ(make_routing(Method::kHash, 8, 2).choice, ChoiceRule::kHash);
  EXPECT_EQ(make_routing(Method::kSparseMixer, 8, 2).choice, ChoiceRule::kSparseMixer);
  EXPECT_EQ(make_routing(Method::kUnspecified, 8, 2).choice, ChoiceRule::kCaller);
  EXPECT_EQ(make_routing(Method::kDeepSeekV3, 8, 2).choice, ChoiceRule::kTopK);
  EXPECT_EQ(make_routing(Method::kDeepSeekV2, 8, 2).group_statistic, GroupStatistic::kMax);
  EXPECT_EQ(make_routing(Method::kDeepSeekV3, 8, 2).group_statistic, GroupStatistic::kTop2Sum);
}

TEST(Routing, NamesGoBothWays) {
  for (const Expected& want : kExpected) {
    EXPECT_EQ(to_string(want.method), want.name);
    EXPECT_EQ(to_routing_method(want.name), want.method);
  }
  EXPECT_EQ(to_routing_method("dEEPseekv3"), Method::kDeepSeekV3);
  try {
    to_routing_method("DeepSeek");
    FAIL() << "a prefix is not a name";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(),
                testing::AllOf(testing::HasSubstr("'DeepSeek'"), testing::HasSubstr("MiniMax2")));
  }
}

struct Refused {
  const char* text;  // names field, value and limit
  std::function<void(RoutingSpec&)> spoil;
};

TEST(Routing, CheckNamesFieldValueAndLimit) {
  const std::vector<Refused> cases = {
      {"num_experts is 0; it must lie in 1..2048", [](auto& s) { s.num_experts = 0; }},
      {"num_experts is 2049; it must lie in 1..2048", [](auto& s) { s.num_experts = 2049; }},
      {"zero_experts is -1", [](auto& s) { s.zero_experts = -1; }},
      {"zero_experts is 2033; it must lie in 0..2032", [](auto& s) { s.zero_experts = 2033; }},
      {"zero_experts is 9223372036854775807", [](auto& s) { s.zero_experts = INT64_MAX; }},
      {"top_k is 0; it must lie in 1..16", [](auto& s) { s.top_k = 0; }},
      {"top_k is 17; it must lie in 1..16", [](auto& s) { s.top_k = 17; }},
      {"top_k is 33; it must lie in 1..32",
       [](auto& s) {
         s.num_experts = 64;
         s.top_k = 33;
       }},
      {"n_group is 0", [](auto& s) { s.n_group = 0; }},
      {"n_group is 3; it must be >= 1 and divide num_experts, 16", [](auto& s) { s.n_group = 3; }},
      {"topk_group is 5; it must lie in 1..4",
       [](auto& s) {
         s.n_group = 4;
         s.topk_group = 5;
       }},
      {"topk_group is 0", [](auto& s) { s.topk_group = 0; }},
      {"top_k is 4 but the 1 kept groups hold only 2 experts",
       [](auto& s) {
         s.n_group = 8;
         s.top_k = 4;
       }},
      {"zero_experts is 2 with n_group 2",
       [](auto& s) {
         s.n_group = 2;
         s.zero_experts = 2;
       }},
      {"n_group is 2 but the choice rule is hash",
       [](auto& s) {
         s.n_group = 2;
         s.choice_bias = false;
         s.choice = ChoiceRule::kHash;
       }},
      {"epsilon is -1", [](auto& s) { s.epsilon = -1; }},
      {"epsilon is nan", [](auto& s) { s.epsilon = NAN; }},
      {"p is 0", [](auto& s) { s.p = 0; }},
      {"p is inf", [](auto& s) { s.p = INFINITY; }},
      {"jitter is -0.5", [](auto& s) { s.jitter = -0.5f; }},
      {"choice_bias is set but the choice rule is hash",
       [](auto& s) { s.choice = ChoiceRule::kHash; }},
      {"top_k is 3 under SparseMixer",
       [](auto& s) { s = make_routing(Method::kSparseMixer, 16, 3); }},
      {"top_k is 2 under Llama4", [](auto& s) { s = make_routing(Method::kLlama4, 16, 2); }},
  };
  for (const Refused& c : cases) {
    RoutingSpec spec = make_routing(Method::kDeepSeekV3, 16, 2);
    ASSERT_NO_THROW(spec.check());
    c.spoil(spec);
    try {
      spec.check();
      ADD_FAILURE() << "accepted: " << c.text;
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(c.text));
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
    }
  }
}

TEST(Routing, LimitsThemselvesAreLegal) {
  RoutingSpec spec = make_routing(Method::kDefault, 2016, 32);
  spec.zero_experts = 32;
  EXPECT_NO_THROW(spec.check());
  spec = make_routing(Method::kDefault, 1, 1);
  EXPECT_NO_THROW(spec.check());
}

TEST(Routing, TextsDifferWheneverAFieldDoes) {
  const std::vector<std::function<void(RoutingSpec&)>> changes = {
      [](auto& s) { s.method = Method::kMiniMax2; },
      [](auto& s) { s.num_experts = 17; },
      [](auto& s) { s.zero_experts = 1; },
      [](auto& s) { s.top_k = 3; },
      [](auto& s) { s.score = Score::kSoftmax; },
      [](auto& s) { s.choice = ChoiceRule::kHash; },
      [](auto& s) { s.choice_bias = false; },
      [](auto& s) { s.n_group = 2; },
      [](auto& s) { s.topk_group = 2; },
      [](auto& s) { s.group_statistic = GroupStatistic::kMax; },
      [](auto& s) { s.map = Map::kNone; },
      [](auto& s) { s.epsilon = std::nextafter(s.epsilon, 1.0f); },
      [](auto& s) { s.p = 2; },
      [](auto& s) { s.per_expert_scale = true; },
      [](auto& s) { s.placement = WeightPlacement::kInput; },
      [](auto& s) { s.jitter = std::nextafter(s.jitter, 1.0f); },
  };
  const RoutingSpec base = make_routing(Method::kDeepSeekV3, 16, 2);
  std::set<std::string> texts = {describe(base)};
  for (const auto& change : changes) {
    RoutingSpec other = base;
    change(other);
    EXPECT_NE(other, base);
    texts.insert(describe(other));
  }
  EXPECT_EQ(texts.size(), changes.size() + 1);
  EXPECT_EQ(describe(base), describe(make_routing(Method::kDeepSeekV3, 16, 2)));
}

}  // namespace
}  // namespace switchyard
