// SPDX-License-Identifier: Apache-2.0
// What a person reads in the families' published configs and tensor lists, at a small size.
#include "tests/support/written_checkpoint.h"

namespace switchyard::test {
namespace {

using Method = RoutingMethodType;

constexpr std::int64_t kHidden = 128, kInter = 96, kExperts = 8;

/// The part of a problem that most families have.
Problem base(Method method, std::int64_t top_k) {
  Problem p;
  p.hidden = kHidden;
  p.inter = kInter;
  p.routing = make_routing(method, kExperts, top_k);
  return p;
}

Problem shared(Problem p, std::int64_t count, std::int64_t width, bool gate = false) {
  p.num_shared = count;
  p.shared_inter = width;
  p.shared_gate = gate;
  return p;
}

Problem factor(Problem p, float value) {
  p.routed_scaling_factor = value;
  return p;
}

Problem coded(Problem p, const char* format, ActivationMode activations = ActivationMode::kFormat) {
  p.format = format;
  p.activations = activations;
  return p;
}

WrittenNames qwen_names(const std::string& root = "") {
  return {.router = "gate.weight",
          .expert = {root + "experts.{e}.gate_proj", root + "experts.{e}.up_proj",
                     root + "experts.{e}.down_proj"}};
}

WrittenNames mixtral_names() {
  return {.router = "gate.weight",
          .expert = {"experts.{e}.w1", "experts.{e}.w3", "experts.{e}.w2"}};
}

WrittenNames deepseek_names() {
  WrittenNames n = qwen_names();
  n.shared = {"shared_experts.gate_proj", "shared_experts.up_proj", "shared_experts.down_proj"};
  n.choice_bias = "gate.e_score_correction_bias";
  return n;
}

template <class Change>
WrittenNames with(WrittenNames n, Change change) {
  change(n);
  return n;
}

/// Members of a config that every family of the kind has.
std::string config(const std::string& model_type, const std::string& rest) {
  return R"({"model_type": ")" + model_type + R"(", "hidden_size": 128, )" + rest + "}";
}

/// DeepSeek V3's relatives differ in defaults, patterns and words.
WrittenSpec deepseek_like(const std::string& type, const std::string& rest, std::int64_t layer,
                          float scale) {
  return {.name = type,
          .config = config(type, rest),
          .block = "model.layers." + std::to_string(layer) + ".mlp",
          .layer = layer,
          .problem = factor(shared(base(Method::kDeepSeekV3, 2), 1, kInter), scale),
          .names = deepseek_names()};
}

void add_softmax_families(std::vector<WrittenSpec>& out) {
  out.push_back({.name = "minimax",
                 .config = config("minimax", R"("num_hidden_layers": 1, "num_local_experts": 8,
                   "num_experts_per_tok": 2, "intermediate_size": 96, "hidden_act": "silu",
                   "layer_types": ["linear_attention"], "router_jitter_noise": 0.0)"),
                 .block = "model.layers.0.block_sparse_moe",
                 .problem = base(Method::kRenormalize, 2),
                 .names = mixtral_names()});
  WrittenNames qwen_shared = with(qwen_names(), [](WrittenNames& n) {
    n.shared = {"shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"};
    n.shared_gate = "shared_expert_gate.weight";
  });
  out.push_back({.name = "qwen3_next",
                 .config = config("qwen3_next", R"("num_hidden_layers": 2, "num_experts": 8,
                   "num_experts_per_tok": 3, "moe_intermediate_size": 96, "hidden_act": "silu",
                   "shared_expert_intermediate_size": 64, "norm_topk_prob": true,
                   "decoder_sparse_step": 1, "mlp_only_layers": [0], "intermediate_size": 160)"),
                 .block = "model.layers.1.mlp",
                 .layer = 1,
                 .problem = shared(base(Method::kRenormalize, 3), 1, 64, true),
                 .names = qwen_shared});
  out.push_back({.name = "qwen3_5_moe",
                 .config = R"({"model_type": "qwen3_5_moe", "text_config": )" +
                           config("qwen3_5_moe_text", R"("num_hidden_layers": 1, "num_experts": 8,
                   "num_experts_per_tok": 2, "moe_intermediate_size": 96, "hidden_act": "silu",
                   "shared_expert_intermediate_size": 96)") +
                           R"(, "vision_config": {"hidden_size": 7}})",
                 .block = "model.language_model.layers.0.mlp",
                 .problem = shared(base(Method::kRenormalize, 2), 1, 96, true),
                 .names = with(qwen_shared,
                               [](WrittenNames& n) {
                                 n.expert = {"experts.gate_up_proj", "", "experts.down_proj"};
                               }),
                 .storage = Storage::kRows});
  // H == 2I: the shapes cannot tell rows from columns, the family does.
  Problem square = base(Method::kRenormalize, 2);
  square.hidden = 192;
  for (bool columns : {false, true})
    out.push_back({.name = columns ? "qwen3_vl_moe" : "qwen3_moe_merged",
                   .config = std::string(R"({"model_type": ")") +
                             (columns ? "qwen3_vl_moe_text" : "qwen3_moe") +
                             R"(", "hidden_size": 192, "num_hidden_layers": 1, "num_experts": 8,
                   "num_experts_per_tok": 2, "moe_intermediate_size": 96, "hidden_act": "silu",
                   "norm_topk_prob": true})",
                   .block = "model.layers.0.mlp",
                   .problem = square,
                   .names = {.router = "gate.weight",
                             .expert = {"experts.gate_up_proj", "", "experts.down_proj"}},
                   .storage = columns ? Storage::kColumns : Storage::kRows});
  for (const char* type : {"olmoe", "flex_olmo"})
    out.push_back({.name = type,
                   .config = config(type, R"("num_hidden_layers": 1, "num_experts": 8,
                   "num_experts_per_tok": 3, "intermediate_size": 96, "hidden_act": "silu",
                   "norm_topk_prob": false)"),
                   .block = "model.layers.0.mlp",
                   .problem = base(Method::kDefault, 3),
                   .names = qwen_names()});
  out.push_back({.name = "jamba",
                 .config = config("jamba", R"("num_hidden_layers": 2, "num_experts": 8,
                   "num_experts_per_tok": 2, "intermediate_size": 96, "hidden_act": "silu",
                   "expert_layer_period": 2, "expert_layer_offset": 1)"),
                 .block = "model.layers.1.feed_forward",
                 .layer = 1,
                 .problem = base(Method::kDefault, 2),
                 .names = with(qwen_names(), [](WrittenNames& n) { n.router = "router.weight"; })});
}

