// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/route/router_choice.h"

#include "switchyard/base/check.h"

namespace switchyard::ops {
namespace {

bool divides(WeightMap map) {
  return map == WeightMap::kNone || map == WeightMap::kDivideByMax ||
         map == WeightMap::kDivideByEpsilonSum;
}

bool groups_fill_registers(const RoutingSpec& s) {
  return s.num_experts == 32 * s.n_group && s.zero_experts == 0 &&
         s.group_statistic == GroupStatistic::kTop2Sum;
}

RouterKind kind_of(const RoutingSpec& s) {
  if (s.choice != ChoiceRule::kTopK || s.per_expert_scale) return RouterKind::kGeneral;
  if (s.score == ScoreFunction::kSigmoid && divides(s.map)) {
    if (s.n_group == 1) return RouterKind::kSigmoid;
    return groups_fill_registers(s) ? RouterKind::kSigmoidGroups : RouterKind::kGeneral;
  }
  if (s.choice_bias || s.n_group != 1) return RouterKind::kGeneral;
  const bool softmax = s.score == ScoreFunction::kSoftmax;
  if (s.map == WeightMap::kSoftmaxOverChosen && (softmax || s.score == ScoreFunction::kIdentity))
    return RouterKind::kSoftmaxOverChosen;
  return softmax && divides(s.map) ? RouterKind::kSoftmax : RouterKind::kGeneral;
}

}  // namespace

std::string_view to_string(RouterKind kind) {
  switch (kind) {
    case RouterKind::kGeneral:
      return "general";
    case RouterKind::kSoftmaxOverChosen:
      return "softmax_over_chosen";
    case RouterKind::kSoftmax:
      return "softmax";
    case RouterKind::kSigmoid:
      return "sigmoid";
    case RouterKind::kSigmoidGroups:
      return "sigmoid_groups";
  }
  throw InternalError(cat("router ", int(kind), " has no text"));
}

RouterChoice compiled_router(const RoutingSpec& spec) {
  const std::int64_t ids = spec.num_experts + spec.zero_experts;
  const RouterKind kind = kind_of(spec);
  if (kind == RouterKind::kGeneral) return {};
  for (int held : kHeldSizes) {
    // Four groups in four registers are rare, and eight registers hold them too.
    if (kind == RouterKind::kSigmoidGroups && held == kHeldSizes[0]) continue;
    if (ids <= 32 * held) return {kind, held};
  }
  return {};
}

RouterChoice choose_router(const RoutingSpec& spec, std::int64_t tokens, RouterWish wish) {
  const bool compiled =
      wish == RouterWish::kCompiled || (wish == RouterWish::kOwn && tokens <= kMostCompiledTokens);
  return compiled ? compiled_router(spec) : RouterChoice{};
}

}  // namespace switchyard::ops
