// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/convert.h"

#include "switchyard/base/text.h"

namespace switchyard::layer {
checkpoint::LayerWeights convert_format(checkpoint::LayerWeights w, const leaves::Leaf& leaf) {
  if (w.problem.format == leaf.id.quant) return w;
  w.notices.push_back(cat("routed experts converted from ", show_format(w.problem.format), " to ",
                          show_format(leaf.id.quant), " at load"));
  w.problem.format = std::string(leaf.id.quant);
  w.layout = leaf.weights;
  w.activation_quant = leaf.activation;
  w.expert = [source = std::move(w.expert), layout = leaf.weights](std::int64_t e) {
    checkpoint::ExpertWeights expert = source(e);
    if (expert.gate) expert.gate = formats::convert_matrix(*expert.gate, layout);
    expert.up = formats::convert_matrix(expert.up, layout);
    expert.down = formats::convert_matrix(expert.down, layout);
    return expert;
  };
  return w;
}

}  // namespace switchyard::layer
