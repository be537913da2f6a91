// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/oracle.h"

#include <algorithm>
#include <cmath>

#include "switchyard/layer/packed_source.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"

namespace switchyard::layer {
namespace {

struct Choice {
  std::vector<std::int32_t> ids;  // [tokens, k]
  std::vector<float> weights;
  std::vector<double> gaps;  // [tokens]
};

Choice choose(const Layer& layer, const OracleArgs& a) {
  const Problem& p = layer.problem();
  const checkpoint::RouterWeights& w = layer.weights().router;
  const std::int64_t experts = p.num_experts() + p.routing.zero_experts, k = p.top_k();
  std::vector<float> own;
  Span2d<const float> logits = a.logits;
  if (logits.data == nullptr) {
    own.resize(std::size_t(a.tokens * experts));
    logits = {own.data(), a.tokens, experts, experts};
    ops::router_gemm_ref({.dtype = Dtype::kF32,
                          .x = a.hidden,
                          .x_stride = p.hidden,
                          .hidden = p.hidden,
                          .weight = w.weight.data(),
                          .bias = w.logit_bias.empty() ? nullptr : w.logit_bias.data(),
                          .norm_eps = p.routing.input_norm_eps,
                          .logits = {own.data(), a.tokens, experts, experts}});
  }
  Choice c{std::vector<std::int32_t>(std::size_t(a.tokens * k)),
           std::vector<float>(std::size_t(a.tokens * k)),
           std::vector<double>(std::size_t(a.tokens))};
  const ops::RouteArgs route{
      .logits = logits,
      .spec = &p.routing,
      .choice_bias = w.choice_bias.empty() ? nullptr : w.choice_bias.data(),
      .per_expert_scale = w.per_expert_scale.empty() ? nullptr : w.per_expert_scale.data(),
      .hash_table = w.hash_table.empty() ? nullptr : w.hash_table.data(),
      .vocab = w.vocab,
      .token_ids = a.token_ids,
      .ids = {c.ids.data(), a.tokens, k, k},
      .weights = {c.weights.data(), a.tokens, k, k}};
  ops::route_ref(route);
  ops::route_gaps(route, c.gaps.data());
  return c;
}

bool same_row(const std::int32_t* a, const std::int32_t* b, std::int64_t k) {
  return std::equal(a, a + k, b);
}

void compare_ids(const OracleArgs& a, const Choice& c, std::int64_t k, OracleResult& out) {
  for (std::int64_t t = 0; t < a.tokens && a.leaf_ids != nullptr; ++t) {
    const bool near = c.gaps[std::size_t(t)] <= kNearTie;
    const bool same = same_row(c.ids.data() + t * k, a.leaf_ids + t * k, k);
    out.ids_near_tie += near;
    out.ids_differing += !near && !same;
    if (near && !same) out.swapped.push_back(t);
  }
}

/// Where the weight multiplies the input it stands in front of a quantiser, which one unit in the
/// last place can flip: the leaf's own weights are then taken where they agree with the oracle's.
void adopt_input_weights(const Layer& layer, const OracleArgs& a, Choice& c) {
  constexpr float kSameWeight = 1e-5f;
  if (layer.problem().routing.placement != WeightPlacement::kInput || a.leaf_weights == nullptr)
    return;
  for (std::size_t i = 0; i < c.weights.size(); ++i)
    if (std::abs(a.leaf_weights[i] - c.weights[i]) <= kSameWeight * std::abs(c.weights[i]))
      c.weights[i] = a.leaf_weights[i];
}

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

/// The shared expert's rows, gate applied; empty when the layer has none of its own.
std::vector<double> shared_rows(const Layer& layer, const OracleArgs& a,
                                std::vector<double>& inter) {
  const ExpertBank* bank = layer.shared();
  if (bank == nullptr) return {};
  const std::int64_t h = layer.problem().hidden;
  const checkpoint::SharedExpert& shared = *layer.weights().shared;
  const checkpoint::ExpertSource source = packed_shared(layer.weights(), layer.options());
  std::vector<std::int32_t> ids(std::size_t(a.tokens), 0);
  std::vector<float> ones(std::size_t(a.tokens), 1.0f);
  std::vector<double> rows(std::size_t(a.tokens * h));
  inter.resize(std::size_t(a.tokens * bank->shape.inter));
  ops::grouped_ffn_ref({.shape = &bank->shape,
                        .expert = &source,
                        .fc1_input_scale = bank->scales.fc1,
                        .fc2_input_scale = bank->scales.fc2.data(),
                        .activation = bank->activation.data(),
                        .tokens = a.tokens,
                        .x = a.hidden,
                        .ids = ids.data(),
                        .weights = ones.data(),
                        .rows = rows.data(),
                        .inter_out = inter.data(),
                        .inter_in = a.leaf_shared_inter,
                        .use_inter = a.use_leaf_shared_inter,
                        .pool = layer.options().pool.get()});
  for (std::int64_t t = 0; t < a.tokens && !shared.gate.empty(); ++t) {
    double z = 0;
    for (std::int64_t i = 0; i < h; ++i)
      z += double(a.hidden[t * h + i]) * double(shared.gate[std::size_t(i)]);
    for (std::int64_t i = 0; i < h; ++i) rows[std::size_t(t * h + i)] *= sigmoid(z);
  }
  return rows;
}

/// Choices of the packed bank: routing's, then the fused shared experts with weight 1.
Choice extend(const Layer& layer, const Choice& c, std::int64_t tokens) {
  const std::int64_t k = layer.problem().top_k(), width = layer.routed().shape.top_k;
  Choice out{std::vector<std::int32_t>(std::size_t(tokens * width)),
             std::vector<float>(std::size_t(tokens * width), 1.0f),
             {}};
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < width; ++j) {
      const std::size_t at = std::size_t(t * width + j);
      out.ids[at] = j < k ? packed_id(layer, c.ids[std::size_t(t * k + j)])
                          : std::int32_t(layer.problem().num_experts() + j - k);
      if (j < k) out.weights[at] = c.weights[std::size_t(t * k + j)];
    }
  return out;
}

/// What latent experts read. The double row is rounded to fp32, as no quantiser reads more; where
/// the leaf's own fp32 row agrees with it, that row is taken: it stands in front of a quantiser,
/// whose codes the last place can flip.
std::vector<float> latent_rows(const Layer& layer, const OracleArgs& a) {
  constexpr double kSameRow = 1e-5;  // the budget of one GEMM
  const LatentBank& bank = *layer.latent();
  const std::int64_t width = bank.down_shape.out;
  const std::vector<double> x(a.hidden, a.hidden + a.tokens * layer.problem().hidden);
  std::vector<double> exact(std::size_t(a.tokens * width));
  ops::projection_ref({.shape = &bank.down_shape,
                       .weight = &layer.weights().latent->down,
                       .tokens = a.tokens,
                       .x = x.data(),
                       .out = exact.data(),
                       .pool = layer.options().pool.get()});
  std::vector<float> out(exact.begin(), exact.end());
  for (std::int64_t t = 0; t < a.tokens && a.leaf_latent != nullptr; ++t) {
    const float* leaf = a.leaf_latent + t * width;
    double diff = 0, norm = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      const double r = exact[std::size_t(t * width + i)];
      diff += (leaf[i] - r) * (leaf[i] - r);
      norm += r * r;
    }
    if (diff <= kSameRow * kSameRow * norm) std::copy_n(leaf, width, out.begin() + t * width);
  }
  return out;
}

