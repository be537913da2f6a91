// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/moe_layer.h"

#include <algorithm>

#include "switchyard/api/checkpoint.h"
#include "switchyard/api/layer_arrays.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/api/replacement.h"
#include "switchyard/base/check.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/run_experts.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/layer/synthetic.h"
#include "switchyard/resolve/json.h"

namespace switchyard {
namespace {

/// A forward on cuda leaves nothing on the host to count.
void require_counted(const layer::Layer& layer) {
  require(!layer::on_cuda(layer),
          "expert load: a layer on cuda does not count it yet; give its forwards "
          "ForwardArgs::expert_counts");
}

}  // namespace

MoeLayer MoeLayer::from_checkpoint(const Checkpoint& checkpoint, std::int64_t index,
                                   const BuildOptions& options) {
  return LayerBuilder::build(checkpoint.impl().layer(index), options);
}

MoeLayer MoeLayer::from_preset(std::string_view preset, const BuildOptions& options) {
  return LayerBuilder::build(layer::make_synthetic(make_preset(preset), options.seed), options);
}

MoeLayer MoeLayer::from_arrays(const LayerArrays& arrays, const BuildOptions& options) {
  const BorrowedArrays borrowed(arrays);
  return LayerBuilder::build(borrowed.weights(), options);
}

void MoeLayer::update_expert(std::int64_t e, const ExpertArrays& arrays) {
  layer::Layer& layer = *state_->layer;
  layer.update_expert(e, expert_from(arrays, problem(), layer.routed().shape.weights));
}

void MoeLayer::update_expert(std::int64_t e, const Checkpoint& checkpoint, std::int64_t index) {
  layer::Layer& layer = *state_->layer;
  const checkpoint::LayerWeights weights = replacing_layer(
      checkpoint, index, e, {problem(), *layer.options().leaf, state_->requantised});
  layer.update_expert(e, weights.expert(e));
  add_notices(weights.notices, state_->notices);
}

ExpertLoad MoeLayer::expert_load() const {
  require_counted(*state_->layer);
  return state_->layer->expert_load();
}
ExpertLoad MoeLayer::take_expert_load() const {
  require_counted(*state_->layer);
  return state_->layer->take_expert_load();
}

MoeLayer::MoeLayer(std::unique_ptr<State> state) : state_(std::move(state)) {}
MoeLayer::MoeLayer(MoeLayer&&) noexcept = default;
MoeLayer& MoeLayer::operator=(MoeLayer&&) noexcept = default;
MoeLayer::~MoeLayer() = default;

const Problem& MoeLayer::problem() const { return state_->layer->problem(); }
std::string MoeLayer::leaf() const { return state_->layer->options().leaf->id.str(); }
std::string MoeLayer::report_json() const { return resolve::to_json(state_->report); }
const std::vector<std::string>& MoeLayer::notices() const { return state_->notices; }
std::int64_t MoeLayer::packed_bytes() const { return state_->layer->packed_bytes(); }
std::vector<CallTactic> MoeLayer::tactics(std::int64_t tokens) const {
  layer::check_forward_tokens(*state_->layer, tokens);
  return layer::tactics_of(*state_->layer, tokens);
}
RoutingLaunchReport MoeLayer::routing_launch(std::int64_t tokens) const {
  layer::check_forward_tokens(*state_->layer, tokens);
  return layer::routing_launch(*state_->layer, tokens);
}
int MoeLayer::threads() const { return state_->layer->options().pool->size(); }
const layer::Layer& MoeLayer::impl() const { return *state_->layer; }

std::int64_t MoeLayer::expert_stored_bytes() const {
  const ops::FfnShape& s = state_->layer->routed().shape;
  const std::int64_t fc1 = s.weights.stored_bytes(s.inter, s.hidden);
  return (s.gated ? 2 : 1) * fc1 + s.weights.stored_bytes(s.hidden, s.inter);
}

std::size_t MoeLayer::workspace_bytes(std::int64_t max_tokens) const {
  return state_->layer->workspace_bytes(max_tokens);
}

void MoeLayer::forward(const ForwardArgs& args) const { state_->layer->forward(args); }

}  // namespace switchyard
