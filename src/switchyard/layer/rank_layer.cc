// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/rank_layer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "switchyard/base/arena.h"
#include "switchyard/base/check.h"
#include "switchyard/base/version.h"
#include "switchyard/core/shard.h"
#include "switchyard/layer/single_rank.h"

namespace switchyard::layer {
namespace {

constexpr std::string_view kPhase = "creation of the layer's part";

void check_served(const Problem& p, const RankOptions& o) {
  require(p.latent == 0, "layers with latent experts run on one rank in this version");
  require(p.routing.zero_experts == 0, "layers with zero experts run on one rank in this version");
  require(!o.layer.fuse_shared, "shared experts are fused on one rank only");
  require(o.strategy->contract.weights == comm::WeightsBy::kExperts ||
              p.routing.placement != WeightPlacement::kInput,
          "strategy ", o.strategy->name,
          " weighs in the combine, this layer on the experts' input; choose another strategy");
}

/// What the ranks must have in common.
std::array<comm::Agreed, 11> common_of(const Layer& layer, const RankOptions& o, comm::Wire wire) {
  const Problem& p = layer.problem();
  return {{{"build", cat(version(), "+", commit())},
           {"leaf", layer.leaf_id()},
           {"shared leaf", layer.shared_leaf_id()},
           {"experts", cat(p.num_experts())},
           {"hidden", cat(p.hidden)},
           {"inter", cat(p.inter)},
           {"factor", cat(p.routed_scaling_factor)},
           {"dtype", std::string(to_string(layer.options().dtype))},
           {"activations", std::string(to_string(layer.options().activations))},
           {"isa", std::string(to_string(layer.options().isa))},
           {"wire", cat(comm::to_string(wire), " by ", o.strategy->name)}}};
}

/// FC1's static scale is the maximum over all experts, not only those of this rank.
float group_maximum(comm::Group& group, float value) {
  const auto* bytes = reinterpret_cast<const char*>(&value);
  for (const std::string& text : group.all_gather({bytes, sizeof value}, kPhase)) {
    float other;
    std::memcpy(&other, text.data(), sizeof other);
    value = std::max(value, other);
  }
  return value;
}

/// Dtype in which the experts can write a wire form themselves; F32 where it is encoded after them.
Dtype written_dtype(comm::Wire wire) {
  return wire == comm::Wire::kBf16   ? Dtype::kBf16
         : wire == comm::Wire::kFp16 ? Dtype::kFp16
                                     : Dtype::kF32;
}

bool written_in_place(comm::Wire wire) {
  return wire != comm::Wire::kFp8 && wire != comm::Wire::kNvfp4;
}

/// Finishes a token: factor, shared expert, the one rounding of the output.
struct Finisher {
  const ForwardArgs& args;
  Dtype dtype;
  std::int64_t hidden;
  float factor;
  const float* shared;  // [tokens, hidden] or null

