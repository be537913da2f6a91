// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/api/checkpoint.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/leaves/leaf.h"

namespace switchyard {

/// The layer of which an expert is replaced.
struct ReplacedIn {
  const Problem& problem;
  const leaves::Leaf& leaf;
  bool requantised = false;  // its experts came in another format
};

/// One expert of a caller, stored as the layer's are. Errors: UsageError that begins with
/// "update_expert".
checkpoint::ExpertWeights expert_from(const ExpertArrays& arrays, const Problem& problem,
                                      const formats::WeightLayout& layout);
/// Layer `index` of a checkpoint, as far as its expert `e` may stand in `layer`, converted.
/// Errors:  UsageError that says what differs.
checkpoint::LayerWeights replacing_layer(const Checkpoint& checkpoint, std::int64_t index,
                                         std::int64_t e, const ReplacedIn& layer);
/// Those that are not there yet.
void add_notices(const std::vector<std::string>& more, std::vector<std::string>& notices);

}  // namespace switchyard
