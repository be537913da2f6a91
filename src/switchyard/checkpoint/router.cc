// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/router.h"

#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/config.h"
#include "switchyard/checkpoint/finite.h"
#include "switchyard/checkpoint/linear.h"

namespace switchyard::checkpoint {
namespace {

std::vector<std::int32_t> read_hash_table(const BlockContext& c, const Config& config,
                                          std::int64_t& vocab) {
  const Tensor* stored = c.reader.peek(c.family.hash_table);
  std::int64_t rows = stored && stored->shape.size() == 2 ? stored->shape[0] : 1;
  vocab = config.integer("vocab_size", 1, std::int64_t(1) << 31).value_or(rows);
  std::string name;
  const Tensor* t =
      c.reader.want(c.family.hash_table,
                    {{TensorType::kI64, TensorType::kI32}, {vocab, c.problem.top_k()}}, &name);
  if (!t) return {};
  try {
    return read_ids(*t, c.problem.num_experts(), cat("tensor '", name, "'"));
  } catch (const UsageError& e) {
    c.reader.fault(FindingKind::kBadScale, name, e.what());
    return {};
  }
}

/// [ids], or where the family stores rows of biases, row 0 of them.
std::vector<float> read_choice_bias(const BlockContext& c, std::int64_t ids,
                                    std::vector<std::string>& notices) {
  FloatsArgs args{c.family.choice_bias, {ids}, "correction bias"};
  const Tensor* stored = c.reader.peek(c.family.choice_bias);
  if (c.family.choice_bias_rows && stored && stored->shape.size() == 2 && stored->shape[0] <= 2)
    args.shape = {stored->shape[0], ids};
  std::vector<float> out = read_float_tensor(c.reader, args, notices);
  if (std::int64_t(out.size()) > ids) {
    out.resize(std::size_t(ids));
    notices.push_back("the correction bias has two rows; row 0, the text's, is applied");
  }
  return out;
}

/// The router reads norm(x) * scale * H^-0.5. Both factors go into its weight; the norm's own
/// factor is one number per token, which the routing applies (RoutingSpec::input_norm_eps). Where x
/// itself is a norm's output of known weight g, the router's input is x / g and nothing is left to
/// apply.
void fold_input_scale(const BlockContext& c, std::vector<float>& weight,
                      std::vector<std::string>& notices) {
  const std::size_t hidden = std::size_t(c.problem.hidden);
  std::vector<float> scale =
      read_float_tensor(c.reader, {c.family.router_scale, {c.problem.hidden}}, notices);
  std::vector<float> divisor(hidden, 1.0f);
  if (knows_input_norm(c.family, c.reader)) {
    std::string name;
    c.reader.peek(c.family.expert_input_norm, &name);
    divisor =
        read_float_tensor(c.reader, {c.family.expert_input_norm, {c.problem.hidden}}, notices);
    for (std::size_t h = 0; h < divisor.size(); ++h) {
      if (divisor[h] != 0) continue;
      c.reader.fault(FindingKind::kBadScale, name,
                     cat("tensor '", name, "': element ", h,
                         " is 0, and the router's input is what it was multiplied with; a layer "
                         "alone cannot restore it"));
      return;
    }
    notices.push_back(
        "hidden states are the experts' input, behind pre_feedforward_layernorm_2; the router's "
        "input is restored from it");
  }
  if (scale.size() != hidden || divisor.size() != hidden) return;
  for (std::size_t i = 0; i < weight.size(); ++i)
    weight[i] = float(double(weight[i]) * double(scale[i % hidden]) /
                      (double(divisor[i % hidden]) * std::sqrt(double(hidden))));
}

}  // namespace

std::vector<float> read_float_tensor(BlockReader& reader, const FloatsArgs& args,
                                     std::vector<std::string>& notices) {
  std::string name;
  const Tensor* t = reader.want(args.names, {float_types(), args.shape}, &name);
  if (!t) return {};
  if (!args.what.empty() && t->type != TensorType::kF32)
    notices.push_back(
        cat(args.what, " '", name, "' is stored as ", to_string(t->type), "; read as fp32"));
  check_floats(reader, *t, name);
  return read_floats(*t, name);
}

bool knows_input_norm(const Family& family, const BlockReader& reader) {
  return !family.expert_input_norm.empty() && reader.peek(family.expert_input_norm) != nullptr;
}

RouterWeights read_router(const BlockContext& c, const Config& config,
                          std::vector<std::string>& notices) {
  const RoutingSpec& r = c.problem.routing;
  std::int64_t ids = r.num_experts + r.zero_experts;
  RouterWeights out;
  out.weight = read_float_tensor(c.reader, {c.family.router, {ids, c.problem.hidden}}, notices);
  if (!c.family.router_scale.empty()) fold_input_scale(c, out.weight, notices);
  if (r.per_expert_scale)
    out.per_expert_scale =
        read_float_tensor(c.reader, {c.family.per_expert_scale, {r.num_experts}}, notices);
  if (!c.family.logit_bias.empty())
    out.logit_bias = read_float_tensor(c.reader, {c.family.logit_bias, {ids}}, notices);
  if (r.choice_bias) {
    out.choice_bias = read_choice_bias(c, ids, notices);
  } else if (!c.family.choice_bias.empty() && r.choice == ChoiceRule::kTopK &&
             c.reader.peek(c.family.choice_bias)) {
    c.reader.ignore(c.family.choice_bias);
    notices.push_back(
        "a correction bias is stored and switched off by config.json; it is not applied");
  }
  if (r.choice == ChoiceRule::kHash) out.hash_table = read_hash_table(c, config, out.vocab);
  return out;
}

}  // namespace switchyard::checkpoint