  static void row(void* self, std::int64_t token, const float* sum) {
    const auto& f = *static_cast<const Finisher*>(self);
    const float* addend = f.shared != nullptr ? f.shared + token * f.hidden : nullptr;
    for (std::int64_t h = 0; h < f.hidden; ++h) {
      float value = sum[h] * f.factor;
      if (addend != nullptr) value += addend[h];
      store_element(f.dtype, f.args.out, token * f.args.out_stride + h, value);
    }
  }
};

}  // namespace

RankLayer::RankLayer(comm::Group& group, checkpoint::LayerWeights weights,
                     const RankOptions& options)
    : group_(group),
      strategy_(options.strategy),
      capacity_(options.capacity),
      wire_(comm::to_wire(weights.problem.combine, options.layer.dtype)) {
  const Problem problem = weights.problem;
  guarded(group, kPhase, [&] {
    check_served(problem, options);
    LayerOptions part = options.layer;
    part.held = ep_shard(problem.num_experts(), group.size(), group.rank());
    layer_ = std::make_unique<Layer>(std::move(weights), part);
    require(!layer_->needs_calibration(), "format ", problem.format,
            " has static activation scales and this layer has none; ranks do not calibrate yet, "
            "ask for activations = bf16");
  });
  comm::agree(group, common_of(*layer_, options, wire_), kPhase);
  layer_->raise_fc1_scale(group_maximum(group, layer_->routed().scales.fc1));
  shape_ = layer_->routed().shape;
  if (strategy_->contract.layout == comm::RowLayout::kExpertMajor) shape_.top_k = 1;
  exchange_ =
      make_exchange(*strategy_, group,
                    {.ep = group.size(),
                     .slots = problem.num_experts(),
                     .top_k = problem.top_k(),
                     .capacity = capacity_,
                     .hidden = problem.hidden,
                     .row_bytes = problem.hidden * std::int64_t(size_of(options.layer.dtype)),
                     .share_bytes = comm::wire_bytes(wire_, problem.hidden)},
                    options.exchange);
}

std::size_t RankLayer::workspace_bytes() const {
  Arena arena;
  take_parts(arena, *layer_, capacity_);
  if (!written_in_place(wire_)) arena.take<float>(std::size_t(capacity_ * shape_.hidden));
  return arena.used();
}

void RankLayer::run_experts(const comm::Received& in, std::span<float> rows,
                            std::span<std::byte> stage) const {
  const ExpertBank& bank = layer_->routed();
  const Dtype x_dtype = layer_->options().dtype, y_dtype = written_dtype(wire_);
  for (const comm::Segment& segment : in.segments) {
    std::byte* shares = in.shares + segment.first * in.share_stride;
    ops::FfnArgs f;
    f.shape = &shape_;
    f.layout = &bank.layout;
    f.packed = bank.packed.data();
    f.fc1_input_scale = bank.scales.fc1;
    f.activation = bank.activation.data();
    f.tokens = segment.rows;
    f.x_dtype = x_dtype;
    f.x = in.hidden + segment.first * in.hidden_stride;
    f.x_stride = in.hidden_stride / std::int64_t(size_of(x_dtype));
    f.ids = in.ids + segment.first * in.ids_per_row;
    f.weights = in.weights + segment.first * in.ids_per_row;
    f.out_dtype = y_dtype;
    f.pool = layer_->options().pool.get();
    f.isa = layer_->options().isa;
    f.workspace = stage;
    if (written_in_place(wire_)) {  // straight into the exchange's memory
      f.out = shares;
      f.out_stride = in.share_stride / std::int64_t(size_of(y_dtype));
      layer_->options().leaf->ffn->forward(f);
      continue;
    }
    f.out = rows.data();
    f.out_stride = shape_.hidden;
    layer_->options().leaf->ffn->forward(f);
    for (std::int64_t i = 0; i < segment.rows; ++i)
      comm::encode_row(wire_, rows.data() + i * shape_.hidden, shape_.hidden,
                       shares + i * in.share_stride);
  }
}

void RankLayer::forward(const ForwardArgs& a) {
  const auto reading = layer_->reading();
  const Layer& layer = *layer_;
  try {
    require(a.tokens <= capacity_, "forward of ", a.tokens, " tokens on rank ", group_.rank(),
            " exceeds the capacity ", capacity_, "; split the batch or build the layer for more");
    require(a.unfinalised == nullptr, "an unfinalised output is built for one rank only");
    check_forward(layer, a);
    write_trace(layer, a);
    Arena arena(a.workspace);
    Parts parts = take_parts(arena, layer, capacity_);
    std::span<float> rows;
    if (!written_in_place(wire_)) rows = arena.take<float>(std::size_t(capacity_ * shape_.hidden));
    Routed routed{parts.ids, parts.weights, layer.problem().top_k(),
                  layer.problem().routed_scaling_factor};
    if (a.tokens > 0) {
      choose_experts(layer, a, parts, routed);
      if (layer.shared() != nullptr) run_shared(layer, a, parts);
    }
    const std::int64_t element = std::int64_t(size_of(layer.options().dtype));
    comm::Ticket ticket = exchange_->dispatch({.tokens = a.tokens,
                                               .hidden = a.hidden,
                                               .hidden_stride = a.hidden_stride * element,
                                               .row_bytes = layer.problem().hidden * element,
                                               .ids = routed.ids.data(),
                                               .weights = routed.weights.data(),
                                               .wire = wire_});
    run_experts(ticket.received(), rows, parts.stage);
    Finisher finisher{a, layer.options().dtype, layer.problem().hidden, routed.factor,
                      layer.shared() != nullptr ? parts.shared_out.data() : nullptr};
    exchange_->combine(std::move(ticket), {&finisher, Finisher::row});
    report_routing(layer, a, routed);
    layer.load_counter().add(routed.ids.data(), a.tokens, layer.problem().top_k(), routed.width);
  } catch (const Error& e) {
    group_.abort(e.what());  // or the others would wait for this rank
    throw;
  }
}

}  // namespace switchyard::layer
