// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/share_case.h"

#include <cmath>

#include "switchyard/base/arena.h"
#include "switchyard/layer/latent.h"
#include "switchyard/layer/single_rank.h"

namespace switchyard::test {
namespace {

/// Global ids by the part's own numbers; -1 for what other ranks hold.
void keep_held(const layer::Layer& part, std::span<std::int32_t> ids) {
  const std::int64_t begin = part.options().held.begin,
                     fused = part.routed().shape.unscaled_choices;
  const std::int64_t count = part.routed().shape.experts - fused;
  const std::int64_t k = part.problem().top_k();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (std::int64_t(i) % (k + fused) >= k) continue;  // a fused shared expert
    const std::int64_t local = ids[i] - begin;
    ids[i] = local >= 0 && local < count ? std::int32_t(local) : -1;
  }
}

ops::FfnArgs routed_args(const layer::Layer& part, const Call& call, const layer::Parts& parts) {
  const layer::ExpertBank& bank = part.routed();
  ops::FfnArgs f;
  f.shape = &bank.shape;
  f.layout = &bank.layout;
  f.packed = bank.packed.data();
  f.fc1_input_scale = bank.scales.fc1;
  f.activation = bank.activation.data();
  f.tokens = call.tokens;
  f.x_dtype = part.options().dtype;
  f.x = call.hidden.data();
  f.x_stride = part.problem().hidden;
  f.ids = parts.ids.data();
  f.weights = parts.weights.data();
  f.factor = part.problem().routed_scaling_factor;
  f.out_dtype = Dtype::kF32;
  f.out_stride = bank.shape.hidden;
  f.pool = part.options().pool.get();
  f.isa = part.options().isa;
  f.workspace = parts.stage;
  return f;
}

}  // namespace

checkpoint::LayerWeights with_declared_scales(const layer::Layer& whole) {
  checkpoint::LayerWeights w = whole.weights();
  if (!formats::is_static(whole.routed().shape.quant)) return w;
  w.expert = [inner = w.expert, scales = whole.routed().scales](std::int64_t e) {
    checkpoint::ExpertWeights out = inner(e);
    out.up.input_scale = scales.fc1;
    if (out.gate) out.gate->input_scale = scales.fc1;
    out.down.input_scale = scales.fc2[std::size_t(e)];
    return out;
  };
  return w;
}

std::unique_ptr<layer::Layer> make_part(const layer::Layer& whole, const PartOf& part) {
  layer::LayerOptions o = whole.options();
  o.held = part.held;
  o.tp = part.tp;
  o.shared_tp = part.shared_tp;
  return std::make_unique<layer::Layer>(with_declared_scales(whole), o);
}

Share share_of(const layer::Layer& part, Call& call) {
  const std::size_t tokens = std::size_t(call.tokens);
  const auto& shape = part.routed().shape;
  const float poison = std::nanf("");
  Share share;
  share.out.assign(tokens * std::size_t(shape.hidden), poison);
  share.inter.assign(tokens * std::size_t(shape.top_k * shape.inter), 0);
  if (part.shared() != nullptr)
    share.shared_inter.assign(tokens * std::size_t(part.shared()->shape.inter), 0);
  HostBuffer workspace(part.workspace_bytes(call.tokens));
  std::ranges::fill(workspace.bytes(), std::byte{0xff});
  Arena arena(workspace.bytes());
  layer::Parts parts = layer::take_parts(arena, part, call.tokens);
  StageCapture capture{.inter = share.inter.data(), .shared_inter = share.shared_inter.data()};
  ForwardArgs args = call.args();
  args.capture = &capture;
  layer::Routed routed{parts.ids, parts.weights, shape.top_k, 1};
  layer::choose_experts(part, args, parts, routed);
  layer::append_shared(part, args, routed);
  share.weights.assign(parts.weights.begin(), parts.weights.begin() + call.tokens * shape.top_k);
  share.chosen.assign(parts.ids.begin(), parts.ids.begin() + call.tokens * shape.top_k);
  keep_held(part, parts.ids.first(tokens * std::size_t(shape.top_k)));
  share.ids.assign(parts.ids.begin(), parts.ids.begin() + call.tokens * shape.top_k);
  if (part.shared() != nullptr) {
    layer::run_shared(part, args, parts);
    share.shared.assign(parts.shared_out.begin(), parts.shared_out.end());
  }
  ops::FfnArgs f = routed_args(part, call, parts);
  if (part.latent() != nullptr) {
    layer::project_down(part, {args, part.options().dtype, /*rounds=*/true}, parts.latent.data(),
                        parts.stage);
    f.x = parts.latent.data();
    f.x_dtype = Dtype::kF32;
    f.x_stride = part.problem().latent;
  } else if (part.shared() != nullptr) {
    f.addend = parts.shared_out.data();
  }
  share.rows.assign(share.ids.size() * std::size_t(shape.hidden), poison);
  f.out = share.out.data();
  f.rows = share.rows.data();
  f.rows_dtype = Dtype::kF32;
  f.capture = &capture;
  part.options().leaf->ffn->forward(f);
  return share;
}

layer::OracleResult oracle_of(const layer::Layer& part, const Call& call) {
  return layer::run_oracle(part,
                           {.tokens = call.tokens, .hidden = call.exact.data(), .logits = {}});
}

layer::OracleResult oracle_of(const layer::Layer& part, const Call& call, const Share& leaf,
                              bool with_codes) {
  layer::OracleArgs ask{.tokens = call.tokens, .hidden = call.exact.data(), .logits = {}};
  if (part.routed().shape.unscaled_choices == 0) ask.leaf_weights = leaf.weights.data();
  if (with_codes) ask.leaf_inter = leaf.inter.data();
  if (with_codes && !leaf.shared_inter.empty()) ask.leaf_shared_inter = leaf.shared_inter.data();
  return layer::run_oracle(part, ask);
}

}  // namespace switchyard::test