void add_stacked_families(std::vector<WrittenSpec>& out) {
  const WrittenNames granite = {.router = "router.layer.weight",
                                .expert = {"input_linear.weight", "", "output_linear.weight"}};
  Problem jet = base(Method::kRenormalize, 2);
  jet.expert_bias = true;
  out.push_back({.name = "jetmoe",
                 .config = config("jetmoe", R"("num_hidden_layers": 1, "num_local_experts": 8,
                   "num_experts_per_tok": 2, "intermediate_size": 96,
                   "activation_function": "silu")"),
                 .block = "model.layers.0.mlp",
                 .problem = jet,
                 .names = with(granite, [](WrittenNames& n) { n.output_bias = "bias"; }),
                 .storage = Storage::kRows});
  for (const char* type : {"granitemoeshared", "granitemoehybrid"})
    out.push_back({.name = type,
                   .config = config(type, R"("num_hidden_layers": 1, "num_local_experts": 8,
                   "num_experts_per_tok": 2, "intermediate_size": 96, "hidden_act": "silu",
                   "shared_intermediate_size": 64)"),
                   .block = "model.layers.0.block_sparse_moe",
                   .problem = base(Method::kRenormalize, 2),
                   .names = with(granite,
                                 [](WrittenNames& n) {
                                   n.parallel_up = "shared_mlp.input_linear.weight";
                                   n.parallel_down = "shared_mlp.output_linear.weight";
                                 }),
                   .storage = Storage::kRows,
                   .parallel_inter = 64});
  Problem norm = base(Method::kLpNorm, 3);
  norm.routing.p = 2;
  out.push_back({.name = "dbrx",
                 .config = R"({"model_type": "dbrx", "d_model": 128, "n_layers": 1,
                   "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 8, "moe_top_k": 3,
                     "moe_normalize_expert_weights": 2, "ffn_act_fn": {"name": "silu"}}})",
                 .block = "transformer.blocks.0.ffn",
                 .problem = norm,
                 .names = {.router = "router.layer.weight",
                           .expert = {"experts.mlp.w1", "experts.mlp.v1", "experts.mlp.w2"}},
                 .storage = Storage::kFlat});
  Problem step = factor(shared(base(Method::kMiniMax2, 2), 1, 64), 3.0f);
  step.activation = Swiglu{.clamp = PerExpert(0.5f), .clamp_after_silu = true};
  out.push_back(
      {.name = "step3p5",
       .config = config("step3p5", R"("num_hidden_layers": 2, "moe_num_experts": 8,
                   "moe_top_k": 2, "moe_intermediate_size": 96, "share_expert_dim": 64,
                   "moe_layers_enum": "1", "moe_router_activation": "sigmoid",
                   "use_moe_router_bias": true, "norm_expert_weight": true,
                   "moe_router_scaling_factor": 3.0, "swiglu_limits": [0.0, 0.5, 0.0],
                   "swiglu_limits_shared": [0.0, 0.0, 7.0], "num_nextn_predict_layers": 1)"),
       .block = "model.layers.1",
       .layer = 1,
       .problem = step,
       .names = {.router = "moe.gate.weight",
                 .expert = {"moe.gate_proj.weight", "moe.up_proj.weight", "moe.down_proj.weight"},
                 .shared = {"share_expert.gate_proj", "share_expert.up_proj",
                            "share_expert.down_proj"},
                 .choice_bias = "moe.router_bias"},
       .storage = Storage::kSeparate,
       .shared_activation = Swiglu{.clamp_after_silu = true}});
  Problem gemma = base(Method::kRenormalize, 2);
  gemma.activation = Geglu{GeluForm::kTanh};
  gemma.routing.per_expert_scale = true;
  for (bool norm_known : {false, true}) {
    gemma.routing.input_norm_eps = norm_known ? 0.0f : 1e-6f;
    out.push_back({.name = norm_known ? "gemma4" : "gemma4_router",
                   .config = R"({"model_type": "gemma4", "text_config": )" +
                             config("gemma4_text", R"("num_hidden_layers": 1, "num_experts": 8,
                   "top_k_experts": 2, "moe_intermediate_size": 96, "enable_moe_block": true,
                   "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
                   "intermediate_size": 160)") +
                             "}",
                   .block = "model.language_model.layers.0",
                   .problem = gemma,
                   .names = {.router = "router.proj.weight",
                             .expert = {"experts.gate_up_proj", "", "experts.down_proj"},
                             .per_expert_scale = "router.per_expert_scale",
                             .router_scale = "router.scale",
                             .input_norm = norm_known ? "pre_feedforward_layernorm_2.weight" : ""},
                   .storage = Storage::kRows});
  }
}

