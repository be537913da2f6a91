// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/families.h"

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/base/nearest.h"
#include "switchyard/checkpoint/json_text.h"
#include "switchyard/checkpoint/recipes.h"

namespace switchyard::checkpoint {
namespace {

using namespace recipes;  // NOLINT: the table below is a list of their names

constexpr Family kFamilies[] = {
    {.model_types = "mixtral",
     .blocks = "block_sparse_moe|mlp",
     .gate = "w1|gate_proj",
     .up = "w3|up_proj",
     .down = "w2|down_proj",
     .num_experts = "num_local_experts|num_experts",
     .inter = "intermediate_size",
     .layers = all_layers,
     .mtp = next_token_layers,
     .routing = renormalize,
     .activation = gated_activation,
     .shared_shape = no_shared},
    {.model_types = "qwen2_moe",
     .shared = "shared_expert",
     .shared_gate = "shared_expert_gate.weight",
     .num_experts = "num_experts|num_local_experts",
     .layers = qwen_layers,
     .mtp = next_token_layers,
     .routing = qwen2_routing,
     .activation = gated_activation,
     .shared_shape = qwen2_shared},
    {.model_types = "qwen3_moe",
     .num_experts = "num_experts|num_local_experts",
     .layers = qwen_layers,
     .mtp = next_token_layers,
     .routing = qwen3_routing,
     .activation = gated_activation,
     .shared_shape = no_shared},
    {.model_types = "deepseek_v2",
     .shared = "shared_experts",
     .num_experts = "n_routed_experts|num_local_experts|num_experts",
     .layers = deepseek_v2_layers,
     .mtp = next_token_layers,
     .routing = deepseek_v2_routing,
     .activation = gated_activation,
     .shared_shape = counted_shared_default_none},
    {.model_types = "deepseek_v3|kimi_k2",
     .choice_bias = "gate.e_score_correction_bias",
     .shared = "shared_experts",
     .num_experts = "n_routed_experts|num_local_experts|num_experts",
     .layers = deepseek_v3_layers,
     .mtp = next_token_layers,
     .routing = deepseek_v3_routing,
     .activation = gated_activation,
     .shared_shape = counted_shared},
    {.model_types = "deepseek_v4",
     .blocks = "ffn|mlp",
     .gate = "w1|gate_proj",
     .up = "w3|up_proj",
     .down = "w2|down_proj",
     .choice_bias = "gate.bias|gate.e_score_correction_bias",
     .hash_table = "gate.tid2eid",
     .shared = "shared_experts",
     .num_experts = "n_routed_experts|num_local_experts|num_experts",
     .layers = all_layers,
     .mtp = next_token_layers,
     .routing = deepseek_v4_routing,
     .activation = clamped_swiglu,
     .shared_shape = counted_shared},
    {.model_types = "gpt_oss",
     .stacked_order = StackedOrder::kInterleavedColumns,
     .stacked_by_default = true,
     .router = "router.weight",
     .logit_bias = "router.bias",
     .expert_bias = true,
     .mxfp4_blocks = true,
     .num_experts = "num_local_experts|num_experts",
     .top_k = "num_experts_per_tok|experts_per_token",
     .inter = "intermediate_size",
     .layers = all_layers,
     .mtp = next_token_layers,
     .routing = renormalize,
     .activation = gpt_oss_activation,
     .shared_shape = no_shared},
    {.model_types = "granitemoe",
     .blocks = "block_sparse_moe|mlp",
     .stacked_up = "input_linear.weight|experts.gate_up_proj",
     .stacked_down = "output_linear.weight|experts.down_proj",
     .stacked_by_default = true,
     .router = "router.layer.weight|gate.weight",
     .num_experts = "num_local_experts|num_experts",
     .inter = "intermediate_size",
     .layers = all_layers,
     .mtp = next_token_layers,
     .routing = renormalize,
     .activation = gated_activation,
     .shared_shape = no_shared},
    {.model_types = "llama4_text|llama4",
     .blocks = "feed_forward",
     .stacked_order = StackedOrder::kColumns,
     .stacked_by_default = true,
     .router = "router.weight",
     .shared = "shared_expert",
     .num_experts = "num_local_experts|num_experts",
     .inter = "intermediate_size",
     .layers = llama4_layers,
     .mtp = next_token_layers,
     .routing = llama4_routing,
     .activation = gated_activation,
     .shared_shape = one_shared},
    {.model_types = "minimax_m2",
     .blocks = "block_sparse_moe|mlp",
     .gate = "w1|gate_proj",
     .up = "w3|up_proj",
     .down = "w2|down_proj",
     .choice_bias = "e_score_correction_bias|gate.e_score_correction_bias",
     .num_experts = "num_local_experts|num_experts",
     .inter = "intermediate_size",
     .layers = all_layers,
     .mtp = next_token_layers,
     .routing = minimax_m2_routing,
     .activation = gated_activation,
     .shared_shape = no_shared},
    {.model_types = "nemotron_h",
     .blocks = "mixer",
     .gate = "",
     .stacked_up = "experts.up_proj",
     .choice_bias = "gate.e_score_correction_bias",
     .shared = "shared_experts",
     .num_experts = "n_routed_experts|num_local_experts|num_experts",
     .layers = nemotron_layers,
     .mtp = nemotron_mtp_layers,
     .routing = nemotron_routing,
     .activation = single_activation,
     .shared_shape = nemotron_shared},
    {.model_types = "afmoe",
     .router = "router.gate.weight",
     .choice_bias = "expert_bias",
     .shared = "shared_experts",
     .num_experts = "num_experts|num_local_experts",
     .layers = afmoe_layers,
     .mtp = next_token_layers,
     .routing = afmoe_routing,
     .activation = gated_activation,
     .shared_shape = counted_shared_default_none},
    {.model_types = "phimoe",
     .blocks = "block_sparse_moe|mlp",
     .gate = "w1|gate_proj",
     .up = "w3|up_proj",
     .down = "w2|down_proj",
     .router = "gate.weight|router.weight",
     .num_experts = "num_local_experts|num_experts",
     .inter = "intermediate_size",
     .layers = all_layers,
     .mtp = next_token_layers,
     .routing = phimoe_routing,
     .activation = gated_activation,
     .shared_shape = no_shared},
};

}  // namespace

std::vector<std::string> family_names() {
  std::vector<std::string> out;
  for (const Family& f : kFamilies)
    for (std::string_view name : alternatives(f.model_types)) out.emplace_back(name);
  return out;
}

const Family& find_family(std::string_view model_type, std::string_view where) {
  for (const Family& f : kFamilies) {
    auto names = alternatives(f.model_types);
    if (std::find(names.begin(), names.end(), model_type) != names.end()) return f;
  }
  std::vector<std::string> known = family_names();
  std::vector<std::string> near = nearest(model_type, known);
  throw UsageError(
      cat(where, ": model_type '", show_name(model_type), "' is no family that is served",
          near.empty() ? "" : cat("; nearest: ", join(near)), "; served: ", join(known)));
}

}  // namespace switchyard::checkpoint
