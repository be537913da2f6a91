// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/problem_reader.h"

#include "switchyard/base/check.h"

namespace switchyard::checkpoint {

namespace {

/// A count or width that must be there.
struct CountField {
  std::string_view names;
  std::int64_t high;
  std::string_view what;
};

std::int64_t required_at(const Family& f, const Config& c, std::int64_t layer,
                         const CountField& field) {
  if (!f.lists || !c.has(field.names)) return c.required(field.names, 1, field.high, field.what);
  return *c.integer_at(field.names, layer, 1, field.high);
}

}  // namespace

std::int64_t read_num_experts(const Family& f, const Config& c, std::int64_t layer) {
  return required_at(f, c, layer, {f.num_experts, kMaxRoutedExperts, "number of routed experts"});
}

Problem read_problem(const Family& family, const Config& c, std::int64_t layer,
                     const Scheme& scheme) {
  Problem p;
  p.format = std::string(scheme.format);
  p.activations = scheme.bf16_activations ? ActivationMode::kBf16 : ActivationMode::kFormat;
  p.dtype = c.text("dtype|torch_dtype", "bfloat16") == "float16" ? Dtype::kFp16 : Dtype::kBf16;
  p.hidden = c.required(family.hidden, 1, kMaxWidth, "width of the hidden states");
  const bool falls_back = !family.inter_fallback.empty() && !c.has(family.inter);
  p.inter = required_at(
      family, c, layer,
      {falls_back ? family.inter_fallback : family.inter, kMaxWidth, "width of a routed expert"});
  p.routing.num_experts = read_num_experts(family, c, layer);
  p.routing.top_k = required_at(family, c, layer, {family.top_k, kMaxTopK, "experts per token"});
  require(p.top_k() <= p.num_experts(), c.where(), ": '", alternatives(family.top_k).front(),
          "' is ", p.top_k(), ", more than the ", p.num_experts(),
          " experts there are; a token cannot choose one twice");
  p.expert_bias = family.expert_bias || !family.output_bias.empty();
  if (!family.latent.width.empty())
    p.latent = c.integer(family.latent.width, 0, kMaxWidth).value_or(0);
  p.activation = family.activation(c, layer);
  family.routing(c, layer, p);
  family.shared_shape(c, layer, p);
  try {
    p.check();
  } catch (const UsageError& e) {
    throw UsageError(cat(c.where(), ": ", e.what()));
  }
  return p;
}

}  // namespace switchyard::checkpoint