void add_deepseek_families(std::vector<WrittenSpec>& out) {
  const char* common = R"("num_hidden_layers": 2, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 96, "hidden_act": "silu", "n_group": 1,
    "topk_group": 1)";
  auto rest = [&](const char* more) { return std::string(common) + ", " + more; };
  auto add = [&](const char* type, const std::string& text, std::int64_t layer, float scale) {
    out.push_back(deepseek_like(type, text, layer, scale));
  };
  add("deepseek_v32", rest(R"("first_k_dense_replace": 1, "routed_scaling_factor": 2.5)"), 1, 2.5f);
  add("kimi_k25", rest(R"("first_k_dense_replace": 1, "routed_scaling_factor": 2.827)"), 1, 2.827f);
  add("glm4_moe", rest(R"("routed_scaling_factor": 1.0)"), 1, 1.0f);
  add("glm4_moe_lite", rest(R"("mlp_layer_types": ["dense", "sparse"])"), 1, 1.8f);
  add("glm_moe_dsa", rest(R"("mlp_layer_types": ["dense", "sparse"])"), 1, 2.5f);
  add("solar_open", rest(R"("first_k_dense_replace": 0)"), 0, 1.0f);
  out.back().config = config("solar_open", R"("num_hidden_layers": 1, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 96)");
  add("exaone_moe", R"("num_hidden_layers": 2, "num_experts": 8, "num_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 96, "first_k_dense_replace": 0,
    "mlp_layer_types": ["dense", "sparse"], "routed_scaling_factor": 2.5)",
      1, 2.5f);
  add("dots1", rest(R"("first_k_dense_replace": 1, "scoring_func": "noaux_tc",
    "norm_topk_prob": false, "routed_scaling_factor": 2.5)"),
      1, 2.5f);
  out.back().problem.routing.map = WeightMap::kNone;
  out.back().problem.routing.epsilon = 0;
  add("glm5_next", rest(R"("mlp_layer_types": ["dense", "sparse"], "swiglu_limit": 0.5)"), 1, 2.5f);
  out.back().problem.activation = Swiglu{.clamp = PerExpert(0.5f)};
  out.back().shared_activation = out.back().problem.activation;
  for (const char* type : {"bailing_moe_v2", "bailing_moe"}) {
    add(type, R"("num_hidden_layers": 2, "num_experts": 8, "num_shared_experts": 1,
      "num_experts_per_tok": 2, "moe_intermediate_size": 96, "first_k_dense_replace": 1,
      "score_function": "sigmoid", "moe_router_enable_expert_bias": true, "n_group": 4,
      "topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5)",
        1, 2.5f);
    out.back().problem.routing.n_group = 4;
    out.back().problem.routing.topk_group = 2;
    out.back().names.choice_bias = "gate.expert_bias";
  }
  out.push_back({.name = "bailing_moe_softmax",
                 .config = config("bailing_moe", R"("num_hidden_layers": 1, "num_experts": 8,
                   "num_shared_experts": 2, "num_experts_per_tok": 2, "norm_topk_prob": true,
                   "moe_intermediate_size": 96)"),
                 .block = "model.layers.0.mlp",
                 .problem = shared(base(Method::kRenormalize, 2), 2, 2 * kInter),
                 .names = with(deepseek_names(), [](WrittenNames& n) { n.choice_bias = ""; })});
}

