// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/convert.h"

#include "switchyard/base/text.h"

namespace switchyard::layer {
namespace {

/// A NaN or an infinity that reaches a scale is refused here: kernels decode checked scales only.
formats::Matrix convert(const char* what, const formats::Matrix& m,
                        const formats::WeightLayout& layout) {
  formats::Matrix out = formats::convert_matrix(m, layout);
  out.check(what);
  return out;
}

}  // namespace

checkpoint::LayerWeights convert_format(checkpoint::LayerWeights w, const leaves::Leaf& leaf) {
  if (w.problem.format == leaf.id.quant) return w;
  w.notices.push_back(cat("routed experts converted from ", show_format(w.problem.format), " to ",
                          show_format(leaf.id.quant), " at load"));
  w.problem.format = std::string(leaf.id.quant);
  w.layout = leaf.weights;
  w.activation_quant = leaf.activation;
  w.expert = [source = std::move(w.expert), layout = leaf.weights](std::int64_t e) {
    checkpoint::ExpertWeights expert = source(e);
    if (expert.gate) expert.gate = convert("converted gate projection", *expert.gate, layout);
    expert.up = convert("converted up projection", expert.up, layout);
    expert.down = convert("converted down projection", expert.down, layout);
    return expert;
  };
  return w;
}

}  // namespace switchyard::layer
