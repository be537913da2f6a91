// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/layer_call.h"

#include <set>

#include "switchyard/base/check.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/tune/timer.h"

namespace switchyard {

double layer_flops(const Problem& p, std::int64_t tokens) {
  const double projections = p.gated() ? 3 : 2;
  return 2 * projections * double(p.expert_hidden()) * double(p.inter) * double(p.top_k()) *
         double(tokens);
}

LayerCall::LayerCall(std::span<const MoeLayer> layers, const Traffic& traffic)
    : layers_(layers),
      layer_(&layers.front()),
      inputs_(layer_->problem(), layer_->impl().weights().router.vocab, traffic),
      workspace_(layer::on_cuda(layer_->impl()) ? 0 : layer_->workspace_bytes(traffic.tokens)) {
  if (layer::on_cuda(layer_->impl()))
    device_ = std::make_unique<DeviceCall>(layers, traffic.tokens, inputs_.typed());
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
  return device_ != nullptr ? device_->forward() : timed_forward(nullptr);
}

double LayerCall::forward(tune::Tape& tape) {
  return device_ != nullptr ? device_->forward(tape) : timed_forward(&tape);
}

double LayerCall::timed_forward(tune::Tape* tape) {
  ForwardArgs f = inputs_.args(workspace_.bytes());
  f.tape = tape;
  const double start = tune::now_us();
  layer_->forward(f);
  return tune::now_us() - start;
}

double LayerCall::eager() {
  ensure(device_ != nullptr, "LayerCall: eager() is of a layer on cuda");
  return device_->eager();
}

double LayerCall::warm() {
  ensure(device_ != nullptr, "LayerCall: warm() is of a layer on cuda");
  return device_->warm();
}

void LayerCall::settle() {
  if (device_ == nullptr) return;
  std::int64_t sum = 0;
  for (std::int64_t i = device_->calls() - 1; i >= 0; --i) {  // the first one's results stay
    device_->fetch(i, inputs_.out(), inputs_.ids());
    sum += count_distinct();
  }
  distinct_ = (sum + device_->calls() / 2) / device_->calls();
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

std::int64_t LayerCall::count_distinct() const {
  std::set<std::int32_t> distinct(inputs_.ids().begin(), inputs_.ids().end());
  distinct.erase(distinct.lower_bound(std::int32_t(layer_->problem().num_experts())),
                 distinct.end());
  return std::int64_t(distinct.size());
}

std::int64_t LayerCall::distinct_experts() const {
  return device_ != nullptr ? distinct_ : count_distinct();
}

layer::Judgement LayerCall::check(std::int64_t& checked, bool& same_bits) const {
  const Sample sample = inputs_.sample(kCheckedTokens);
  checked = std::int64_t(sample.picked.size());
  layer::Judgement j = layer::judge(layer_->impl(), sample.args());
  same_bits = inputs_.same_bits(sample, j.out);
  return j;
}

}  // namespace switchyard