void add_biased_families(std::vector<WrittenSpec>& out) {
  Problem m3 = factor(shared(base(Method::kMiniMax2, 2), 1, 64), 2.0f);
  m3.activation = SwigluBias{1.702f, 1.0f, PerExpert(7.0f)};
  out.push_back({.name = "minimax_m3",
                 .config = R"({"model_type": "minimax_m3_vl", "text_config": )" +
                           config("minimax_m3_vl_text", R"("num_hidden_layers": 2,
                   "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 96,
                   "dense_intermediate_size": 160, "shared_intermediate_size": 64,
                   "n_shared_experts": 1, "hidden_act": "swigluoai", "swiglu_alpha": 1.702,
                   "swiglu_limit": 7.0, "moe_layer_freq": [0, 1], "scoring_func": "sigmoid",
                   "use_routing_bias": true, "routed_scaling_factor": 2.0)") +
                           "}",
                 .block = "language_model.model.layers.1.block_sparse_moe",
                 .layer = 1,
                 .problem = m3,
                 .names = with(mixtral_names(),
                               [](WrittenNames& n) {
                                 n.shared = deepseek_names().shared;
                                 n.choice_bias = "e_score_correction_bias";
                               }),
                 .shared_activation = m3.activation});
  for (bool used : {true, false}) {
    Problem lfm = factor(base(Method::kMiniMax2, 2), 1.5f);
    lfm.routing.epsilon = 1e-6f;
    lfm.routing.choice_bias = used;
    out.push_back({.name = used ? "lfm2_moe" : "lfm2_moe_bias_off",
                   .config = config("lfm2_moe", R"("num_hidden_layers": 3, "num_dense_layers": 2,
                   "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
                   "norm_topk_prob": true, "routed_scaling_factor": 1.5, "use_expert_bias": )" +
                                                    std::string(used ? "true" : "false")),
                   .block = "model.layers.2.feed_forward",
                   .layer = 2,
                   .problem = lfm,
                   .names = with(mixtral_names(), [&](WrittenNames& n) {
                     n.choice_bias = used ? "expert_bias" : "expert_bias.weight";
                   })});
  }
  Problem ernie = shared(base(Method::kSoftmaxBias, 2), 2, 2 * kInter);
  for (std::int64_t rows : {1, 2})
    out.push_back({.name = rows == 1 ? "ernie4_5_moe" : "ernie4_5_moe_two_rows",
                   .config = config("ernie4_5_moe", R"("num_hidden_layers": 2,
                   "moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 96,
                   "moe_num_shared_experts": 2, "moe_layer_interval": 1,
                   "moe_layer_start_index": 1, "moe_layer_end_index": -1,
                   "moe_norm_min": 1e-12, "hidden_act": "silu")"),
                   .block = "model.layers.1.mlp",
                   .layer = 1,
                   .problem = ernie,
                   .names = with(deepseek_names(),
                                 [](WrittenNames& n) {
                                   n.choice_bias = "moe_statics.e_score_correction_bias";
                                 }),
                   .bias_rows = rows});
  Problem hunyuan = shared(base(Method::kRenormalize, 3), 2, 2 * kInter);
  out.push_back(
      {.name = "hunyuan_v1_moe",
       .config = config("hunyuan_v1_moe", R"("num_hidden_layers": 2,
                   "num_experts": [8, 8], "moe_topk": [1, 3], "intermediate_size": 160,
                   "moe_intermediate_size": [64, 96], "num_shared_expert": [1, 2],
                   "use_mixed_mlp_moe": true, "moe_layer_num_skipped": 1, "hidden_act": "silu")"),
       .block = "model.layers.1.mlp",
       .layer = 1,
       .problem = hunyuan,
       .names = with(qwen_names(), [](WrittenNames& n) {
         n.router = "gate.wg.weight";
         n.shared = {"shared_mlp.gate_proj", "shared_mlp.up_proj", "shared_mlp.down_proj"};
       })});
}

