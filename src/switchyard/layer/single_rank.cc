// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/single_rank.h"

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/base/float_math.h"
#include "switchyard/layer/latent.h"
#include "switchyard/layer/run_experts.h"

namespace switchyard::layer {
namespace {

std::size_t ffn_bytes(const Layer& layer, const leaves::Leaf& leaf, const ops::FfnShape& shape,
                      const ops::ExpertLayout& layout, std::int64_t tokens) {
  return leaf.ffn->workspace_bytes(shape, layout, tokens,
                                   {layer.options().pool->size(), layer.options().isa});
}

}  // namespace

Parts take_parts(Arena& arena, const Layer& layer, std::int64_t tokens) {
  return take_parts(arena, layer, tokens, layer.routed().shape);
}

Parts take_parts(Arena& arena, const Layer& layer, std::int64_t tokens,
                 const ops::FfnShape& called) {
  const Problem& p = layer.problem();
  const std::size_t t = std::size_t(tokens), width = std::size_t(layer.routed().shape.top_k);
  Parts parts;
  parts.logits = arena.take<float>(t * std::size_t(p.num_experts() + p.routing.zero_experts));
  parts.ids = arena.take<std::int32_t>(t * width);
  parts.weights = arena.take<float>(t * width);
  std::size_t stage =
      ffn_bytes(layer, *layer.options().leaf, called, layer.routed().layout, tokens);
  if (const ExpertBank* shared = layer.shared()) {
    parts.shared_ids = arena.take<std::int32_t>(t);
    parts.shared_weights = arena.take<float>(t);
    parts.shared_out = arena.take<float>(t * std::size_t(p.hidden));
    stage = std::max(stage, ffn_bytes(layer, *layer.options().shared_leaf, shared->shape,
                                      shared->layout, tokens));
  }
  if (const LatentBank* latent = layer.latent()) {
    parts.latent = arena.take<float>(t * std::size_t(p.latent));
    parts.latent_sum = arena.take<float>(t * std::size_t(p.latent));
    stage = std::max(stage, latent_workspace_bytes(*latent, tokens, layer.options().pool->size()));
  }
  parts.stage = arena.take<std::byte>(stage);
  return parts;
}

namespace {

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
  f.workspace = parts.stage;
  return f;
}

}  // namespace

void run_shared(const Layer& layer, const ForwardArgs& a, Parts& parts) {
  shared_weights(layer, a, parts);
  ops::FfnArgs f = ffn_args(layer, *layer.shared(), a, parts);
  f.ids = parts.shared_ids.data();
  f.weights = parts.shared_weights.data();
  f.out_dtype = Dtype::kF32;
  f.out = parts.shared_out.data();
  f.out_stride = layer.problem().hidden;
  StageCapture capture;
  if (a.capture != nullptr) capture.inter = a.capture->shared_inter;
  if (capture.inter != nullptr) f.capture = &capture;
  run_experts({kSharedCall, layer.options().shared_leaf, &layer.shared()->tactics, a.tape,
               a.trace != nullptr ? &a.trace->shared : nullptr},
              f);
}

namespace {

/// Rows are numbered by 32 bits; beyond that sizes would overflow unseen.
void check_tokens(const Layer& layer, std::int64_t tokens) {
  const std::int64_t most = INT32_MAX / layer.routed().shape.top_k;
  require(tokens >= 0 && tokens <= most, "tokens = ", tokens, " is outside 0..", most,
          ", the limit for this layer's choices; split the call");
}

}  // namespace

