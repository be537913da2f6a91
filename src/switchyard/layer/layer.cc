// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/layer.h"

#include <algorithm>
#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/layer/bank.h"
#include "switchyard/layer/fused_shared.h"
#include "switchyard/layer/single_rank.h"

namespace switchyard::layer {
namespace {

ops::FfnShape routed_shape(const checkpoint::LayerWeights& w, const LayerOptions& o) {
  const Problem& p = w.problem;
  const std::int64_t fused = o.fuse_shared ? p.num_shared : 0;
  return {.hidden = p.expert_hidden(),
          .inter = p.inter,
          .experts = p.num_experts() + fused,
          .zero_experts = p.routing.zero_experts,
          .top_k = p.top_k() + fused,
          .unscaled_choices = fused,
          .gated = p.gated(),
          .bias = p.expert_bias,
          .weight_on_input = p.routing.placement == WeightPlacement::kInput,
          .weights = w.layout,
          .quant = effective_quant(w.activation_quant, o.activations),
          .dtype = o.dtype};
}

ops::FfnShape shared_shape(const checkpoint::LayerWeights& w, const LayerOptions& o) {
  const checkpoint::SharedExpert& s = *w.shared;
  return {.hidden = w.problem.hidden,
          .inter = s.weights.up.rows,
          .experts = 1,
          .zero_experts = 0,
          .top_k = 1,
          .unscaled_choices = 0,
          .gated = s.weights.gate.has_value(),
          .bias = !s.weights.up_bias.empty(),
          .weight_on_input = false,
          .weights = s.weights.up.layout,
          .quant = effective_quant(s.activation_quant, o.activations),
          .dtype = o.dtype};
}

/// Largest magnitude of each expert's captured FC2 inputs; negative where it saw none.
std::vector<float> amax_by_expert(const ops::FfnShape& s, const std::vector<std::int32_t>& ids,
                                  const std::vector<double>& inter) {
  std::vector<float> amax(std::size_t(s.experts), -1.0f);
  for (std::size_t r = 0; r < ids.size(); ++r) {
    if (ids[r] < 0 || ids[r] >= s.experts) continue;
    float& m = amax[std::size_t(ids[r])];
    for (std::int64_t k = 0; k < s.inter; ++k)
      m = std::max(m, float(std::abs(inter[r * std::size_t(s.inter) + std::size_t(k)])));
  }
  return amax;
}

/// Largest magnitude that FC1's quantiser will see.
float input_amax(const ops::FfnShape& s, std::int64_t tokens, const float* hidden,
                 const std::vector<float>& weights) {
  float amax = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    float row = 0;
    for (std::int64_t k = 0; k < s.hidden; ++k)
      row = std::max(row, std::abs(hidden[t * s.hidden + k]));
    float weight = s.weight_on_input ? 0 : 1;
    for (std::int64_t j = 0; s.weight_on_input && j < s.top_k; ++j)
      weight = std::max(weight, std::abs(weights[std::size_t(t * s.top_k + j)]));
    amax = std::max(amax, row * weight);
  }
  return amax;
}

/// A caller's routing is not known in advance: every expert gets its share of the tokens.
void deal_tokens(const Problem& p, std::int64_t tokens, Routed& routed) {
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < p.top_k(); ++j)
      routed.ids[std::size_t(t * routed.width + j)] =
          std::int32_t((t * p.top_k() + j) % p.num_experts());
}

float static_scale(formats::ActivationQuant q, float amax) {
  constexpr float kHeadRoom = 1.05f;
  const float largest = q == formats::ActivationQuant::kNvfp4 ? 448.0f * 6 : 448.0f;
  return amax > 0 ? amax * kHeadRoom / largest : 1.0f;
}

StaticScales scales_from(const ops::FfnShape& s, formats::ActivationQuant q, float x_amax,
                         std::vector<float> inter_amax) {
  const float fallback = *std::max_element(inter_amax.begin(), inter_amax.end());
  StaticScales out{static_scale(q, x_amax), std::vector<float>(std::size_t(s.experts))};
  for (std::size_t e = 0; e < out.fc2.size(); ++e)
    out.fc2[e] = static_scale(q, inter_amax[e] < 0 ? fallback : inter_amax[e]);
  return out;
}

}  // namespace

