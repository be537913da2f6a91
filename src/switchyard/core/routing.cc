// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/routing.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/base/float_text.h"

namespace switchyard {
namespace {

/// What published implementations add to (or floor) the sum of the chosen scores.
constexpr float kSumGuard = 1e-20f;
/// Ernie 4.5's moe_norm_min.
constexpr float kNormMin = 1e-12f;

/// A published recipe: its name and the fields in which it departs from a bare top-k of logits.
struct Recipe {
  RoutingMethodType method;
  std::string_view name;
  ScoreFunction score = ScoreFunction::kIdentity;
  WeightMap map = WeightMap::kNone;
  float epsilon = 0;
  bool choice_bias = false;
  ChoiceRule choice = ChoiceRule::kTopK;
  GroupStatistic group_statistic = GroupStatistic::kTop2Sum;
  WeightPlacement placement = WeightPlacement::kOutput;
};

using Method = RoutingMethodType;
using Score = ScoreFunction;
using Map = WeightMap;

constexpr std::array<Recipe, 17> kRecipes = {{
    {Method::kDefault, "Default", Score::kSoftmax},
    {Method::kRenormalize, "Renormalize", Score::kIdentity, Map::kSoftmaxOverChosen},
    // Equal to Renormalize in exact arithmetic; choosing on z makes no false ties.
    {Method::kRenormalizeNaive, "RenormalizeNaive", Score::kIdentity, Map::kSoftmaxOverChosen},
    {Method::kDeepSeekV3, "DeepSeekV3", Score::kSigmoid, Map::kDivideByEpsilonSum, kSumGuard, true},
    {.method = Method::kDeepSeekV2,
     .name = "DeepSeekV2",
     .score = Score::kSoftmax,
     .group_statistic = GroupStatistic::kMax},
    {.method = Method::kLlama4,
     .name = "Llama4",
     .map = Map::kSigmoid,
     .placement = WeightPlacement::kInput},
    {Method::kTopK, "TopK"},
    {Method::kSigmoid, "Sigmoid", Score::kSigmoid},
    {Method::kTopKSigmoid, "TopKSigmoid", Score::kIdentity, Map::kSigmoid},
    {Method::kSigmoidRenorm, "SigmoidRenorm", Score::kSigmoid, Map::kDivideByMax, kSumGuard},
    {Method::kMiniMax2, "MiniMax2", Score::kSigmoid, Map::kDivideByEpsilonSum, kSumGuard, true},
    {Method::kDeepSeekV4, "DeepSeekV4", Score::kSqrtSoftplus, Map::kDivideByEpsilonSum, kSumGuard,
     true},
    {Method::kHash, "Hash", Score::kSqrtSoftplus, Map::kDivideByEpsilonSum, kSumGuard, false,
     ChoiceRule::kHash},
    {.method = Method::kSparseMixer, .name = "SparseMixer", .choice = ChoiceRule::kSparseMixer},
    {Method::kSoftmaxBias, "SoftmaxBias", Score::kSoftmax, Map::kDivideByMax, kNormMin, true},
    {Method::kLpNorm, "LpNorm", Score::kSoftmax, Map::kLpNorm},
    {.method = Method::kUnspecified, .name = "Unspecified", .choice = ChoiceRule::kCaller},
}};

const Recipe& recipe_of(Method method) {
  for (const Recipe& row : kRecipes)
    if (row.method == method) return row;
  throw InternalError(cat("routing method ", int(method), " has no recipe"));
}

constexpr std::array<std::string_view, 4> kScores = {"identity", "softmax", "sigmoid",
                                                     "sqrt_softplus"};
constexpr std::array<std::string_view, 4> kChoices = {"top_k", "hash", "sparse_mixer", "caller"};
constexpr std::array<std::string_view, 2> kStatistics = {"max", "top2_sum"};
constexpr std::array<std::string_view, 6> kMaps = {
    "none", "softmax_over_chosen", "sigmoid", "divide_by_max", "divide_by_epsilon_sum", "lp_norm"};
constexpr std::array<std::string_view, 2> kPlacements = {"output", "input"};

bool same_word(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

void check_counts(const RoutingSpec& s) {
  require(s.num_experts >= 1 && s.num_experts <= kMaxRoutedExperts, "routing: num_experts is ",
          s.num_experts, "; it must lie in 1..", kMaxRoutedExperts, ", the routing limit");
  require(s.zero_experts >= 0 && s.zero_experts <= kMaxRoutedExperts - s.num_experts,
          "routing: zero_experts is ", s.zero_experts, "; it must lie in 0..",
          kMaxRoutedExperts - s.num_experts, " so that all ids stay below ", kMaxRoutedExperts);
  const std::int64_t most = std::min(kMaxTopK, s.num_experts + s.zero_experts);
  require(s.top_k >= 1 && s.top_k <= most, "routing: top_k is ", s.top_k, "; it must lie in 1..",
          most, " (at most ", kMaxTopK, " and at most the number of experts, ",
          s.num_experts + s.zero_experts, ")");
}

void check_groups(const RoutingSpec& s) {
  require(s.n_group >= 1 && s.num_experts % s.n_group == 0, "routing: n_group is ", s.n_group,
          "; it must be >= 1 and divide num_experts, ", s.num_experts);
  require(s.topk_group >= 1 && s.topk_group <= s.n_group, "routing: topk_group is ", s.topk_group,
          "; it must lie in 1..", s.n_group, ", the number of groups");
  if (s.n_group == 1) return;
  const std::int64_t kept = s.topk_group * (s.num_experts / s.n_group);
  require(s.top_k <= kept, "routing: top_k is ", s.top_k, " but the ", s.topk_group,
          " kept groups hold only ", kept, " experts; lower top_k or keep more groups");
  require(s.zero_experts == 0, "routing: zero_experts is ", s.zero_experts, " with n_group ",
          s.n_group, "; zero experts belong to no group, use n_group 1");
  require(s.choice == ChoiceRule::kTopK, "routing: n_group is ", s.n_group,
          " but the choice rule is ", kChoices[std::size_t(s.choice)],
          ", which has no groups; use n_group 1");
}

void check_constants(const RoutingSpec& s) {
  require(std::isfinite(s.epsilon) && s.epsilon >= 0, "routing: epsilon is ", s.epsilon,
          "; it must be finite and >= 0");
  require(std::isfinite(s.p) && s.p > 0, "routing: p is ", s.p, "; it must be finite and > 0");
  require(std::isfinite(s.jitter) && s.jitter >= 0, "routing: jitter is ", s.jitter,
          "; it must be finite and >= 0");
  require(std::isfinite(s.input_norm_eps) && s.input_norm_eps >= 0, "routing: input_norm_eps is ",
          s.input_norm_eps, "; it must be finite and >= 0 (0 for a router that reads x itself)");
}

void check_choice(const RoutingSpec& s) {
  require(!s.choice_bias || s.choice == ChoiceRule::kTopK,
          "routing: choice_bias is set but the choice rule is ", kChoices[std::size_t(s.choice)],
          ", which reads no bias; unset it");
  if (s.choice == ChoiceRule::kSparseMixer) {
    require(s.top_k == 2, "routing: top_k is ", s.top_k,
            " under SparseMixer, which is defined for 2; set top_k 2");
    require(s.zero_experts == 0, "routing: zero_experts is ", s.zero_experts,
            " under SparseMixer, which has none; set 0");
  }
  if (s.method == Method::kLlama4) {
    require(s.top_k == 1, "routing: top_k is ", s.top_k,
            " under Llama4, which chooses one expert; set top_k 1");
  }
}

}  // namespace

void RoutingSpec::check() const {
  check_counts(*this);
  check_groups(*this);
  check_constants(*this);
  check_choice(*this);
}

RoutingSpec make_routing(RoutingMethodType method, std::int64_t num_experts, std::int64_t top_k) {
  const Recipe& recipe = recipe_of(method);
  return {.method = method,
          .num_experts = num_experts,
          .top_k = top_k,
          .score = recipe.score,
          .choice = recipe.choice,
          .choice_bias = recipe.choice_bias,
          .group_statistic = recipe.group_statistic,
          .map = recipe.map,
          .epsilon = recipe.epsilon,
          .placement = recipe.placement};
}

std::string_view to_string(RoutingMethodType method) { return recipe_of(method).name; }

RoutingMethodType to_routing_method(std::string_view name) {
  std::string names;
  for (const Recipe& row : kRecipes) {
    if (same_word(row.name, name)) return row.method;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  throw UsageError(cat("routing method '", name, "' is unknown; use one of ", names));
}

std::string describe(const RoutingSpec& s) {
  return cat(to_string(s.method), "(experts=", s.num_experts, ",zero_experts=", s.zero_experts,
             ",top_k=", s.top_k, ",score=", kScores.at(std::size_t(s.score)),
             ",choice=", kChoices.at(std::size_t(s.choice)), ",choice_bias=", int(s.choice_bias),
             ",groups=", s.n_group, ",topk_group=", s.topk_group,
             ",group_statistic=", kStatistics.at(std::size_t(s.group_statistic)),
             ",map=", kMaps.at(std::size_t(s.map)), ",epsilon=", shortest_text(s.epsilon),
             ",p=", shortest_text(s.p), ",per_expert_scale=", int(s.per_expert_scale),
             ",placement=", kPlacements.at(std::size_t(s.placement)),
             ",jitter=", shortest_text(s.jitter),
             ",input_norm_eps=", shortest_text(s.input_norm_eps), ")");
}

}  // namespace switchyard