void check_forward(const Layer& layer, const ForwardArgs& a) {
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

namespace {

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
  require(layer.latent() == nullptr,
          "forward: a latent layer cannot be left unfinalised, its up-projection stands behind the "
          "sum; ask for the output");
  require(
      layer.routed().shape.unscaled_choices == 0,
      "forward: fused shared experts cannot be left unfinalised; build the layer without fusion");
}

/// Finalize of a plain layer: sum, factor, shared expert, rounding; or rows alone.
void finish_here(const Layer& layer, const ForwardArgs& a, const Parts& parts, ops::FfnArgs& f) {
  if (a.unfinalised != nullptr) {
    f.rows = a.unfinalised->rows;
    f.rows_dtype = layer.options().dtype;
  } else {
    f.addend = layer.shared() != nullptr ? parts.shared_out.data() : nullptr;
    f.out = a.out;
    f.out_dtype = layer.options().dtype;
    f.out_stride = a.out_stride;
  }
}

/// The experts of a latent layer read and write fp32 rows of the latent width.
void work_in_latent(const Layer& layer, const Parts& parts, ops::FfnArgs& f) {
  f.x = parts.latent.data();
  f.x_dtype = f.out_dtype = Dtype::kF32;
  f.x_stride = f.out_stride = layer.problem().latent;
  f.out = parts.latent_sum.data();
}

void run_routed(const Layer& layer, const ForwardArgs& a, const Routed& r, Parts& parts) {
  const bool latent = layer.latent() != nullptr;
  if (latent)
    project_down(layer, {a, layer.options().dtype, /*rounds=*/true}, parts.latent.data(),
                 parts.stage);
  if (latent && a.capture != nullptr && a.capture->latent != nullptr)
    std::copy(parts.latent.begin(), parts.latent.end(), a.capture->latent);
  ops::FfnArgs f = ffn_args(layer, layer.routed(), a, parts);
  f.ids = r.ids.data();
  f.weights = r.weights.data();
  f.factor = r.factor;
  f.capture = a.capture;
  if (latent) {
    work_in_latent(layer, parts, f);
  } else {
    finish_here(layer, a, parts, f);
  }
  run_experts({kExpertsCall, layer.options().leaf, &layer.routed().tactics, a.tape,
               a.trace != nullptr ? &a.trace->experts : nullptr},
              f);
  if (latent)
    project_up(layer, a, parts.latent_sum.data(),
               layer.shared() != nullptr ? parts.shared_out.data() : nullptr, parts.stage);
}

}  // namespace

void check_one_rank_forward(const Layer& layer, const ForwardArgs& a) {
  check_forward(layer, a);
  if (a.unfinalised != nullptr && a.tokens > 0) check_unfinalised(layer, *a.unfinalised);
}

void check_forward_tokens(const Layer& layer, std::int64_t tokens) { check_tokens(layer, tokens); }

void write_trace(const Layer& layer, const ForwardArgs& a) {
  if (a.trace == nullptr) return;
  a.trace->leaf = layer.leaf_id();
  a.trace->shared_leaf = layer.shared_leaf_id();
  a.trace->isa = ops::panel_twin(layer.options().isa).tier;
  a.trace->routed_here = a.routing.ids == nullptr;
  a.trace->fused_shared = layer.routed().shape.unscaled_choices > 0;
}

void choose_experts(const Layer& layer, const ForwardArgs& a, const Parts& parts, Routed& routed) {
  if (a.routing.ids != nullptr) {
    take_caller_routing(layer, a, routed);
  } else {
    route_tokens(layer, a, layer.options().dtype, parts.logits, routed);
  }
}

std::size_t single_rank_workspace(const Layer& layer, std::int64_t max_tokens) {
  check_tokens(layer, max_tokens);
  Arena arena;
  take_parts(arena, layer, max_tokens);
  return arena.used();
}

void single_rank_forward(const Layer& layer, const ForwardArgs& a) {
  check_one_rank_forward(layer, a);
  write_trace(layer, a);
  if (a.tokens == 0) return;
  if (a.tape != nullptr) a.tape->start();
  Arena arena(a.workspace);
  Parts parts = take_parts(arena, layer, a.tokens);
  Routed routed{parts.ids, parts.weights, layer.routed().shape.top_k,
                layer.problem().routed_scaling_factor};
  choose_experts(layer, a, parts, routed);
  append_shared(layer, a, routed);
  if (layer.shared() != nullptr) run_shared(layer, a, parts);
  run_routed(layer, a, routed, parts);
  report_routing(layer, a, routed);
  layer.load_counter().add(routed.ids.data(), a.tokens, layer.problem().top_k(), routed.width);
  if (a.unfinalised != nullptr) write_unfinalised(layer, a, routed, parts);
}

}  // namespace switchyard::layer
