// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard {

/// Names of published routing recipes; a name is a shorthand for a RoutingSpec, never an integer
/// code.
enum class RoutingMethodType : std::uint8_t {
  kDefault,
  kRenormalize,
  kRenormalizeNaive,
  kDeepSeekV3,
  kDeepSeekV2,
  kLlama4,
  kTopK,
  kSigmoid,
  kTopKSigmoid,
  kSigmoidRenorm,
  kMiniMax2,
  kDeepSeekV4,
  kHash,
  kSparseMixer,
  kSoftmaxBias,
  kLpNorm,
  kUnspecified
};

/// s = f(z): what a router logit becomes.
enum class ScoreFunction : std::uint8_t { kIdentity, kSoftmax, kSigmoid, kSqrtSoftplus };
/// How the k experts are chosen.
enum class ChoiceRule : std::uint8_t { kTopK, kHash, kSparseMixer, kCaller };
/// A group's rank: its largest choice score, or the sum of its two largest.
enum class GroupStatistic : std::uint8_t { kMax, kTop2Sum };
/// How the chosen scores become weights.
enum class WeightMap : std::uint8_t {
  kNone,
  kSoftmaxOverChosen,
  kSigmoid,
  kDivideByMax,
  kDivideByEpsilonSum,
  kLpNorm
};
/// Where the weight multiplies: the expert's output, or its input (Llama4).
enum class WeightPlacement : std::uint8_t { kOutput, kInput };

/// Every routing recipe as one algebra; the factor is not part of it (finalize owns it).
///
/// Steps:  s = score(z) · c = s + bias · groups · S = top_k by (c desc, index asc) · v = s[S] or
/// z[S] ·
///         w = map(v) · w *= per_expert_scale[S].
/// Source: numerics of the published recipes; docs/tour.md names them.
struct RoutingSpec {
  RoutingMethodType method = RoutingMethodType::kRenormalize;
  std::int64_t num_experts = 0;   // E, routed
  std::int64_t zero_experts = 0;  // Z: ids E .. E+Z-1 return the token itself
  std::int64_t top_k = 0;
  ScoreFunction score = ScoreFunction::kIdentity;
  ChoiceRule choice = ChoiceRule::kTopK;
  bool choice_bias = false;  // a correction bias is added to s for the choice only
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  GroupStatistic group_statistic = GroupStatistic::kTop2Sum;
  WeightMap map = WeightMap::kSoftmaxOverChosen;
  float epsilon = 0;  // kDivideByMax: max(sum, epsilon); kDivideByEpsilonSum: sum + epsilon
  float p = 1;        // kLpNorm
  bool per_expert_scale = false;
  WeightPlacement placement = WeightPlacement::kOutput;
  float jitter = 0.01f;  // kSparseMixer's threshold
  // > 0: the router reads x / sqrt(mean(x^2) + input_norm_eps) instead of x (Gemma 4)
  float input_norm_eps = 0;

  bool operator==(const RoutingSpec&) const = default;
  /// Checks ranges (E + Z <= 2048, 1 <= k <= 32 and k <= E + Z, groups divide E, finite constants).
  /// Errors: UsageError with field, value and limit.
  void check() const;
};

/// Limits that every twin serves; past them check() refuses.
inline constexpr std::int64_t kMaxRoutedExperts = 2048, kMaxTopK = 32;

/// The spec that a recipe's name stands for, with `num_experts` and `top_k` filled in.
RoutingSpec make_routing(RoutingMethodType method, std::int64_t num_experts, std::int64_t top_k);
/// "Default", "Renormalize", "DeepSeekV3" and so on.
std::string_view to_string(RoutingMethodType method);
/// Inverse of to_string(), case-insensitive. Errors: UsageError listing the names.
RoutingMethodType to_routing_method(std::string_view name);
/// Canonical text of every field; two specs are equal when their texts are.
std::string describe(const RoutingSpec& spec);

}  // namespace switchyard
