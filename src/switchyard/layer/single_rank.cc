// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/single_rank.h"

#include <algorithm>

#include "switchyard/base/arena.h"
#include "switchyard/base/check.h"
#include "switchyard/base/float_math.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"

namespace switchyard::layer {
namespace {

constexpr std::int64_t kRouteRows = 16;  // rows per routing task

/// The parts of a forward's workspace; the last one belongs to whichever expert bank is running.
struct Parts {
  std::span<float> logits;
  std::span<std::int32_t> ids, shared_ids;
  std::span<float> weights, shared_weights, shared_out;
  std::span<std::byte> ffn;
};

std::size_t ffn_bytes(const Layer& layer, const leaves::Leaf& leaf, const ExpertBank& bank,
                      std::int64_t tokens) {
  return leaf.ffn->workspace_bytes(bank.shape, bank.layout, tokens, layer.options().pool->size());
}

Parts take_parts(Arena& arena, const Layer& layer, std::int64_t tokens) {
  const Problem& p = layer.problem();
  const std::size_t t = std::size_t(tokens), width = std::size_t(layer.routed().shape.top_k);
  Parts parts;
  parts.logits = arena.take<float>(t * std::size_t(p.num_experts() + p.routing.zero_experts));
  parts.ids = arena.take<std::int32_t>(t * width);
  parts.weights = arena.take<float>(t * width);
  std::size_t ffn = ffn_bytes(layer, *layer.options().leaf, layer.routed(), tokens);
  if (const ExpertBank* shared = layer.shared()) {
    parts.shared_ids = arena.take<std::int32_t>(t);
    parts.shared_weights = arena.take<float>(t);
    parts.shared_out = arena.take<float>(t * std::size_t(p.hidden));
    ffn = std::max(ffn, ffn_bytes(layer, *layer.options().shared_leaf, *shared, tokens));
  }
  parts.ffn = arena.take<std::byte>(ffn);
  return parts;
}

const void* row_of(const ForwardArgs& a, Dtype dtype, std::int64_t t) {
  return static_cast<const std::byte*>(a.hidden) +
         t * a.hidden_stride * std::int64_t(size_of(dtype));
}

/// sigmoid(x . gate) per token, or 1; fp32 in column order, so a row's bits are its own.
void shared_weights(const Layer& layer, const ForwardArgs& a, Parts& parts) {
  const std::vector<float>& gate = layer.weights().shared->gate;
  layer.options().pool->for_each(a.tokens, [&](std::int64_t t, int) {
    float z = 0;
    for (std::size_t k = 0; k < gate.size(); ++k)
      z += load_element(layer.options().dtype, row_of(a, layer.options().dtype, t),
                        std::int64_t(k)) *
           gate[k];
    parts.shared_weights[std::size_t(t)] = gate.empty() ? 1.0f : sigmoid_float(z);
    parts.shared_ids[std::size_t(t)] = 0;
  });
}

ops::FfnArgs ffn_args(const Layer& layer, const ExpertBank& bank, const ForwardArgs& a,
                      Parts& parts) {
  ops::FfnArgs f;
  f.shape = &bank.shape;
  f.layout = &bank.layout;
  f.packed = bank.packed.data();
  f.fc1_input_scale = bank.scales.fc1;
  f.activation = bank.activation.data();
  f.tokens = a.tokens;
  f.x_dtype = layer.options().dtype;
  f.x = a.hidden;
  f.x_stride = a.hidden_stride;
  f.pool = layer.options().pool.get();
  f.isa = layer.options().isa;
  f.workspace = parts.ffn;
  return f;
}

void run_shared(const Layer& layer, const ForwardArgs& a, Parts& parts) {
  shared_weights(layer, a, parts);
  ops::FfnArgs f = ffn_args(layer, *layer.shared(), a, parts);
  f.ids = parts.shared_ids.data();
  f.weights = parts.shared_weights.data();
  f.out_dtype = Dtype::kF32;
  f.out = parts.shared_out.data();
  f.out_stride = layer.problem().hidden;
  layer.options().shared_leaf->ffn->forward(f);
}

void check_routing_args(const Layer& layer, const ForwardArgs& a) {
  const CallerRouting& r = a.routing;
  const bool ids = r.ids != nullptr;
  const bool plain = r.weights != nullptr, factored = r.factored_weights != nullptr;
  require(
      a.logits.data == nullptr || !ids,
      "forward: logits and expert ids are both given; the ids would make the logits meaningless");
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
}

/// Rows are numbered by 32 bits; beyond that sizes would overflow unseen.
void check_tokens(const Layer& layer, std::int64_t tokens) {
  const std::int64_t most = INT32_MAX / layer.routed().shape.top_k;
  require(tokens >= 0 && tokens <= most, "tokens = ", tokens, " is outside 0..", most,
          ", the limit for this layer's choices; split the call");
}

void check_args(const Layer& layer, const ForwardArgs& a) {
  const Problem& p = layer.problem();
  check_tokens(layer, a.tokens);
  require(!layer.needs_calibration(), "forward: format ", p.format,
          " has static activation scales and this layer has none; calibrate it first, or ask for "
          "activations = bf16");
  if (a.tokens == 0) return;  // an empty array's pointer may be null
  require(a.hidden != nullptr && a.hidden_stride >= p.hidden,
          "forward: hidden states need a pointer and a stride of at least H = ", p.hidden,
          ", the stride is ", a.hidden_stride);
  require((a.out != nullptr) != (a.unfinalised != nullptr),
          "forward: give either an output or an unfinalised output, exactly one of them");
  require(a.out == nullptr || a.out_stride >= p.hidden, "forward: output stride ", a.out_stride,
          " is below H = ", p.hidden);
  check_routing_args(layer, a);
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

/// Hands out what the caller asked to see of the routing.
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

void write_unfinalised(const Layer& layer, const ForwardArgs& a, const Routed& r,
                       const Parts& parts) {
  Unfinalised& u = *a.unfinalised;
  const Problem& p = layer.problem();
  const bool on_input = p.routing.placement == WeightPlacement::kInput;
  for (std::int64_t i = 0; i < a.tokens * p.top_k(); ++i) {
    const std::int32_t id = r.ids[std::size_t(i)];
    // A zero expert has no input to weigh: its row is the token itself.
    u.weights[i] = on_input && id < p.num_experts() ? 1.0f : r.weights[std::size_t(i)];
    u.index[i] = id < 0 ? -1 : std::int32_t(i);
  }
  u.pending_factor = r.factor;
  if (layer.shared() == nullptr) return;
  for (std::int64_t i = 0; i < a.tokens * p.hidden; ++i)
    store_element(layer.options().dtype, u.shared, i, parts.shared_out[std::size_t(i)]);
}

void check_unfinalised(const Layer& layer, const Unfinalised& u) {
  require(u.rows != nullptr && u.weights != nullptr && u.index != nullptr,
          "forward: an unfinalised output needs rows, weights and index");
  require(layer.shared() == nullptr || u.shared != nullptr,
          "forward: this layer has a shared expert, so an unfinalised output needs its buffer");
  require(
      layer.routed().shape.unscaled_choices == 0,
      "forward: fused shared experts cannot be left unfinalised; build the layer without fusion");
}

void run_routed(const Layer& layer, const ForwardArgs& a, const Routed& r, Parts& parts) {
  ops::FfnArgs f = ffn_args(layer, layer.routed(), a, parts);
  f.ids = r.ids.data();
  f.weights = r.weights.data();
  f.factor = r.factor;
  f.capture = a.capture;
  if (a.unfinalised != nullptr) {
    f.rows = a.unfinalised->rows;
    f.rows_dtype = layer.options().dtype;
  } else {
    f.addend = layer.shared() != nullptr ? parts.shared_out.data() : nullptr;
    f.out = a.out;
    f.out_dtype = layer.options().dtype;
    f.out_stride = a.out_stride;
  }
  layer.options().leaf->ffn->forward(f);
}

void write_trace(const Layer& layer, const ForwardArgs& a) {
  if (a.trace == nullptr) return;
  a.trace->leaf = layer.leaf_id();
  a.trace->shared_leaf = layer.shared_leaf_id();
  a.trace->isa = ops::panel_twin(layer.options().isa).tier;
  a.trace->routed_here = a.routing.ids == nullptr;
  a.trace->fused_shared = layer.routed().shape.unscaled_choices > 0;
}

/// The router's GEMM, cut into tiles of rows and experts so that one token uses every thread.
void compute_logits(const Layer& layer, const ForwardArgs& a, Dtype dtype, Span2d<float> logits) {
  const checkpoint::RouterWeights& w = layer.weights().router;
  const ops::RouterGemmArgs gemm{.dtype = dtype,
                                 .x = a.hidden,
                                 .x_stride = a.hidden_stride,
                                 .hidden = layer.problem().hidden,
                                 .weight = w.weight.data(),
                                 .bias = w.logit_bias.empty() ? nullptr : w.logit_bias.data(),
                                 .logits = logits};
  gemm.check();
  constexpr std::int64_t kTileExperts = 16;
  const std::int64_t columns = (logits.cols + kTileExperts - 1) / kTileExperts;
  const std::int64_t rows = (a.tokens + kRouteRows - 1) / kRouteRows;
  layer.options().pool->for_each(rows * columns, [&](std::int64_t i, int) {
    const std::int64_t row = i / columns * kRouteRows, expert = i % columns * kTileExperts;
    ops::router_gemm_cpu(gemm, {.row_begin = row,
                                .row_end = std::min(row + kRouteRows, a.tokens),
                                .expert_begin = expert,
                                .expert_end = std::min(expert + kTileExperts, logits.cols)});
  });
}

}  // namespace

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
  route.check();
  layer.options().pool->for_each(
      (a.tokens + kRouteRows - 1) / kRouteRows, [&](std::int64_t i, int) {
        ops::route_cpu(route, i * kRouteRows, std::min((i + 1) * kRouteRows, a.tokens));
      });
}

void append_shared(const Layer& layer, const ForwardArgs& a, Routed& r) {
  const std::int64_t k = layer.problem().top_k();
  for (std::int64_t t = 0; t < a.tokens; ++t)
    for (std::int64_t j = k; j < r.width; ++j) {
      r.ids[std::size_t(t * r.width + j)] = std::int32_t(layer.problem().num_experts() + j - k);
      r.weights[std::size_t(t * r.width + j)] = 1;
    }
}

std::size_t single_rank_workspace(const Layer& layer, std::int64_t max_tokens) {
  check_tokens(layer, max_tokens);
  Arena arena;
  take_parts(arena, layer, max_tokens);
  return arena.used();
}

void single_rank_forward(const Layer& layer, const ForwardArgs& a) {
  check_args(layer, a);
  if (a.unfinalised != nullptr && a.tokens > 0) check_unfinalised(layer, *a.unfinalised);
  write_trace(layer, a);
  if (a.tokens == 0) return;
  Arena arena(a.workspace);
  Parts parts = take_parts(arena, layer, a.tokens);
  Routed routed{parts.ids, parts.weights, layer.routed().shape.top_k,
                layer.problem().routed_scaling_factor};
  if (a.routing.ids != nullptr) {
    take_caller_routing(layer, a, routed);
  } else {
    route_tokens(layer, a, layer.options().dtype, parts.logits, routed);
  }
  append_shared(layer, a, routed);
  if (layer.shared() != nullptr) run_shared(layer, a, parts);
  run_routed(layer, a, routed, parts);
  report_routing(layer, a, routed);
  if (a.unfinalised != nullptr) write_unfinalised(layer, a, routed, parts);
}

}  // namespace switchyard::layer
