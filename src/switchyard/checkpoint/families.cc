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

constexpr std::string_view kDeepSeekExperts = "n_routed_experts|num_local_experts|num_experts";
constexpr std::string_view kMixtralExperts = "num_local_experts|num_experts";
constexpr std::string_view kQwenExperts = "num_experts|num_local_experts";

/// Mixtral's names, which many families took over; w3 is up and w2 is down.
constexpr Family mixtral_names() {
  return {.blocks = "block_sparse_moe|mlp",
          .gate = "w1|gate_proj",
          .up = "w3|up_proj",
          .down = "w2|down_proj",
          .num_experts = kMixtralExperts,
          .inter = "intermediate_size",
          .layers = all_layers,
          .mtp = next_token_layers,
          .routing = renormalize,
          .activation = gated_activation,
          .shared_shape = no_shared};
}

/// Qwen's names, per expert below mlp.
constexpr Family qwen_names() {
  return {.num_experts = kQwenExperts,
          .layers = qwen_layers,
          .mtp = next_token_layers,
          .routing = qwen3_routing,
          .activation = gated_activation,
          .shared_shape = no_shared};
}

/// DeepSeek V3's names.
constexpr Family deepseek_names() {
  return {.choice_bias = "gate.e_score_correction_bias",
          .shared = "shared_experts",
          .num_experts = kDeepSeekExperts,
          .layers = three_dense_layers,
          .mtp = next_token_layers,
          .routing = deepseek_v3_routing,
          .activation = gated_activation,
          .shared_shape = counted_shared};
}

/// Granite's names: two stacked tensors outside experts.
constexpr Family granite_names() {
  return {.blocks = "block_sparse_moe|mlp",
          .stacked_up = "input_linear.weight|experts.gate_up_proj",
          .stacked_down = "output_linear.weight|experts.down_proj",
          .stacked_by_default = true,
          .router = "router.layer.weight|gate.weight",
          .num_experts = kMixtralExperts,
          .inter = "intermediate_size",
          .layers = all_layers,
          .mtp = next_token_layers,
          .routing = renormalize,
          .activation = gated_activation,
          .shared_shape = no_shared};
}

/// A copy of `base` that `change` has been applied to.
template <class Change>
constexpr Family with(Family base, std::string_view model_types, Change change) {
  base.model_types = model_types;
  change(base);
  return base;
}

constexpr Family mixtral(std::string_view types) {
  return with(mixtral_names(), types, [](Family&) {});
}

constexpr Family minimax_m2() {
  return with(mixtral_names(), "minimax_m2", [](Family& f) {
    f.choice_bias = "e_score_correction_bias|gate.e_score_correction_bias";
    f.routing = minimax_m2_routing;
  });
}

constexpr Family minimax_m3() {
  return with(minimax_m2(), "minimax_m3|minimax_m3_text|minimax_m3_vl|minimax_m3_vl_text",
              [](Family& f) {
                f.shared = "shared_experts";
                f.layers = no_dense_layer;
                f.routing = minimax_m3_routing;
                f.activation = gpt_oss_activation;
                f.shared_shape = minimax_m3_shared;
              });
}

constexpr Family phimoe() {
  return with(mixtral_names(), "phimoe", [](Family& f) {
    f.router = "gate.weight|router.weight";
    f.routing = phimoe_routing;
  });
}

constexpr Family qwen2_moe() {
  return with(qwen_names(), "qwen2_moe", [](Family& f) {
    f.shared = "shared_expert";
    f.shared_gate = "shared_expert_gate.weight";
    f.routing = qwen2_routing;
    f.shared_shape = qwen2_shared;
  });
}

constexpr Family qwen3_next() {
  return with(qwen2_moe(), "qwen3_next|qwen3_5_moe|qwen3_5_moe_text",
              [](Family& f) { f.routing = qwen3_routing; });
}

constexpr Family qwen3_vl_moe() {
  return with(qwen_names(), "qwen3_vl_moe|qwen3_vl_moe_text", [](Family& f) {
    f.stacked_order = StackedOrder::kColumns;
    f.stacked_by_default = true;
  });
}

