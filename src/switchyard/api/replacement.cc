// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/replacement.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "switchyard/api/layer_arrays.h"
#include "switchyard/base/check.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/layer/convert.h"

namespace switchyard {
namespace {

/// An owned matrix in the layer's storage, made of a caller's array.
formats::Matrix stored_matrix(const NamedArray& array, std::int64_t rows, std::int64_t cols,
                              const formats::WeightLayout& layout) {
  return formats::convert_matrix(borrow_matrix(array, 0, rows, cols), layout);
}

/// What tells the activations of two layers' experts `e` apart.
auto constants_of(const Problem& p, std::int64_t e) {
  const ActivationParams a = lower(p.activation, e);
  return std::tuple(a.type, a.form, a.has_limit, a.limit_after, a.alpha, a.beta,
                    a.has_limit ? a.limit : 0.0f);
}

}  // namespace

checkpoint::ExpertWeights expert_from(const ExpertArrays& a, const Problem& p,
                                      const formats::WeightLayout& layout) {
  const bool gated = p.gated();
  require(a.up != nullptr && a.down != nullptr && (a.gate != nullptr) == gated,
          "update_expert: this layer's experts need up and down",
          gated ? " and gate" : ", and no gate", "; pass exactly these");
  const bool plain = layout.scale == formats::ScaleType::kNone;
  const bool fp16 = layout.element == formats::Element::kFp16;
  require(!plain || a.dtype == Dtype::kF32 || (a.dtype == Dtype::kFp16) == fp16,
          "update_expert: the arrays are ", to_string(a.dtype), ", this layer's weights are ",
          to_string(layout.element), "; give that type or f32");
  require(
      a.fc1_input_scale.has_value() == a.fc2_input_scale.has_value(),
      "update_expert: one of fc1_input_scale and fc2_input_scale is given; give both or neither");
  const std::int64_t h = p.expert_hidden();
  checkpoint::ExpertWeights w;
  if (gated) w.gate = stored_matrix({"gate", a.gate, a.dtype}, p.inter, h, layout);
  w.up = stored_matrix({"up", a.up, a.dtype}, p.inter, h, layout);
  w.down = stored_matrix({"down", a.down, a.dtype}, h, p.inter, layout);
  if (w.gate) w.gate->input_scale = a.fc1_input_scale;
  w.up.input_scale = a.fc1_input_scale;
  w.down.input_scale = a.fc2_input_scale;
  w.gate_bias = copy_floats(a.gate_bias, p.inter);
  w.up_bias = copy_floats(a.up_bias, p.inter);
  w.down_bias = copy_floats(a.down_bias, h);
  return w;
}

checkpoint::LayerWeights replacing_layer(const Checkpoint& checkpoint, std::int64_t index,
                                         std::int64_t e, const ReplacedIn& layer) {
  checkpoint::LayerWeights weights = checkpoint.impl().layer(index);
  const Problem &theirs = weights.problem, &ours = layer.problem;
  require(theirs.format == ours.format || theirs.format == "none" || layer.requantised,
          "update_expert: layer ", index, " of the checkpoint is stored as ",
          show_format(theirs.format), ", this layer runs ", show_format(ours.format),
          " as it was stored; give weights in that format or unquantised ones");
  const std::int64_t experts = std::min(theirs.num_experts(), ours.num_experts());
  require(e >= 0 && e < experts, "update_expert: expert ", e, " is outside 0..", experts - 1,
          ", the routed experts that layer ", index, " of the checkpoint and this layer have");
  // The packed expert computes with the layer's activation, whatever the checkpoint declares.
  require(constants_of(theirs, e) == constants_of(ours, e), "update_expert: expert ", e,
          " of layer ", index, " of the checkpoint computes ",
          to_string(type_of(theirs.activation)), ", this layer ",
          to_string(type_of(ours.activation)),
          ", or both the same with other constants; give weights of the same activation");
  return layer::convert_format(std::move(weights), layer.leaf);
}

void add_notices(const std::vector<std::string>& more, std::vector<std::string>& notices) {
  for (const std::string& notice : more)
    if (std::find(notices.begin(), notices.end(), notice) == notices.end())
      notices.push_back(notice);
}

}  // namespace switchyard