void add_latent_and_zero(std::vector<WrittenSpec>& out) {
  Problem zero = factor(base(Method::kSoftmaxBias, 4), 6.0f);
  zero.routing.map = WeightMap::kNone;
  zero.routing.epsilon = 0;
  zero.routing.zero_experts = 4;
  out.push_back({.name = "longcat_flash",
                 .config = config("longcat_flash", R"("num_layers": 1, "num_hidden_layers": 2,
                   "n_routed_experts": 8, "zero_expert_num": 4, "zero_expert_type": "identity",
                   "moe_topk": 4, "expert_ffn_hidden_size": 96, "routed_scaling_factor": 6.0,
                   "norm_topk_prob": false, "router_bias": false, "hidden_act": "silu")"),
                 .block = "model.layers.0.mlp",
                 .problem = zero,
                 .names = with(qwen_names(), [](WrittenNames& n) {
                   n.router = "router.classifier.weight";
                   n.choice_bias = "router.e_score_correction_bias";
                 })});
  Problem k3 = shared(base(Method::kDeepSeekV3, 3), 2, 2 * kInter);
  k3.latent = 64;
  k3.activation = SiTu{4.0f, 25.0f};
  const WrittenNames k3_names = with(mixtral_names(), [](WrittenNames& n) {
    n.shared = deepseek_names().shared;
    n.choice_bias = "gate.e_score_correction_bias";
    n.latent_down = "routed_expert_down_proj";
    n.latent_up = "routed_expert_up_proj";
    n.latent_norm = "routed_expert_norm.weight";
  });
  const std::string k3_text = R"("num_hidden_layers": 2, "num_experts": 8,
    "num_experts_per_token": 3, "num_shared_experts": 2, "moe_intermediate_size": 96,
    "routed_expert_hidden_size": 64, "latent_moe_use_norm": true, "hidden_act": "situ",
    "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "moe_renormalize": true,
    "moe_router_activation_func": "sigmoid", "use_grouped_topk": true, "num_expert_group": 1,
    "topk_group": 1, "topk_method": "noaux_tc", "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "rms_norm_eps": 1e-05)";
  for (bool packed : {false, true}) {
    std::string quant = packed ? R"(, "quantization_config": {"quant_method": "compressed-tensors",
      "ignore": ["re:.*self_attn.*", "lm_head"], "config_groups": {"group_0": {
        "targets": ["re:.*\\.block_sparse_moe\\.experts\\.\\d+\\.w[123]$"],
        "format": "mxfp4-pack-quantized", "input_activations": null, "weights": {
          "num_bits": 4, "type": "float", "group_size": 32, "strategy": "group",
          "symmetric": true, "dynamic": false}}}})"
                               : "";
    out.push_back({.name = packed ? "kimi_k3_mxfp4" : "kimi_k3",
                   .config = R"({"model_type": "kimi_k3", "text_config": )" +
                             config("kimi_linear", k3_text) + quant + "}",
                   .block = "language_model.model.layers.1.block_sparse_moe",
                   .layer = 1,
                   .problem = packed ? coded(k3, "w4a16_mxfp4") : k3,
                   .names = k3_names,
                   .coding = packed ? Coding::kMxfp4Packed : Coding::kBf16,
                   .shared_activation = k3.activation});
  }
  out.push_back({.name = "kimi_linear",
                 .config = config("kimi_linear", R"("num_hidden_layers": 1, "num_experts": 8,
                   "num_experts_per_token": 2, "moe_intermediate_size": 96, "hidden_act": "silu",
                   "num_shared_experts": 1, "first_k_dense_replace": 0,
                   "routed_scaling_factor": 2.446)"),
                 .block = "model.layers.0.block_sparse_moe",
                 .problem = factor(shared(base(Method::kDeepSeekV3, 2), 1, kInter), 2.446f),
                 .names = with(mixtral_names(), [](WrittenNames& n) {
                   n.shared = deepseek_names().shared;
                   n.choice_bias = "gate.e_score_correction_bias";
                 })});
  Problem super = factor(shared(base(Method::kDeepSeekV3, 4), 1, 64), 5.0f);
  super.latent = 64;
  super.activation = Relu2{};
  out.push_back({.name = "nemotron_h_latent",
                 .config = config("nemotron_h", R"("num_hidden_layers": 2,
                   "hybrid_override_pattern": "ME", "n_routed_experts": 8,
                   "num_experts_per_tok": 4, "moe_intermediate_size": 96, "n_shared_experts": 1,
                   "moe_shared_expert_intermediate_size": 64, "moe_latent_size": 64,
                   "mlp_hidden_act": "relu2", "routed_scaling_factor": 5.0,
                   "norm_topk_prob": true)"),
                 .block = "backbone.layers.1.mixer",
                 .layer = 1,
                 .problem = super,
                 .names = with(deepseek_names(),
                               [](WrittenNames& n) {
                                 n.latent_down = "fc1_latent_proj";
                                 n.latent_up = "fc2_latent_proj";
                               }),
                 .shared_activation = Relu2{}});
}