constexpr Family olmoe() {
  return with(qwen_names(), "olmoe|flex_olmo", [](Family& f) {
    f.inter = "intermediate_size";
    f.layers = all_layers;
    f.routing = qwen2_routing;
  });
}

constexpr Family deepseek_v2() {
  return with(deepseek_names(), "deepseek_v2", [](Family& f) {
    f.choice_bias = "";
    f.layers = no_dense_layer;
    f.routing = deepseek_v2_routing;
    f.shared_shape = counted_shared_default_none;
  });
}

constexpr Family deepseek_v3() {
  return with(deepseek_names(), "deepseek_v3|deepseek_v32|kimi_k2|kimi_k25", [](Family&) {});
}

/// V3's recipe with one group: GLM's and its relatives'.
template <class Change>
constexpr Family one_group(std::string_view model_types, Change change) {
  Family f = with(deepseek_names(), model_types, [](Family& g) {
    g.layers = one_dense_layer;
    g.routing = one_group_routing;
  });
  change(f);
  return f;
}

constexpr Family glm_moe_dsa() {
  return one_group("glm_moe_dsa", [](Family& f) {
    f.layers = three_dense_layers;
    f.routing = glm5_routing;
  });
}

constexpr Family glm5_next() {
  return with(glm_moe_dsa(), "glm5_next|glm5_next_text",
              [](Family& f) { f.activation = clamped_swiglu; });
}

constexpr Family dots1() {
  return one_group("dots1", [](Family& f) {
    f.layers = no_dense_layer;
    f.routing = dots1_routing;
    f.shared_shape = counted_shared_default_none;
  });
}

constexpr Family deepseek_v4() {
  return with(deepseek_names(), "deepseek_v4", [](Family& f) {
    f.blocks = "ffn|mlp";
    f.gate = "w1|gate_proj";
    f.up = "w3|up_proj";
    f.down = "w2|down_proj";
    f.choice_bias = "gate.bias|gate.e_score_correction_bias";
    f.hash_table = "gate.tid2eid";
    f.layers = all_layers;
    f.routing = deepseek_v4_routing;
    f.activation = clamped_swiglu;
  });
}

constexpr Family kimi_linear() {
  return with(mixtral_names(), "kimi_linear|kimi_k3", [](Family& f) {
    f.choice_bias = "gate.e_score_correction_bias";
    f.shared = "shared_experts";
    f.latent = {.down = "routed_expert_down_proj",
                .up = "routed_expert_up_proj",
                .norm = "routed_expert_norm.weight",
                .width = "routed_expert_hidden_size",
                .norm_flag = "latent_moe_use_norm"};
    f.num_experts = kQwenExperts;
    f.top_k = "num_experts_per_token|num_experts_per_tok";
    f.inter = "moe_intermediate_size";
    f.layers = no_dense_layer;
    f.routing = kimi_routing;
    f.activation = kimi_activation;
    f.shared_shape = counted_shared_default_none;
  });
}

constexpr Family nemotron_h() {
  return with(deepseek_names(), "nemotron_h", [](Family& f) {
    f.blocks = "mixer";
    f.gate = "";
    f.stacked_up = "experts.up_proj";
    f.latent = {.down = "fc1_latent_proj", .up = "fc2_latent_proj", .width = "moe_latent_size"};
    f.layers = nemotron_layers;
    f.mtp = nemotron_mtp_layers;
    f.routing = one_group_routing;
    f.activation = single_activation;
    f.shared_shape = nemotron_shared;
  });
}

constexpr Family bailing_moe() {
  return with(deepseek_names(), "bailing_moe|bailing_moe_v2|bailing_hybrid|bailing_moe_linear",
              [](Family& f) {
                f.choice_bias = "gate.expert_bias";
                f.num_experts = kQwenExperts;
                f.layers = no_dense_layer;
                f.routing = bailing_routing;
                f.shared_shape = counted_shared_default_none;
              });
}

constexpr Family afmoe() {
  return with(deepseek_names(), "afmoe", [](Family& f) {
    f.router = "router.gate.weight";
    f.choice_bias = "expert_bias";
    f.num_experts = kQwenExperts;
    f.layers = afmoe_layers;
    f.routing = afmoe_routing;
    f.shared_shape = counted_shared_default_none;
  });
}

