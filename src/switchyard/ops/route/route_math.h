// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "switchyard/base/float_math.h"
#include "switchyard/base/host_device.h"
#include "switchyard/core/routing.h"

/// Formulas of routing that all twins share. The algebra's order and its tie rule are in
/// core/routing.h; here stand the scalar pieces and the one order of summation.
namespace switchyard::ops {

/// Sums run over 32 lanes, lane l taking elements l, l + 32, ... in order; the lanes then fold in
/// halves. A warp and any vector width can follow this tree exactly.
inline constexpr int kSumLanes = 32;

/// A score that never wins.
inline constexpr float kNever = -HUGE_VALF;

/// NaN becomes -inf and +inf the largest finite number: the two rules for special scores.
[[gnu::always_inline]] SWITCHYARD_HD inline float clean_score(float x) {
  return select(x <= FLT_MAX, x, select(x > FLT_MAX, FLT_MAX, kNever));
}

/// Folds the lanes of a sum in halves; overwrites them.
[[gnu::always_inline]] SWITCHYARD_HD inline float fold_lanes(float* lanes) {
  for (int half = kSumLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

/// True when the chosen weight comes from the logit itself, not from its score.
SWITCHYARD_HD inline bool reads_logit(WeightMap map) {
  return map == WeightMap::kSoftmaxOverChosen || map == WeightMap::kSigmoid;
}

/// True when experts are ordered by their logits: softmax keeps the logits' order, and its rounding
/// and underflow could only add ties that are not there.
inline bool chooses_on_logits(const RoutingSpec& s) {
  if (s.score == ScoreFunction::kIdentity) return true;
  const bool sums_scores = s.n_group > 1 && s.group_statistic == GroupStatistic::kTop2Sum;
  return s.score == ScoreFunction::kSoftmax && !s.choice_bias && !sums_scores;
}

/// Sum of a group's two largest choice scores. A group with a single valid score ranks behind all
/// that have two and ahead of those that have none.
SWITCHYARD_HD inline float top2_score(float first, float second) {
  if (!(first > kNever)) return kNever;
  const float total = first + second;
  return total > -FLT_MAX ? total : -FLT_MAX;
}

/// SparseMixer's test: logit `z` is too far below the winner `top` to share the softmax with it.
SWITCHYARD_HD inline bool is_masked_out(float z, float top, float jitter) {
  const float size = magnitude_of(z);
  return (top - z) / (size > top ? size : top) > 2.0f * jitter;
}

}  // namespace switchyard::ops