/// A Qwen3-MoE whose quantization_config is `block`.
WrittenSpec quantised(const char* name, Problem problem, Coding coding, const std::string& block) {
  return {.name = name,
          .config = config("qwen3_moe", R"("num_hidden_layers": 1, "num_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 96, "hidden_act": "silu",
            "norm_topk_prob": true, "quantization_config": )" +
                                            block),
          .block = "model.layers.0.mlp",
          .problem = std::move(problem),
          .names = qwen_names(),
          .coding = coding};
}

void add_schemas(std::vector<WrittenSpec>& out) {
  auto add = [&](const char* name, const char* format, Coding coding, const std::string& block,
                 ActivationMode mode = ActivationMode::kFormat) {
    out.push_back(
        quantised(name, coded(base(Method::kRenormalize, 2), format, mode), coding, block));
  };
  auto compressed = [](const char* format, const char* weights, const char* activations) {
    return std::string(R"({"quant_method": "compressed-tensors", "format": ")") + format +
           R"(", "ignore": ["lm_head", "re:.*mlp\\.gate$"], "config_groups": {"group_0": {
             "targets": ["Linear"], "weights": )" +
           weights + R"(, "input_activations": )" + activations + "}}}";
  };
  const char* four = R"({"num_bits": 4, "type": "float", "strategy": "tensor_group",
    "group_size": 16, "symmetric": true, "dynamic": false})";
  add("compressed_nvfp4", "nvfp4", Coding::kNvfp4Packed,
      compressed("nvfp4-pack-quantized", four, R"({"num_bits": 4, "type": "float",
        "strategy": "tensor_group", "group_size": 16, "symmetric": true, "dynamic": "local"})"));
  add("compressed_nvfp4_weights", "nvfp4", Coding::kNvfp4Packed,
      compressed("nvfp4-pack-quantized", four, "null"), ActivationMode::kBf16);
  add("compressed_fp8_channel", "fp8", Coding::kFp8Channel,
      compressed("float-quantized", R"({"num_bits": 8, "type": "float", "strategy": "channel",
        "symmetric": true, "dynamic": false})",
                 R"({"num_bits": 8, "type": "float", "strategy": "token", "symmetric": true,
        "dynamic": true})"));
  add("compressed_fp8_tensor", "fp8", Coding::kFp8Static,
      compressed("float-quantized", R"({"num_bits": 8, "type": "float", "strategy": "tensor",
        "symmetric": true, "dynamic": false})",
                 R"({"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": true,
        "dynamic": false})"));
  const char* mx = R"({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
    "symmetric": true, "dynamic": false})";
  add("compressed_mxfp4_mxfp8", "w4a8_mxfp4_mxfp8", Coding::kMxfp4Packed,
      compressed("mxfp4-pack-quantized", mx, R"({"num_bits": 8, "type": "float",
        "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": true})"));
  Problem v4 = factor(shared(base(Method::kDeepSeekV4, 2), 1, kInter), 1.5f);
  v4.activation = Swiglu{.clamp = PerExpert(10.0f)};
  out.push_back(
      {.name = "deepseek_v4_fp4",
       .config = config("deepseek_v4", R"("num_hidden_layers": 1,
                   "num_hash_layers": 0, "n_routed_experts": 8, "n_shared_experts": 1,
                   "num_experts_per_tok": 2, "moe_intermediate_size": 96, "swiglu_limit": 10.0,
                   "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
                   "norm_topk_prob": true, "routed_scaling_factor": 1.5, "expert_dtype": "fp4",
                   "quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                     "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
                     "weight_block_size": [128, 128]})"),
       .block = "layers.0.ffn",
       .problem = coded(v4, "w4a16_mxfp4"),
       .names = with(mixtral_names(),
                     [](WrittenNames& n) {
                       n.shared = {"shared_experts.w1", "shared_experts.w3", "shared_experts.w2"};
                       n.choice_bias = "gate.bias";
                     }),
       .coding = Coding::kMxfp4Native,
       .shared_coding = Coding::kFp8BlockNative,
       .shared_activation = v4.activation});
  Problem llama = coded(base(Method::kLlama4, 1), "nvfp4");
  out.push_back({.name = "llama4_nvfp4",
                 .config = R"({"model_type": "llama4", "text_config": )" +
                           config("llama4_text", R"("num_hidden_layers": 1,
                   "num_local_experts": 8, "num_experts_per_tok": 1, "intermediate_size": 96,
                   "interleave_moe_layer_step": 1, "hidden_act": "silu")") +
                           R"(, "quantization_config": {"quant_method": "modelopt",
                     "quant_algo": "NVFP4", "ignore": ["*.router", "*.shared_expert.*"]}})",
                 .block = "language_model.model.layers.0.feed_forward",
                 .problem = shared(llama, 1, kInter),
                 .names = {.router = "router.weight",
                           .expert = {"experts.gate_up_proj", "", "experts.down_proj"},
                           .shared = {"shared_expert.gate_proj", "shared_expert.up_proj",
                                      "shared_expert.down_proj"}},
                 .storage = Storage::kColumns,
                 .coding = Coding::kNvfp4});
}

}  // namespace

const std::vector<WrittenSpec>& written_specs() {
  static const std::vector<WrittenSpec> kSpecs = [] {
    std::vector<WrittenSpec> out;
    add_softmax_families(out);
    add_stacked_families(out);
    add_deepseek_families(out);
    add_biased_families(out);
    add_latent_and_zero(out);
    add_schemas(out);
    return out;
  }();
  return kSpecs;
}

}  // namespace switchyard::test
