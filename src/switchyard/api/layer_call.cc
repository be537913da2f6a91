// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/layer_call.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "switchyard/api/judge_support.h"
#include "switchyard/base/random.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/tune/timer.h"

namespace switchyard {
namespace {

constexpr std::int64_t kCheckedTokens = 8;

float popularity(RoutingSkew skew, std::int64_t expert) {
  return skew == RoutingSkew::kZipf ? -std::log(float(expert + 1)) : 0.0f;
}

}  // namespace

double layer_flops(const Problem& p, std::int64_t tokens) {
  const double projections = p.gated() ? 3 : 2;
  return 2 * projections * double(p.expert_hidden()) * double(p.inter) * double(p.top_k()) *
         double(tokens);
}

LayerCall::LayerCall(const MoeLayer& layer, const Traffic& traffic)
    : layer_(&layer),
      p_(layer.problem()),
      traffic_(traffic),
      experts_(p_.num_experts() + p_.routing.zero_experts),
      logits_(std::size_t(traffic.tokens * experts_)),
      ids_(std::size_t(traffic.tokens * p_.top_k())),
      hidden_(random_tokens(traffic.tokens, p_.hidden, traffic.seed)),
      token_ids_(std::size_t(traffic.tokens)),
      workspace_(layer::on_cuda(layer.impl()) ? 0 : layer.workspace_bytes(traffic.tokens)) {
  const Dtype dtype = p_.dtype;
  typed_.resize(hidden_.size() * size_of(dtype));
  out_.resize(typed_.size());
  for (std::size_t i = 0; i < hidden_.size(); ++i)
    store_element(dtype, typed_.data(), std::int64_t(i), hidden_[i]);
  if (layer::on_cuda(layer.impl()))
    device_ = std::make_unique<DeviceCall>(layer, traffic.tokens, typed_);
}

/// Logits whose top k follow the asked skew: Gumbel noise plus an expert's log popularity.
void LayerCall::fill_logits(std::int64_t call) {
  const Random random(traffic_.seed, 1000 + std::uint64_t(call));
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    const std::int64_t e = std::int64_t(i) % experts_;
    const float u = std::max(random.uniform(i), 0x1p-24f);
    const float gumbel = -std::log(-std::log(u * (1 - 0x1p-23f)));
    logits_[i] = traffic_.routing == RoutingSkew::kOne ? -float(e)
                                                       : gumbel + popularity(traffic_.routing, e);
  }
}

/// Where a table over token ids chooses the experts, the skew is one of the token ids.
void LayerCall::fill_token_ids(std::int64_t call) {
  const std::int64_t vocab = std::max<std::int64_t>(1, layer_->impl().weights().router.vocab);
  const Random random(traffic_.seed, 9000 + std::uint64_t(call));
  for (std::size_t t = 0; t < token_ids_.size(); ++t) {
    token_ids_[t] = std::int64_t(random.bits(t) % std::uint64_t(vocab));
    if (traffic_.routing == RoutingSkew::kOne) token_ids_[t] = 0;
    if (traffic_.routing == RoutingSkew::kZipf)  // log-uniform: id i has weight 1 / (i + 1)
      token_ids_[t] =
          std::min(vocab - 1, std::int64_t(std::pow(double(vocab), double(random.uniform(t)))) - 1);
  }
}

void LayerCall::prepare(std::int64_t call) {
  if (device_ == nullptr) return fill_inputs(call);
  // Backwards, so that the host's copies are those of the first call, which is judged.
  for (std::int64_t i = device_->calls() - 1; i >= 0; --i) {
    fill_inputs(call * device_->calls() + i);
    device_->set(i, logits_, token_ids_);
  }
}

void LayerCall::fill_inputs(std::int64_t call) {
  fill_logits(call);
  fill_token_ids(call);
  std::fill(out_.begin(), out_.end(), std::byte(0xff));
}

double LayerCall::forward() {
  if (device_ != nullptr) {
    const double time = device_->forward();
    device_->fetch(out_, ids_);
    return time;
  }
  const ForwardArgs f = args();
  const double start = tune::now_us();
  layer_->forward(f);
  return tune::now_us() - start;
}

double LayerCall::route() {
  if (device_ != nullptr) return device_->route();
  ForwardArgs f = args();
  f.logits = {};
  std::vector<float> weights(ids_.size());
  layer::Routed routed{ids_, weights, p_.top_k(), 1};
  const double start = tune::now_us();
  layer::route_tokens(layer_->impl(), f, p_.dtype, logits_, routed);
  return tune::now_us() - start;
}

std::int64_t LayerCall::distinct_experts() const {
  std::set<std::int32_t> distinct(ids_.begin(), ids_.end());
  distinct.erase(distinct.lower_bound(std::int32_t(p_.num_experts())), distinct.end());
  return std::int64_t(distinct.size());
}

layer::Judgement LayerCall::check(std::int64_t& checked, bool& same_bits) const {
  checked = std::min(traffic_.tokens, kCheckedTokens);
  const std::int64_t h = p_.hidden;
  std::vector<float> hidden, logits;
  std::vector<std::int64_t> token_ids, picked;
  for (std::int64_t i = 0; i < checked; ++i) {
    const std::int64_t t = i * traffic_.tokens / checked;
    picked.push_back(t);
    hidden.insert(hidden.end(), hidden_.begin() + t * h, hidden_.begin() + (t + 1) * h);
    logits.insert(logits.end(), logits_.begin() + t * experts_,
                  logits_.begin() + (t + 1) * experts_);
    token_ids.push_back(token_ids_[std::size_t(t)]);
  }
  layer::Judgement j = layer::judge(
      layer_->impl(),
      {checked, hidden.data(), token_ids.data(), {logits.data(), checked, experts_, experts_}});
  same_bits = true;
  for (std::int64_t i = 0; i < checked * h; ++i) {
    const std::int64_t at = picked[std::size_t(i / h)] * h + i % h;
    const double together = load_element(p_.dtype, out_.data(), at), alone = j.out[std::size_t(i)];
    same_bits = same_bits && (together == alone || (std::isnan(together) && std::isnan(alone)));
  }
  return j;
}

ForwardArgs LayerCall::args() {
  ForwardArgs f;
  f.tokens = traffic_.tokens;
  f.hidden = typed_.data();
  f.hidden_stride = f.out_stride = p_.hidden;
  f.logits = {logits_.data(), traffic_.tokens, experts_, experts_};
  f.token_ids = token_ids_.data();
  f.out = out_.data();
  f.ids_out = ids_.data();
  f.workspace = workspace_.bytes();
  return f;
}

}  // namespace switchyard
