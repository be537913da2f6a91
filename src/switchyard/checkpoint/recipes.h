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
/// first_k_dense_replace (default 3) and moe_layer_freq.
std::vector<bool> deepseek_v3_layers(const Config& c);
/// first_k_dense_replace (default 0) and moe_layer_freq.
std::vector<bool> deepseek_v2_layers(const Config& c);
/// decoder_sparse_step and mlp_only_layers.
std::vector<bool> qwen_layers(const Config& c);
/// moe_layers, else interleave_moe_layer_step.
std::vector<bool> llama4_layers(const Config& c);
/// num_dense_layers.
std::vector<bool> afmoe_layers(const Config& c);
/// layers_block_type, or the letter E of hybrid_override_pattern.
std::vector<bool> nemotron_layers(const Config& c);

/// num_nextn_predict_layers MTP layers, all with an MoE block.
std::vector<bool> next_token_layers(const Config& c);
/// num_nextn_predict_layers times the pattern mtp_layers_block_type.
std::vector<bool> nemotron_mtp_layers(const Config& c);

/// Top-k of logits, softmax over the chosen (softmax, top-k, always renormalised).
void renormalize(const Config& c, std::int64_t layer, Problem& p);
/// Softmax, top-k, renormalised when norm_topk_prob (default false).
void qwen2_routing(const Config& c, std::int64_t layer, Problem& p);
/// Softmax, top-k, renormalised when norm_topk_prob (default true).
void qwen3_routing(const Config& c, std::int64_t layer, Problem& p);
/// Softmax with greedy or group-limited choice by the group's maximum.
void deepseek_v2_routing(const Config& c, std::int64_t layer, Problem& p);
/// Sigmoid, choice bias, groups by their two best; 8 groups keep 4, factor 2.5 by default.
void deepseek_v3_routing(const Config& c, std::int64_t layer, Problem& p);
/// The same with one group and factor 1 by default.
void nemotron_routing(const Config& c, std::int64_t layer, Problem& p);
/// Sqrt-softplus, by bias or by hash table.
void deepseek_v4_routing(const Config& c, std::int64_t layer, Problem& p);
/// Sigmoid of the best logits, on the expert's input.
void llama4_routing(const Config& c, std::int64_t layer, Problem& p);
/// Sigmoid, choice bias (unless use_routing_bias is false), divided by the sum.
void minimax_m2_routing(const Config& c, std::int64_t layer, Problem& p);
/// The same with route_norm and route_scale.
void afmoe_routing(const Config& c, std::int64_t layer, Problem& p);
/// SparseMixer with router_jitter_noise as its threshold.
void phimoe_routing(const Config& c, std::int64_t layer, Problem& p);

/// hidden_act of a gated expert.
Activation gated_activation(const Config& c);
/// SwiGLU clamped by swiglu_limit when it is there.
Activation clamped_swiglu(const Config& c);
/// gpt-oss: alpha 1.702, beta 1, limit 7 unless the config says otherwise.
Activation gpt_oss_activation(const Config& c);
/// mlp_hidden_act of an expert with one projection.
Activation single_activation(const Config& c);

/// No shared expert.
void no_shared(const Config& c, Problem& p);
/// n_shared_experts or num_shared_experts of the routed width each (default: the family's 1).
void counted_shared(const Config& c, Problem& p);
/// The same, none by default.
void counted_shared_default_none(const Config& c, Problem& p);
/// One of shared_expert_intermediate_size, behind a sigmoid gate.
void qwen2_shared(const Config& c, Problem& p);
/// One of the routed width.
void one_shared(const Config& c, Problem& p);
/// One of moe_shared_expert_intermediate_size.
void nemotron_shared(const Config& c, Problem& p);

}  // namespace switchyard::checkpoint::recipes
