// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/fused_shared.h"

#include "switchyard/base/check.h"
#include "switchyard/formats/slice.h"

namespace switchyard::layer {
namespace {

std::vector<float> slice_bias(const std::vector<float>& bias, std::int64_t begin,
                              std::int64_t size) {
  if (bias.empty()) return {};
  return {bias.begin() + begin, bias.begin() + begin + size};
}

checkpoint::ExpertWeights shared_slice(const checkpoint::ExpertWeights& joint, std::int64_t i,
                                       std::int64_t inter) {
  checkpoint::ExpertWeights e;
  const std::int64_t begin = i * inter;
  if (joint.gate) e.gate = formats::slice_rows(*joint.gate, begin, inter);
  e.up = formats::slice_rows(joint.up, begin, inter);
  e.down = formats::slice_cols(joint.down, begin, inter);
  e.gate_bias = slice_bias(joint.gate_bias, begin, joint.gate ? inter : 0);
  e.up_bias = slice_bias(joint.up_bias, begin, inter);
  if (i == 0) e.down_bias = joint.down_bias;  // a bias of the sum belongs to one of its terms
  return e;
}

}  // namespace

checkpoint::ExpertSource with_fused_shared(const checkpoint::LayerWeights& w) {
  ensure(w.shared.has_value(), "fused shared experts: the layer has none");
  return [routed = w.expert, shared = w.shared->weights, experts = w.problem.num_experts(),
          inter = w.problem.inter](std::int64_t e) {
    return e < experts ? routed(e) : shared_slice(shared, e - experts, inter);
  };
}

}  // namespace switchyard::layer