constexpr Family gpt_oss() {
  return with(mixtral_names(), "gpt_oss", [](Family& f) {
    f.blocks = "mlp";
    f.gate = "gate_proj";
    f.up = "up_proj";
    f.down = "down_proj";
    f.stacked_order = StackedOrder::kInterleavedColumns;
    f.stacked_by_default = true;
    f.router = "router.weight";
    f.logit_bias = "router.bias";
    f.expert_bias = true;
    f.mxfp4_blocks = true;
    f.top_k = "num_experts_per_tok|experts_per_token";
    f.activation = gpt_oss_activation;
  });
}

constexpr Family granitemoe() {
  return with(granite_names(), "granitemoe|granitemoeshared|granitemoehybrid", [](Family& f) {
    f.parallel = {.up = "shared_mlp.input_linear.weight",
                  .down = "shared_mlp.output_linear.weight",
                  .inter = "shared_intermediate_size"};
  });
}

constexpr Family jetmoe() {
  return with(granite_names(), "jetmoe", [](Family& f) {
    f.blocks = "mlp";
    f.output_bias = "bias";
  });
}

constexpr Family llama4() {
  return with(mixtral_names(), "llama4_text|llama4", [](Family& f) {
    f.blocks = "feed_forward";
    f.gate = "gate_proj";
    f.up = "up_proj";
    f.down = "down_proj";
    f.stacked_order = StackedOrder::kColumns;
    f.stacked_by_default = true;
    f.router = "router.weight";
    f.shared = "shared_expert";
    f.layers = llama4_layers;
    f.routing = llama4_routing;
    f.shared_shape = one_shared;
  });
}

constexpr Family dbrx() {
  return with(mixtral_names(), "dbrx", [](Family& f) {
    f.layer_folder = "blocks|layers";
    f.blocks = "ffn";
    f.gate = "w1";
    f.up = "v1";
    f.down = "w2";
    f.stacked_gate = "experts.mlp.w1";
    f.stacked_up = "experts.mlp.v1";
    f.stacked_down = "experts.mlp.w2";
    f.stacked_order = StackedOrder::kFlat;
    f.stacked_by_default = true;
    f.router = "router.layer.weight";
    f.config_part = "ffn_config";
    f.hidden = "d_model|hidden_size";
    f.num_experts = "moe_num_experts|num_local_experts";
    f.top_k = "moe_top_k|num_experts_per_tok";
    f.inter = "ffn_hidden_size";
    f.layers = dbrx_layers;
    f.mtp = no_mtp_layers;
    f.routing = dbrx_routing;
    f.activation = dbrx_activation;
  });
}

constexpr Family jamba() {
  return with(qwen_names(), "jamba", [](Family& f) {
    f.blocks = "feed_forward";
    f.router = "router.weight";
    f.inter = "intermediate_size";
    f.layers = jamba_layers;
    f.mtp = no_mtp_layers;
    f.routing = plain_softmax;
  });
}

constexpr Family hunyuan() {
  return with(qwen_names(), "hunyuan_v1_moe|hunyuan", [](Family& f) {
    f.router = "gate.wg.weight";
    f.shared = "shared_mlp";
    f.lists = true;
    f.top_k = "moe_topk|num_experts_per_tok";
    f.inter_fallback = "intermediate_size";
    f.layers = hunyuan_layers;
    f.routing = renormalize;
    f.shared_shape = hunyuan_shared;
  });
}

constexpr Family ernie() {
  return with(deepseek_names(), "ernie4_5_moe", [](Family& f) {
    f.choice_bias = "moe_statics.e_score_correction_bias";
    f.choice_bias_rows = true;
    f.num_experts = "moe_num_experts|num_local_experts|num_experts";
    f.top_k = "moe_k|num_experts_per_tok";
    f.layers = ernie_layers;
    f.routing = ernie_routing;
    f.shared_shape = ernie_shared;
  });
}