Layer::Layer(checkpoint::LayerWeights weights, const LayerOptions& options)
    : weights_(std::move(weights)), options_(options) {
  const Problem& p = weights_.problem;
  p.check();
  require(p.latent == 0, "layer ", weights_.layer, " projects its tokens to a latent width of ",
          p.latent, "; latent projections are not built yet");
  checkpoint::ExpertSource source = weights_.expert;
  if (options_.fuse_shared) source = with_fused_shared(weights_);
  routed_ = build_bank(routed_shape(weights_, options_), *options_.leaf, source, p.activation,
                       options_, needs_calibration_);
  if (!weights_.shared || options_.fuse_shared) return;
  bool missing = false;
  const checkpoint::SharedExpert& shared = *weights_.shared;
  LayerOptions quiet = options_;
  quiet.progress = nullptr;
  shared_ = build_bank(
      shared_shape(weights_, options_), *options_.shared_leaf,
      [&](std::int64_t) { return shared.weights; }, shared.activation, quiet, missing);
  require(!missing, "layer ", weights_.layer, ": the shared expert's format ", shared.format,
          " needs input_scale tensors, which the checkpoint lacks");
}

std::int64_t Layer::packed_bytes() const {
  return std::int64_t(routed_.packed.bytes().size() +
                      (shared_ ? shared_->packed.bytes().size() : 0));
}

void Layer::calibrate(std::int64_t tokens, const float* hidden, const std::int64_t* token_ids) {
  const formats::ActivationQuant declared = routed_.shape.quant;
  if (!formats::is_static(declared)) return;
  require(tokens > 0, "calibrate: no tokens are given");
  const std::int64_t h = problem().hidden, width = routed_.shape.top_k;
  std::vector<std::int32_t> ids(std::size_t(tokens * width), -1);
  std::vector<float> weights(ids.size(), 1.0f), out(std::size_t(tokens * h));
  std::vector<float> logits(
      std::size_t(tokens * (problem().num_experts() + problem().routing.zero_experts)));
  ForwardArgs args;
  args.tokens = tokens;
  args.hidden = hidden;
  args.hidden_stride = h;
  args.token_ids = token_ids;
  Routed routed{ids, weights, width, 1};
  if (problem().routing.choice == ChoiceRule::kCaller) {
    deal_tokens(problem(), tokens, routed);
  } else {
    route_tokens(*this, args, Dtype::kF32, logits, routed);
  }
  append_shared(*this, args, routed);

  ops::FfnShape shape = routed_.shape;
  shape.quant = formats::ActivationQuant::kF32;
  std::vector<double> inter(ids.size() * std::size_t(shape.inter));
  StageCapture capture{inter.data()};
  HostBuffer workspace(
      options_.leaf->ffn->workspace_bytes(shape, routed_.layout, tokens, options_.pool->size()));
  ops::FfnArgs f;
  f.shape = &shape;
  f.layout = &routed_.layout;
  f.packed = routed_.packed.data();
  f.activation = routed_.activation.data();
  f.tokens = tokens;
  f.x_dtype = f.out_dtype = Dtype::kF32;
  f.x = hidden;
  f.x_stride = f.out_stride = h;
  f.ids = ids.data();
  f.weights = weights.data();
  f.out = out.data();
  f.capture = &capture;
  f.pool = options_.pool.get();
  f.isa = options_.isa;
  f.workspace = workspace.bytes();
  options_.leaf->ffn->forward(f);

  const float x_amax = input_amax(shape, tokens, hidden, weights);
  set_static_scales(routed_,
                    scales_from(shape, declared, x_amax, amax_by_expert(shape, ids, inter)));
  needs_calibration_ = false;
}

std::size_t Layer::workspace_bytes(std::int64_t max_tokens) const {
  return single_rank_workspace(*this, max_tokens);
}

void Layer::forward(const ForwardArgs& args) const { single_rank_forward(*this, args); }

}  // namespace switchyard::layer
