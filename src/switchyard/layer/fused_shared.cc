// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/fused_shared.h"

#include "switchyard/base/check.h"
#include "switchyard/layer/expert_part.h"

namespace switchyard::layer {
checkpoint::ExpertSource with_fused_shared(const checkpoint::LayerWeights& w) {
  ensure(w.shared.has_value(), "fused shared experts: the layer has none");
  return [routed = w.expert, shared = w.shared->weights, experts = w.problem.num_experts(),
          inter = w.problem.inter](std::int64_t e) {
    if (e < experts) return routed(e);
    const std::int64_t i = e - experts;
    return slice_expert(
        shared, {.inter = shared.up.rows, .columns = {i * inter, inter}, .down_bias = i == 0});
  };
}

}  // namespace switchyard::layer
