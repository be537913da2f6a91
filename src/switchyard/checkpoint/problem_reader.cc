// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/problem_reader.h"

#include "switchyard/base/check.h"

namespace switchyard::checkpoint {

Problem read_problem(const Family& family, const Config& c, std::int64_t layer,
                     const Scheme& scheme) {
  Problem p;
  p.format = std::string(scheme.format);
  p.activations = scheme.bf16_activations ? ActivationMode::kBf16 : ActivationMode::kFormat;
  p.dtype = c.text("dtype|torch_dtype", "bfloat16") == "float16" ? Dtype::kFp16 : Dtype::kBf16;
  p.hidden = c.required("hidden_size", 1, kMaxWidth, "width of the hidden states");
  p.inter = c.required(family.inter, 1, kMaxWidth, "width of a routed expert");
  p.routing.num_experts =
      c.required(family.num_experts, 1, kMaxRoutedExperts, "number of routed experts");
  p.routing.top_k = c.required(family.top_k, 1, kMaxTopK, "experts per token");
  require(p.top_k() <= p.num_experts(), c.where(), ": '", alternatives(family.top_k).front(),
          "' is ", p.top_k(), ", more than the ", p.num_experts(),
          " experts there are; a token cannot choose one twice");
  p.expert_bias = family.expert_bias;
  p.activation = family.activation(c);
  family.routing(c, layer, p);
  family.shared_shape(c, p);
  try {
    p.check();
  } catch (const UsageError& e) {
    throw UsageError(cat(c.where(), ": ", e.what()));
  }
  return p;
}

}  // namespace switchyard::checkpoint