constexpr Family longcat_flash() {
  return with(deepseek_names(), "longcat_flash", [](Family& f) {
    f.router = "router.classifier.weight";
    f.choice_bias = "router.e_score_correction_bias";
    f.shared = "";
    f.top_k = "moe_topk|num_experts_per_tok";
    f.inter = "expert_ffn_hidden_size|moe_intermediate_size";
    f.layers = longcat_layers;
    f.mtp = no_mtp_layers;
    f.routing = longcat_routing;
    f.shared_shape = no_shared;
  });
}

constexpr Family step3p5() {
  return with(mixtral_names(), "step3p5|step3p7|step3p7_text", [](Family& f) {
    f.blocks = "";
    f.owned = "moe.|share_expert.";
    f.gate = "gate_proj";
    f.up = "up_proj";
    f.down = "down_proj";
    f.stacked_gate = "moe.gate_proj.weight";
    f.stacked_up = "moe.up_proj.weight";
    f.stacked_down = "moe.down_proj.weight";
    f.stacked_order = StackedOrder::kSeparate;
    f.stacked_by_default = true;
    f.router = "moe.gate.weight";
    f.choice_bias = "moe.router_bias";
    f.shared = "share_expert";
    f.num_experts = "moe_num_experts|n_routed_experts";
    f.top_k = "moe_top_k|num_experts_per_tok";
    f.inter = "moe_intermediate_size";
    f.layers = step_layers;
    f.mtp = no_mtp_layers;
    f.routing = step_routing;
    f.activation = step_activation;
    f.shared_activation = step_shared_activation;
    f.shared_shape = step_shared;
  });
}

constexpr Family gemma4() {
  return with(qwen_names(), "gemma4_text|gemma4", [](Family& f) {
    f.blocks = "";
    f.owned = "router.|experts.";
    f.stacked_by_default = true;
    f.router = "router.proj.weight";
    f.router_scale = "router.scale";
    f.expert_input_norm = "pre_feedforward_layernorm_2.weight";
    f.per_expert_scale = "router.per_expert_scale";
    f.top_k = "top_k_experts|num_experts_per_tok";
    f.inter = "moe_intermediate_size|expert_intermediate_size";
    f.layers = gemma4_layers;
    f.mtp = no_mtp_layers;
    f.routing = gemma4_routing;
  });
}

constexpr Family lfm2_moe() {
  return with(mixtral_names(), "lfm2_moe", [](Family& f) {
    f.blocks = "feed_forward";
    f.choice_bias = "expert_bias|expert_bias.weight";
    f.num_experts = kQwenExperts;
    f.inter = "moe_intermediate_size";
    f.layers = lfm2_layers;
    f.mtp = no_mtp_layers;
    f.routing = lfm2_routing;
  });
}

constexpr Family kFamilies[] = {
    mixtral("mixtral"),
    mixtral("minimax|minimax_text_01|minimax_m1"),
    minimax_m2(),
    minimax_m3(),
    phimoe(),
    qwen2_moe(),
    with(qwen_names(), "qwen3_moe", [](Family&) {}),
    qwen3_next(),
    qwen3_vl_moe(),
    olmoe(),
    llama4(),
    gpt_oss(),
    deepseek_v2(),
    deepseek_v3(),
    deepseek_v4(),
    one_group("glm4_moe", [](Family&) {}),
    one_group("glm4_moe_lite", [](Family& f) { f.routing = glm4_lite_routing; }),
    glm_moe_dsa(),
    glm5_next(),
    one_group("exaone_moe", [](Family& f) { f.routing = glm5_routing; }),
    one_group("solar_open", [](Family& f) { f.layers = no_dense_layer; }),
    dots1(),
    kimi_linear(),
    nemotron_h(),
    bailing_moe(),
    afmoe(),
    granitemoe(),
    jetmoe(),
    dbrx(),
    jamba(),
    hunyuan(),
    ernie(),
    longcat_flash(),
    step3p5(),
    gemma4(),
    lfm2_moe(),
};

}  // namespace

std::vector<std::string> known_families() {
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
  std::vector<std::string> known = known_families();
  throw UsageError(cat(where, ": model_type '", show_name(model_type),
                       "' is no family that is served; nearest: ",
                       join(nearest_or_closest(model_type, known)), "; served: ", join(known)));
}

}  // namespace switchyard::checkpoint