/// From the sum in latent space to the output.
void leave_latent(const Layer& layer, std::int64_t tokens, const std::vector<double>& sum,
                  const std::vector<double>& shared, std::vector<double>& out) {
  const checkpoint::LatentProjection& latent = *layer.weights().latent;
  ops::projection_ref({.shape = &layer.latent()->up_shape,
                       .weight = &latent.up,
                       .tokens = tokens,
                       .x = sum.data(),
                       .norm = latent.norm.empty() ? nullptr : latent.norm.data(),
                       .norm_eps = latent.norm_eps,
                       .out = out.data(),
                       .pool = layer.options().pool.get()});
  for (std::size_t i = 0; i < shared.size(); ++i) out[i] += shared[i];
}

}  // namespace

checkpoint::ExpertSource packed_experts(const Layer& layer) {
  return packed_source(layer.weights(), layer.options());
}

OracleChoice oracle_choice(const Layer& layer, const OracleArgs& a, OracleResult& result) {
  Choice own = choose(layer, a);
  adopt_input_weights(layer, a, own);
  compare_ids(a, own, layer.problem().top_k(), result);
  return {std::move(own.ids), std::move(own.weights)};
}

std::vector<double> oracle_shared(const Layer& layer, const OracleArgs& a, OracleResult& result) {
  return shared_rows(layer, a, result.shared_inter);
}

std::vector<float> oracle_latent(const Layer& layer, const OracleArgs& a) {
  return latent_rows(layer, a);
}

std::vector<double> oracle_leave_latent(const Layer& layer, std::int64_t tokens,
                                        const std::vector<double>& sum,
                                        const std::vector<double>& shared) {
  std::vector<double> out(std::size_t(tokens * layer.problem().hidden));
  leave_latent(layer, tokens, sum, shared, out);
  return out;
}

OracleResult run_oracle(const Layer& layer, const OracleArgs& a) {
  const std::shared_lock<std::shared_mutex> reading = layer.reading();
  return run_oracle_held(layer, a);
}

OracleResult run_oracle_held(const Layer& layer, const OracleArgs& a) {
  const ExpertBank& bank = layer.routed();
  OracleResult result;
  Choice own = choose(layer, a);
  adopt_input_weights(layer, a, own);
  compare_ids(a, own, layer.problem().top_k(), result);
  const Choice c = extend(layer, own, a.tokens);
  const std::vector<double> shared = shared_rows(layer, a, result.shared_inter);
  const bool in_latent = layer.latent() != nullptr;
  const std::vector<float> latent = in_latent ? latent_rows(layer, a) : std::vector<float>();
  std::vector<double> sum(latent.size());
  const checkpoint::ExpertSource source = packed_experts(layer);
  result.ids = c.ids;
  result.out.resize(std::size_t(a.tokens * layer.problem().hidden));
  result.inter.resize(c.ids.size() * std::size_t(bank.shape.inter));
  ops::grouped_ffn_ref({.shape = &bank.shape,
                        .expert = &source,
                        .fc1_input_scale = bank.scales.fc1,
                        .fc2_input_scale = bank.scales.fc2.data(),
                        .activation = bank.activation.data(),
                        .tokens = a.tokens,
                        .x = in_latent ? latent.data() : a.hidden,
                        .ids = c.ids.data(),
                        .weights = c.weights.data(),
                        .factor = double(layer.problem().routed_scaling_factor),
                        .addend = shared.empty() || in_latent ? nullptr : shared.data(),
                        .out = in_latent ? sum.data() : result.out.data(),
                        .inter_out = result.inter.data(),
                        .inter_in = a.leaf_inter,
                        .use_inter = a.use_leaf_inter,
                        .pool = layer.options().pool.get()});
  if (in_latent && layer.options().is_part()) {
    result.out.clear();
    result.latent_share = std::move(sum);
    result.shared_share = shared;
  } else if (in_latent) {
    leave_latent(layer, a.tokens, sum, shared, result.out);
  }
  return result;
}

}  // namespace switchyard::layer
