// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/convert.h"

#include "switchyard/base/text.h"

namespace switchyard::layer {
namespace {

formats::Matrix convert(const formats::Matrix& m, const formats::WeightLayout& layout) {
  std::vector<float> values(std::size_t(m.rows * m.cols));
  for (std::int64_t r = 0; r < m.rows; ++r)
    m.decode_row(r, std::span(values).subspan(std::size_t(r * m.cols), std::size_t(m.cols)));
  return formats::quantize_matrix(values, m.rows, m.cols, layout);
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
    if (expert.gate) expert.gate = convert(*expert.gate, layout);
    expert.up = convert(expert.up, layout);
    expert.down = convert(expert.down, layout);
    return expert;
  };
  return w;
}

}  // namespace switchyard::layer
