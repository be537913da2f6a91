// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/layer_call.h"

#include <set>

#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/tune/timer.h"

namespace switchyard {

double layer_flops(const Problem& p, std::int64_t tokens) {
  const double projections = p.gated() ? 3 : 2;
  return 2 * projections * double(p.expert_hidden()) * double(p.inter) * double(p.top_k()) *
         double(tokens);
}

LayerCall::LayerCall(const MoeLayer& layer, const Traffic& traffic)
    : layer_(&layer),
      inputs_(layer.problem(), layer.impl().weights().router.vocab, traffic),
      workspace_(layer::on_cuda(layer.impl()) ? 0 : layer.workspace_bytes(traffic.tokens)) {
  if (layer::on_cuda(layer.impl()))
    device_ = std::make_unique<DeviceCall>(layer, traffic.tokens, inputs_.typed());
}

void LayerCall::prepare(std::int64_t call) {
  if (device_ == nullptr) return inputs_.fill(call);
  // Backwards, so that the host's copies are those of the first call, which is judged.
  for (std::int64_t i = device_->calls() - 1; i >= 0; --i) {
    inputs_.fill(call * device_->calls() + i);
    device_->set(i, inputs_.logits(), inputs_.token_ids());
  }
}

double LayerCall::forward() {
  if (device_ != nullptr) {
    const double time = device_->forward();
    device_->fetch(inputs_.out(), inputs_.ids());
    return time;
  }
  const ForwardArgs f = inputs_.args(workspace_.bytes());
  const double start = tune::now_us();
  layer_->forward(f);
  return tune::now_us() - start;
}

double LayerCall::route() {
  if (device_ != nullptr) return device_->route();
  ForwardArgs f = inputs_.args(workspace_.bytes());
  f.logits = {};
  std::vector<float> weights(inputs_.ids().size());
  layer::Routed routed{inputs_.ids(), weights, layer_->problem().top_k(), 1};
  const double start = tune::now_us();
  layer::route_tokens(layer_->impl(), f, layer_->problem().dtype, inputs_.logits(), routed);
  return tune::now_us() - start;
}

std::int64_t LayerCall::distinct_experts() const {
  std::set<std::int32_t> distinct(inputs_.ids().begin(), inputs_.ids().end());
  distinct.erase(distinct.lower_bound(std::int32_t(layer_->problem().num_experts())),
                 distinct.end());
  return std::int64_t(distinct.size());
}

layer::Judgement LayerCall::check(std::int64_t& checked, bool& same_bits) const {
  const Sample sample = inputs_.sample(kCheckedTokens);
  checked = std::int64_t(sample.picked.size());
  layer::Judgement j = layer::judge(layer_->impl(), sample.args());
  same_bits = inputs_.same_bits(sample, j.out);
  return j;
}

}  // namespace switchyard
