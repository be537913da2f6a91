// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/layer/bank.h"
#include "switchyard/layer/calibrate.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/packed_source.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/layer/update.h"

namespace switchyard::layer {
namespace {

ops::FfnShape routed_shape(const checkpoint::LayerWeights& w, const LayerOptions& o) {
  const Problem& p = w.problem;
  const std::int64_t fused = o.fuse_shared ? p.num_shared : 0;
  const Shard columns = ExpertPart::of(p.inter, o.tp).columns;
  return {.hidden = p.expert_hidden(),
          .inter = columns.size,
          .inter_begin = columns.begin,
          .experts = (o.held.size > 0 ? o.held.size : p.num_experts()) + fused,
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
  const Shard columns = ExpertPart::of(s.weights.up.rows, o.shared_tp).columns;
  return {.hidden = w.problem.hidden,
          .inter = columns.size,
          .inter_begin = columns.begin,
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

/// Whether `e` holds the bytes of one expert of `bank`, where the bank lies.
bool fits(const PackedExpert& e, const ExpertBank& bank) {
  if (bank.device_packed == nullptr) return e.bytes.bytes().size() >= bank.layout.bytes;
  return e.device_bytes != nullptr && e.device_bytes->size() == bank.layout.bytes;
}

}  // namespace

void LayerOptions::check() const {
  tp.check("TP group");
  shared_tp.check("the shared expert's group");
}

Layer::Layer(checkpoint::LayerWeights weights, const LayerOptions& options)
    : weights_(std::move(weights)), options_(options), leaf_id_(options.leaf->id.str()) {
  const Problem& p = weights_.problem;
  p.check();
  options_.check();
  require(p.latent > 0 || !weights_.latent, "layer ", weights_.layer,
          " has latent projections and a latent width of 0; give both or neither");
  require(p.latent == 0 || !options_.fuse_shared, "layer ", weights_.layer,
          ": shared experts read the hidden states and cannot be fused with latent experts");
  if (p.latent > 0) latent_ = build_latent(weights_, options_);
  load_.reset(p.num_experts() + p.routing.zero_experts);
  source_ = std::move(weights_.expert);
  weights_.expert = replaceable(source_, updates_);
  if (options_.leaf->device == Device::kCuda) tables_ = upload_tables(weights_);
  routed_ = build_bank({.shape = routed_shape(weights_, options_),
                        .leaf = *options_.leaf,
                        .source = packed_source(weights_, options_),
                        .activation = p.activation,
                        .options = options_},
                       needs_calibration_);
  if (!weights_.shared || options_.fuse_shared) return;
  shared_leaf_id_ = options_.shared_leaf->id.str();
  bool missing = false;
  const checkpoint::SharedExpert& shared = *weights_.shared;
  LayerOptions quiet = options_;
  quiet.progress = nullptr;
  quiet.held = {};  // whose first constants are the routed experts'
  shared_ = build_bank({.shape = shared_shape(weights_, options_),
                        .leaf = *options_.shared_leaf,
                        .source = packed_shared(weights_, options_),
                        .activation = shared.activation,
                        .options = quiet},
                       missing);
  require(!missing, "layer ", weights_.layer, ": the shared expert's format ", shared.format,
          " needs input_scale tensors, which the checkpoint lacks");
}

std::unique_ptr<Layer> Layer::copy() const {
  ThreadPool& pool = *options_.pool;
  const std::shared_lock<std::shared_mutex> reading = gate_.reading();
  std::unique_ptr<Layer> out(new Layer);
  out->weights_ = weights_;
  out->source_ = source_;
  out->updates_ = std::make_shared<ExpertUpdates>(*updates_);
  out->weights_.expert = replaceable(source_, out->updates_);
  out->options_ = options_;
  out->tables_ = tables_;
  out->routed_ = copy_bank(routed_, pool);
  if (shared_) out->shared_ = copy_bank(*shared_, pool);
  if (latent_)
    out->latent_ = LatentBank{latent_->down_shape, latent_->up_shape,
                              copy_buffer(latent_->down, pool), copy_buffer(latent_->up, pool)};
  out->needs_calibration_ = needs_calibration_;
  out->load_.reset(problem().num_experts() + problem().routing.zero_experts);
  out->leaf_id_ = leaf_id_;
  out->shared_leaf_id_ = shared_leaf_id_;
  return out;
}

std::int64_t Layer::packed_bytes() const {
  std::int64_t bytes = routed_.packed_bytes();
  if (shared_) bytes += shared_->packed_bytes();
  if (latent_) bytes += std::int64_t(latent_->down.bytes().size() + latent_->up.bytes().size());
  return bytes;
}

PackingMemory Layer::packing() const {
  const PackingMemory shared = shared_ ? shared_->packing : PackingMemory{};
  return {std::max(routed_.packing.device, shared.device),
          std::max(routed_.packing.pinned, shared.pinned)};
}

void Layer::calibrate(std::int64_t tokens, const float* hidden, const std::int64_t* token_ids) {
  if (!formats::is_static(routed_.shape.quant)) return;
  check_whole("calibrate");
  if (on_cuda(*this)) check_gpu(*this, "calibrate");
  const std::lock_guard<std::mutex> one_change(change_);
  const CalibrationAmax amax = calibration_amax(*this, tokens, hidden, token_ids);
  StaticScales scales = calibrated_scales(routed_.shape.quant, amax, amax.largest());
  const UpdateGate::Writing writing(gate_);
  set_static_scales(routed_, std::move(scales));
  needs_calibration_ = false;
}

void Layer::set_scales(StaticScales scales) {
  if (!formats::is_static(routed_.shape.quant)) return;
  if (on_cuda(*this)) check_gpu(*this, "calibrate");
  const std::lock_guard<std::mutex> one_change(change_);
  const UpdateGate::Writing writing(gate_);
  set_static_scales(routed_, std::move(scales));
  needs_calibration_ = false;
}

std::size_t Layer::workspace_bytes(std::int64_t max_tokens) const {
  return on_cuda(*this) ? device_rank_workspace(*this, max_tokens)
                        : single_rank_workspace(*this, max_tokens);
}

void Layer::update_expert(std::int64_t e, checkpoint::ExpertWeights expert) {
  commit_update(prepare_update(e, std::move(expert)));
}

PreparedUpdate Layer::prepare_update(std::int64_t e, checkpoint::ExpertWeights expert) {
  const Shard held = held_experts(weights_, options_);
  require(e >= held.begin && e < held.begin + held.size, "update_expert: expert ", e,
          " is outside ", held.begin, "..", held.begin + held.size - 1,
          ", the routed experts of this layer");
  if (on_cuda(*this)) check_gpu(*this, "update_expert");
  PreparedUpdate out{e, {}, std::move(expert)};
  const std::lock_guard<std::mutex> one_change(change_);
  check_room("update_expert", updates_->bytes_beside(e) + bytes_of(out.weights),
             "newest weights of the replaced ones, which verification reads");
  out.packed = pack_replacement(
      routed_, *options_.leaf,
      {e, e - held.begin, out.weights, ExpertPart::of(problem().inter, options_.tp)});
  return out;
}

void Layer::commit_update(PreparedUpdate update) {
  const std::lock_guard<std::mutex> one_change(change_);
  const UpdateGate::Writing writing(gate_);
  put(update.packed);  // a GPU may fail, and the oracle then keeps reading what is there
  updates_->put(update.expert, std::move(update.weights));
}

void Layer::check_room(std::string_view call, std::int64_t bytes, std::string_view what) const {
  const std::int64_t limit = options_.memory_bytes / 10 * 9;
  const std::int64_t packed = on_cuda(*this) ? 0 : packed_bytes();  // of the host's memory
  const std::string beside =
      on_cuda(*this) ? "" : cat("the packed experts need ", packed, " bytes and ");
  require(options_.memory_bytes == 0 || packed + bytes < limit, call, ": ", beside, "the ", what,
          " need ", bytes, "; ", limit, " of the ", options_.memory_bytes,
          " bytes of memory that were available may be used; build the layer anew as it is to be");
}

void Layer::put(const PackedExpert& e) {
  const std::size_t bytes = routed_.layout.bytes, at = std::size_t(e.slot) * bytes;
  if (routed_.device_packed == nullptr) {
    std::memcpy(routed_.packed.data() + at, e.bytes.data(), bytes);
  } else {
    wait_for_device();  // forwards that are enqueued read the old expert
    routed_.device_packed->place(*e.device_bytes, at);
  }
  routed_.scales.fc2[std::size_t(e.slot)] = e.fc2_scale;
}

void Layer::place_packed(std::span<const PackedExpert> experts) {
  const std::int64_t first = held_experts(weights_, options_).begin;
  for (const PackedExpert& e : experts)
    ensure(e.slot >= 0 && e.slot < routed_.shape.experts && fits(e, routed_), "a packed expert of ",
           e.bytes.bytes().size(), " bytes for slot ", e.slot);
  const std::lock_guard<std::mutex> one_change(change_);
  const UpdateGate::Writing writing(gate_);
  for (const PackedExpert& e : experts) {
    put(e);
    updates_->forget(first + e.slot);
  }
}

void Layer::check_whole(std::string_view call) const {
  const Shard held = held_experts(weights_, options_);
  require(!options_.is_part(), call, ": this is one rank's part of a layer, with experts ",
          held.begin, "..", held.begin + held.size - 1, " of ", problem().num_experts(), " and ",
          routed_.shape.inter, " of their ", problem().inter,
          " columns; it runs through its group only");
}

void Layer::forward(const ForwardArgs& args) const {
  check_whole("forward");
  const std::shared_lock<std::shared_mutex> reading = gate_.reading();
  if (on_cuda(*this)) return device_rank_forward(*this, args);
  single_rank_forward(*this, args);
}

}  // namespace switchyard::layer
