// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/checkpoint/config.h"
#include "switchyard/core/problem.h"

/// How families turn config fields into the vocabulary; a row of the family table points at these.
///
/// Errors:  each throws UsageError naming field, value and what is served.
namespace switchyard::checkpoint::recipes {

/// Every hidden layer is an MoE layer.
std::vector<bool> all_layers(const Config& c);
/// The same, counted by n_layers.
std::vector<bool> dbrx_layers(const Config& c);
/// The same, counted by num_layers: num_hidden_layers counts the two attention sublayers of each.
std::vector<bool> longcat_layers(const Config& c);
/// mlp_layer_types, else first_k_dense_replace (default 3) and moe_layer_freq.
std::vector<bool> three_dense_layers(const Config& c);
/// The same with one dense layer by default.
std::vector<bool> one_dense_layer(const Config& c);
/// The same with no dense layer by default.
std::vector<bool> no_dense_layer(const Config& c);
/// decoder_sparse_step and mlp_only_layers.
std::vector<bool> qwen_layers(const Config& c);
/// moe_layers, else interleave_moe_layer_step.
std::vector<bool> llama4_layers(const Config& c);
/// The layers behind num_dense_layers (default 0).
std::vector<bool> afmoe_layers(const Config& c);
/// The same, 2 by default.
std::vector<bool> lfm2_layers(const Config& c);
/// layers_block_type, or the letter E of hybrid_override_pattern.
std::vector<bool> nemotron_layers(const Config& c);
/// expert_layer_period (default 2) and expert_layer_offset (default 1).
std::vector<bool> jamba_layers(const Config& c);
/// moe_layer_interval (default 1) between moe_layer_start_index (1) and moe_layer_end_index (last).
std::vector<bool> ernie_layers(const Config& c);
/// moe_layers_enum, a text "3,4,5"; by default all but the first.
std::vector<bool> step_layers(const Config& c);
/// All layers behind moe_layer_num_skipped (default 0).
std::vector<bool> hunyuan_layers(const Config& c);
/// All layers of a model with enable_moe_block.
std::vector<bool> gemma4_layers(const Config& c);

/// num_nextn_predict_layers MTP layers, all with an MoE block.
std::vector<bool> next_token_layers(const Config& c);
/// num_nextn_predict_layers times the pattern mtp_layers_block_type.
std::vector<bool> nemotron_mtp_layers(const Config& c);
/// MTP layers, if there are any, hold no MoE block.
std::vector<bool> no_mtp_layers(const Config& c);

/// Top-k of logits, softmax over the chosen (softmax, top-k, always renormalised).
void renormalize(const Config& c, std::int64_t layer, Problem& p);
/// Softmax, top-k, never renormalised.
void plain_softmax(const Config& c, std::int64_t layer, Problem& p);
/// Softmax, top-k, renormalised when norm_topk_prob (default false).
void qwen2_routing(const Config& c, std::int64_t layer, Problem& p);
/// Softmax, top-k, renormalised when norm_topk_prob (default true).
void qwen3_routing(const Config& c, std::int64_t layer, Problem& p);
/// Softmax with greedy or group-limited choice by the group's maximum.
void deepseek_v2_routing(const Config& c, std::int64_t layer, Problem& p);
/// Sigmoid, choice bias, groups by their two best; 8 groups keep 4, factor 2.5 by default.
void deepseek_v3_routing(const Config& c, std::int64_t layer, Problem& p);
/// The same with one group and factor 1 by default.
void one_group_routing(const Config& c, std::int64_t layer, Problem& p);
/// The same with one group and factor 2.5 by default.
void glm5_routing(const Config& c, std::int64_t layer, Problem& p);
/// The same with one group and factor 1.8 by default.
void glm4_lite_routing(const Config& c, std::int64_t layer, Problem& p);
/// One group, not renormalised by default.
void dots1_routing(const Config& c, std::int64_t layer, Problem& p);
/// Sqrt-softplus, by bias or by hash table.
void deepseek_v4_routing(const Config& c, std::int64_t layer, Problem& p);
/// Kimi's names of the DeepSeek V3 recipe.
void kimi_routing(const Config& c, std::int64_t layer, Problem& p);
/// Softmax, or with score_function sigmoid the DeepSeek V3 recipe with a switchable bias.
void bailing_routing(const Config& c, std::int64_t layer, Problem& p);
/// Sigmoid of the best logits, on the expert's input.
void llama4_routing(const Config& c, std::int64_t layer, Problem& p);
/// Sigmoid, choice bias (unless use_routing_bias is false), divided by the sum.
void minimax_m2_routing(const Config& c, std::int64_t layer, Problem& p);
/// The same with routed_scaling_factor (default 2).
void minimax_m3_routing(const Config& c, std::int64_t layer, Problem& p);
/// The same with route_norm and route_scale.
void afmoe_routing(const Config& c, std::int64_t layer, Problem& p);
/// The same with use_expert_bias, norm_topk_prob and routed_scaling_factor; the sum is guarded by
/// 1e-6.
void lfm2_routing(const Config& c, std::int64_t layer, Problem& p);
/// The same with use_moe_router_bias and moe_router_scaling_factor.
void step_routing(const Config& c, std::int64_t layer, Problem& p);
/// SparseMixer with router_jitter_noise as its threshold.
void phimoe_routing(const Config& c, std::int64_t layer, Problem& p);
/// Softmax, choice bias, divided by the sum or moe_norm_min.
void ernie_routing(const Config& c, std::int64_t layer, Problem& p);
/// Softmax over experts and zero experts, choice bias, not renormalised, factor 6 by default.
void longcat_routing(const Config& c, std::int64_t layer, Problem& p);
/// Softmax, divided by the norm of order moe_normalize_expert_weights (default 1; null: by
/// nothing).
void dbrx_routing(const Config& c, std::int64_t layer, Problem& p);
/// Softmax over the chosen times a scale per expert; the router normalises its input.
void gemma4_routing(const Config& c, std::int64_t layer, Problem& p);

/// hidden_act (or hidden_activation, activation_function) of a gated expert.
Activation gated_activation(const Config& c, std::int64_t layer);
/// SwiGLU clamped by swiglu_limit when it is there.
Activation clamped_swiglu(const Config& c, std::int64_t layer);
/// gpt-oss: alpha 1.702, beta 1, limit 7 unless the config says otherwise.
Activation gpt_oss_activation(const Config& c, std::int64_t layer);
/// mlp_hidden_act of an expert with one projection.
Activation single_activation(const Config& c, std::int64_t layer);
/// SiTU with its two soft caps, or SwiGLU.
Activation kimi_activation(const Config& c, std::int64_t layer);
/// SwiGLU clamped behind silu by the layer's entry of swiglu_limits; 0 is no clamp.
Activation step_activation(const Config& c, std::int64_t layer);
/// The same by swiglu_limits_shared.
Activation step_shared_activation(const Config& c, std::int64_t layer);
/// The name in ffn_act_fn.
Activation dbrx_activation(const Config& c, std::int64_t layer);

/// No shared expert.
void no_shared(const Config& c, std::int64_t layer, Problem& p);
/// n_shared_experts or num_shared_experts of the routed width each (default: the family's 1).
void counted_shared(const Config& c, std::int64_t layer, Problem& p);
/// The same, none by default.
void counted_shared_default_none(const Config& c, std::int64_t layer, Problem& p);
/// The same by moe_num_shared_experts.
void ernie_shared(const Config& c, std::int64_t layer, Problem& p);
/// The same by num_shared_expert, one number or a list by layer (default 1).
void hunyuan_shared(const Config& c, std::int64_t layer, Problem& p);
/// One of shared_expert_intermediate_size, behind a sigmoid gate.
void qwen2_shared(const Config& c, std::int64_t layer, Problem& p);
/// One of the routed width.
void one_shared(const Config& c, std::int64_t layer, Problem& p);
/// n_shared_experts (default 1) of moe_shared_expert_intermediate_size together.
void nemotron_shared(const Config& c, std::int64_t layer, Problem& p);
/// n_shared_experts (default 1) of shared_intermediate_size each.
void minimax_m3_shared(const Config& c, std::int64_t layer, Problem& p);
/// One of share_expert_dim.
void step_shared(const Config& c, std::int64_t layer, Problem& p);

}  // namespace switchyard::checkpoint::recipes
