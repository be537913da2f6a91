// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/token_routing.h"

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"

namespace switchyard::layer {
namespace {

void compute_logits(const Layer& layer, const ForwardArgs& a, Dtype dtype, Span2d<float> logits) {
  const checkpoint::RouterWeights& w = layer.weights().router;
  ops::router_gemm_cpu({.dtype = dtype,
                        .x = a.hidden,
                        .x_stride = a.hidden_stride,
                        .hidden = layer.problem().hidden,
                        .weight = w.weight.data(),
                        .bias = w.logit_bias.empty() ? nullptr : w.logit_bias.data(),
                        .norm_eps = layer.problem().routing.input_norm_eps,
                        .isa = layer.options().isa,
                        .logits = logits},
                       *layer.options().pool);
}

/// Fused shared experts have ids behind the routed ones, which are no choice of a caller's.
void check_caller_ids(const Layer& layer, const ForwardArgs& a) {
  const Problem& p = layer.problem();
  const std::int64_t k = p.top_k(), ids = p.num_experts() + p.routing.zero_experts;
  for (std::int64_t i = 0; i < a.tokens * k; ++i)
    require(a.routing.ids[i] >= -1 && a.routing.ids[i] < ids, "expert id ", a.routing.ids[i],
            " of token ", i / k, ", choice ", i % k, " is outside -1..", ids - 1,
            "; -1 skips a choice");
}

}  // namespace

void check_routing_args(const Layer& layer, const ForwardArgs& a) {
  const CallerRouting& r = a.routing;
  const bool ids = r.ids != nullptr;
  const bool plain = r.weights != nullptr, factored = r.factored_weights != nullptr;
  require(
      a.logits.data == nullptr || !ids,
      "forward: logits and expert ids are both given; the ids would make the logits meaningless");
  require(!ids || !checkpoint::has_notice(layer.weights(), checkpoint::kOutputBias),
          "forward: expert ids are given, and this layer's experts carry the block's output bias, "
          "which other weights would scale; give logits, or leave both out");
  require(!ids || plain != factored,
          "forward: caller-given ids need weights of exactly one kind, with or without "
          "routed_scaling_factor");
  const Problem& p = layer.problem();
  require(
      !factored || p.routing.placement == WeightPlacement::kOutput || p.routed_scaling_factor == 1,
      "forward: weights with routed_scaling_factor ", p.routed_scaling_factor,
      " in them would "
      "stand in front of the activation of this layer, whose weights multiply the input; give "
      "them without the factor");
  require(ids || (!plain && !factored),
          "forward: weights are given without the expert ids that they belong to; give both, or "
          "neither");
  require(layer.problem().routing.choice != ChoiceRule::kCaller || ids,
          "forward: this layer's routing is the caller's, so ids and weights must be given");
  if (ids && !on_cuda(layer)) check_caller_ids(layer, a);  // the device's own skip what is outside
}

void route_tokens(const Layer& layer, const ForwardArgs& a, Dtype hidden_dtype,
                  std::span<float> logits_buffer, Routed& r) {
  const Problem& p = layer.problem();
  const checkpoint::RouterWeights& w = layer.weights().router;
  const std::int64_t experts = p.num_experts() + p.routing.zero_experts;
  const bool given = a.logits.data != nullptr;
  ops::RouteArgs route{
      .logits =
          given ? a.logits : Span2d<const float>{logits_buffer.data(), a.tokens, experts, experts},
      .spec = &p.routing,
      .choice_bias = w.choice_bias.empty() ? nullptr : w.choice_bias.data(),
      .per_expert_scale = w.per_expert_scale.empty() ? nullptr : w.per_expert_scale.data(),
      .hash_table = w.hash_table.empty() ? nullptr : w.hash_table.data(),
      .vocab = w.vocab,
      .token_ids = a.token_ids,
      .ids = {r.ids.data(), a.tokens, p.top_k(), r.width},
      .weights = {r.weights.data(), a.tokens, p.top_k(), r.width}};
  if (!given)
    compute_logits(layer, a, hidden_dtype, {logits_buffer.data(), a.tokens, experts, experts});
  ops::route_cpu(route, *layer.options().pool);
}

void append_shared(const Layer& layer, const ForwardArgs& a, Routed& r) {
  const std::int64_t k = layer.problem().top_k();
  for (std::int64_t t = 0; t < a.tokens; ++t)
    for (std::int64_t j = k; j < r.width; ++j) {
      r.ids[std::size_t(t * r.width + j)] = std::int32_t(layer.problem().num_experts() + j - k);
      r.weights[std::size_t(t * r.width + j)] = 1;
    }
}

void take_caller_routing(const Layer& layer, const ForwardArgs& a, Routed& r) {
  const std::int64_t k = layer.problem().top_k();
  const bool factored = a.routing.factored_weights != nullptr;
  const float* weights = factored ? a.routing.factored_weights : a.routing.weights;
  if (factored) r.factor = 1;
  for (std::int64_t t = 0; t < a.tokens; ++t)
    for (std::int64_t j = 0; j < k; ++j) {
      r.ids[std::size_t(t * r.width + j)] = a.routing.ids[t * k + j];
      r.weights[std::size_t(t * r.width + j)] = weights[t * k + j];
    }
}

void report_routing(const Layer& layer, const ForwardArgs& a, const Routed& r) {
  const std::int64_t k = layer.problem().top_k();
  for (std::int64_t t = 0; t < a.tokens; ++t)
    for (std::int64_t j = 0; j < k; ++j) {
      const std::size_t at = std::size_t(t * r.width + j);
      if (a.ids_out != nullptr) a.ids_out[t * k + j] = r.ids[at];
      if (a.weights_out != nullptr) a.weights_out[t * k + j] = r.weights[at];
      if (a.expert_counts != nullptr && r.ids[at] >= 0) ++a.expert_counts[r.ids[at]];
    }
}

}  // namespace switchyard::layer
