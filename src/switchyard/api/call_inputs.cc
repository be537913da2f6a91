// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/call_inputs.h"

#include <algorithm>
#include <cmath>

#include "switchyard/api/judge_support.h"
#include "switchyard/base/random.h"

namespace switchyard {
namespace {

float popularity(RoutingSkew skew, std::int64_t expert) {
  return skew == RoutingSkew::kZipf ? -std::log(float(expert + 1)) : 0.0f;
}

}  // namespace

layer::JudgeArgs Sample::args() const {
  const std::int64_t count = std::int64_t(picked.size());
  const std::int64_t experts = count == 0 ? 0 : std::int64_t(logits.size()) / count;
  return {count, hidden.data(), token_ids.data(), {logits.data(), count, experts, experts}};
}

CallInputs::CallInputs(const Problem& problem, std::int64_t vocab, const Traffic& traffic)
    : p_(problem),
      vocab_(vocab),
      traffic_(traffic),
      experts_(p_.num_experts() + p_.routing.zero_experts),
      logits_(std::size_t(traffic.tokens * experts_)),
      ids_(std::size_t(traffic.tokens * p_.top_k())),
      hidden_(random_tokens(traffic.tokens, p_.hidden, traffic.seed)),
      token_ids_(std::size_t(traffic.tokens)) {
  typed_.resize(hidden_.size() * size_of(p_.dtype));
  out_.resize(typed_.size());
  for (std::size_t i = 0; i < hidden_.size(); ++i)
    store_element(p_.dtype, typed_.data(), std::int64_t(i), hidden_[i]);
}

/// Logits whose top k follow the asked skew: Gumbel noise plus an expert's log popularity.
void CallInputs::fill_logits(std::int64_t call) {
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
void CallInputs::fill_token_ids(std::int64_t call) {
  const std::int64_t vocab = std::max<std::int64_t>(1, vocab_);
  const Random random(traffic_.seed, 9000 + std::uint64_t(call));
  for (std::size_t t = 0; t < token_ids_.size(); ++t) {
    token_ids_[t] = std::int64_t(random.bits(t) % std::uint64_t(vocab));
    if (traffic_.routing == RoutingSkew::kOne) token_ids_[t] = 0;
    if (traffic_.routing == RoutingSkew::kZipf)  // log-uniform: id i has weight 1 / (i + 1)
      token_ids_[t] =
          std::min(vocab - 1, std::int64_t(std::pow(double(vocab), double(random.uniform(t)))) - 1);
  }
}

void CallInputs::fill(std::int64_t call) {
  fill_logits(call);
  fill_token_ids(call);
  std::fill(out_.begin(), out_.end(), std::byte(0xff));
}

ForwardArgs CallInputs::args(std::span<std::byte> workspace) {
  ForwardArgs f;
  f.tokens = traffic_.tokens;
  f.hidden = typed_.data();
  f.hidden_stride = f.out_stride = p_.hidden;
  f.logits = {logits_.data(), traffic_.tokens, experts_, experts_};
  f.token_ids = token_ids_.data();
  f.out = out_.data();
  f.ids_out = ids_.data();
  f.workspace = workspace;
  return f;
}

Sample CallInputs::sample(std::int64_t most) const {
  const std::int64_t count = std::min(traffic_.tokens, most), h = p_.hidden;
  Sample out;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t t = i * traffic_.tokens / count;
    out.picked.push_back(t);
    out.hidden.insert(out.hidden.end(), hidden_.begin() + t * h, hidden_.begin() + (t + 1) * h);
    out.logits.insert(out.logits.end(), logits_.begin() + t * experts_,
                      logits_.begin() + (t + 1) * experts_);
    out.token_ids.push_back(token_ids_[std::size_t(t)]);
  }
  return out;
}

bool CallInputs::same_bits(const Sample& sample, const std::vector<double>& alone) const {
  const std::int64_t h = p_.hidden, count = std::int64_t(sample.picked.size());
  for (std::int64_t i = 0; i < count * h; ++i) {
    const std::int64_t at = sample.picked[std::size_t(i / h)] * h + i % h;
    const double together = load_element(p_.dtype, out_.data(), at), one = alone[std::size_t(i)];
    if (together != one && !(std::isnan(together) && std::isnan(one))) return false;
  }
  return true;
}

}  // namespace switchyard
