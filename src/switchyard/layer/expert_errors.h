// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// One routed expert by itself, before weights and sums.
///
/// Units:   rel L2 over its rows: to the oracle with the same requantisation points, and to the
/// same
///          weights with unquantised activations. Scales multiply; absent unless static, FC1's as
///          the expert declares it.
struct ExpertError {
  std::int64_t id = 0;
  std::int64_t rows = 0;
  double rel_l2_oracle = 0;
  double rel_l2_unquantised = 0;
  std::optional<float> fc1_scale, fc2_scale;
  std::string note;  // what is odd about it; empty: nothing
};

/// Every routed expert on rows of the given tokens, dealt out evenly and not routed.
///
/// Shapes:  hidden [tokens, H] fp32 dense, rounded to the layer's dtype before use.
/// Errors:  UsageError without tokens, or for a layer that still needs its calibration.
std::vector<ExpertError> expert_errors(const Layer& layer, std::int64_t tokens,
                                       const float* hidden);

/// Notes experts whose scales or error are out of line: a scale more than 16 times from the layer's
/// median, an error above `limit`, and those that the calibration showed no token.
void note_odd_experts(std::vector<ExpertError>& experts, double limit,
                      const std::vector<std::int64_t>& unseen);

}  // namespace switchyard::layer
