// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/recipes.h"

#include <algorithm>

#include "switchyard/base/check.h"

namespace switchyard::checkpoint::recipes {
namespace {

constexpr std::int64_t kMaxLayers = 65536, kMaxMtp = 1024;

std::int64_t num_layers(const Config& c) {
  return c.required("num_hidden_layers", 1, kMaxLayers, "how many layers the model has");
}

std::vector<bool> dense_then_sparse(const Config& c, std::int64_t first_default) {
  std::int64_t first = c.integer("first_k_dense_replace", 0, kMaxLayers).value_or(first_default);
  std::int64_t step = c.integer("moe_layer_freq", 1, kMaxLayers).value_or(1);
  std::vector<bool> out(std::size_t(num_layers(c)), false);
  for (std::int64_t l = first; l < std::int64_t(out.size()); ++l)
    out[std::size_t(l)] = l % step == 0;
  return out;
}

void mark(std::vector<bool>& flags, const std::vector<std::int64_t>& layers, bool value,
          const Config& c, std::string_view field) {
  for (std::int64_t l : layers) {
    require(l < std::int64_t(flags.size()), c.where(), ": '", field, "' names layer ", l,
            ", the model has layers 0 .. ", flags.size() - 1, "; correct the list");
    flags[std::size_t(l)] = value;
  }
}

std::vector<bool> are_moe(const std::vector<std::string>& types) {
  std::vector<bool> out;
  for (const std::string& t : types) out.push_back(t == "moe");
  return out;
}

/// Everything that has no groups of its own refuses them through Config::refuse_unread.
void set_groups(const Config& c, Problem& p, std::int64_t n_default, std::int64_t topk_default) {
  p.routing.n_group = c.integer("n_group", 1, kMaxRoutedExperts).value_or(n_default);
  p.routing.topk_group = c.integer("topk_group", 1, kMaxRoutedExperts).value_or(topk_default);
}

void set_factor(const Config& c, std::string_view field, double fallback, Problem& p) {
  double factor = c.number(field, fallback);
  require(factor > 0, c.where(), ": '", field, "' is ", factor,
          ", must be > 0; the factor of the routed sum");
  p.routed_scaling_factor = float(factor);
}

void set_method(RoutingMethodType method, Problem& p) {
  p.routing = make_routing(method, p.routing.num_experts, p.routing.top_k);
}

void softmax_topk(const Config& c, bool renorm_default, Problem& p) {
  bool renorm = c.flag("norm_topk_prob", renorm_default);
  set_method(renorm ? RoutingMethodType::kRenormalize : RoutingMethodType::kDefault, p);
}

void unless_normalised(const Config& c, std::string_view field, Problem& p) {
  if (c.flag(field, true)) return;
  p.routing.map = WeightMap::kNone;
  p.routing.epsilon = 0;
}

void noaux_routing(const Config& c, std::int64_t n_group, std::int64_t topk_group, double factor,
                   Problem& p) {
  c.word("scoring_func", "sigmoid", "sigmoid");
  c.word("topk_method", "noaux_tc", "noaux_tc");
  set_method(RoutingMethodType::kDeepSeekV3, p);
  set_groups(c, p, n_group, topk_group);
  unless_normalised(c, "norm_topk_prob", p);
  set_factor(c, "routed_scaling_factor", factor, p);
}

/// Whether the V4 layer routes by its table: mlp_layer_types, else the first num_hash_layers.
bool is_hash_layer(const Config& c, std::int64_t layer) {
  auto count = c.integer("num_hash_layers", 0, kMaxLayers);
  auto types = c.texts("mlp_layer_types");
  if (!types) return layer < count.value_or(3);
  require(std::int64_t(types->size()) == num_layers(c), c.where(), ": 'mlp_layer_types' has ",
          types->size(), " entries and 'num_hidden_layers' is ", num_layers(c),
          ", which contradict each other");
  std::int64_t hashed = 0;
  for (const std::string& t : *types) {
    require(t == "moe" || t == "hash_moe", c.where(), ": 'mlp_layer_types' holds \"", t,
            "\", must be \"moe\" or \"hash_moe\"; the value is not served");
    hashed += t == "hash_moe";
  }
  require(!count || *count == hashed, c.where(), ": 'num_hash_layers' is ", count.value_or(0),
          " and 'mlp_layer_types' lists ", hashed, " hash layers, which contradict each other");
  return layer < std::int64_t(types->size()) && (*types)[std::size_t(layer)] == "hash_moe";
}

void set_shared(Problem& p, std::int64_t count, std::int64_t width) {
  p.num_shared = width > 0 ? count : 0;
  p.shared_inter = count > 0 ? width : 0;
}

void counted(const Config& c, std::int64_t fallback, Problem& p) {
  std::int64_t n = c.integer("n_shared_experts|num_shared_experts", 0, 64).value_or(fallback);
  set_shared(p, n, n * p.inter);
}

}  // namespace

std::vector<bool> all_layers(const Config& c) {
  return std::vector<bool>(std::size_t(num_layers(c)), true);
}

std::vector<bool> deepseek_v3_layers(const Config& c) { return dense_then_sparse(c, 3); }
std::vector<bool> deepseek_v2_layers(const Config& c) { return dense_then_sparse(c, 0); }

std::vector<bool> qwen_layers(const Config& c) {
  std::int64_t step = c.integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  std::vector<bool> out(std::size_t(num_layers(c)));
  for (std::size_t l = 0; l < out.size(); ++l) out[l] = (std::int64_t(l) + 1) % step == 0;
  if (auto dense = c.integers("mlp_only_layers")) mark(out, *dense, false, c, "mlp_only_layers");
  return out;
}

std::vector<bool> llama4_layers(const Config& c) {
  std::int64_t step = c.integer("interleave_moe_layer_step", 0, kMaxLayers).value_or(1);
  std::vector<bool> out(std::size_t(num_layers(c)), false);
  if (auto sparse = c.integers("moe_layers")) {
    mark(out, *sparse, true, c, "moe_layers");
    return out;
  }
  for (std::size_t l = 0; step > 0 && l < out.size(); ++l)
    out[l] = (std::int64_t(l) + 1) % step == 0;
  return out;
}

std::vector<bool> afmoe_layers(const Config& c) {
  std::int64_t dense = c.integer("num_dense_layers", 0, kMaxLayers).value_or(0);
  std::vector<bool> out(std::size_t(num_layers(c)));
  for (std::size_t l = 0; l < out.size(); ++l) out[l] = std::int64_t(l) >= dense;
  return out;
}

std::vector<bool> nemotron_layers(const Config& c) {
  std::vector<bool> out;
  auto types = c.texts("layers_block_type");
  std::string letters = c.text("hybrid_override_pattern", "");
  require(types || !letters.empty(), c.where(),
          ": has neither 'layers_block_type' nor 'hybrid_override_pattern'; the MoE layers are "
          "unknown, add one");
  if (types) out = are_moe(*types);
  std::vector<bool> by_letter;
  for (char letter : letters) by_letter.push_back(letter == 'E');
  require(!types || letters.empty() || out == by_letter, c.where(),
          ": 'layers_block_type' and 'hybrid_override_pattern' name different MoE layers, which "
          "contradict "
          "each other; keep one");
  if (!types) out = by_letter;
  auto count = c.integer("num_hidden_layers", 1, kMaxLayers);
  require(!count || *count == std::int64_t(out.size()), c.where(), ": 'num_hidden_layers' is ",
          count.value_or(0), " and the layer pattern has ", out.size(),
          " entries, which contradict each other");
  return out;
}

std::vector<bool> next_token_layers(const Config& c) {
  auto count = c.integer("num_nextn_predict_layers|num_mtp_modules", 0, kMaxMtp);
  return std::vector<bool>(std::size_t(count.value_or(0)), true);
}

std::vector<bool> nemotron_mtp_layers(const Config& c) {
  std::int64_t count = c.integer("num_nextn_predict_layers", 0, kMaxMtp).value_or(0);
  auto types = c.texts("mtp_layers_block_type");
  std::vector<bool> pattern = types ? are_moe(*types) : std::vector<bool>{}, out;
  for (std::int64_t i = 0; i < count; ++i) out.insert(out.end(), pattern.begin(), pattern.end());
  return out;
}

void renormalize(const Config& c, std::int64_t, Problem& p) {
  c.must_be("norm_topk_prob", true, "the family always renormalises");
  set_method(RoutingMethodType::kRenormalize, p);
}

void qwen2_routing(const Config& c, std::int64_t, Problem& p) { softmax_topk(c, false, p); }
void qwen3_routing(const Config& c, std::int64_t, Problem& p) { softmax_topk(c, true, p); }

void deepseek_v2_routing(const Config& c, std::int64_t, Problem& p) {
  c.word("scoring_func", "softmax", "softmax");
  std::string method = c.word("topk_method", "greedy|group_limited_greedy", "greedy");
  set_method(RoutingMethodType::kDeepSeekV2, p);
  set_groups(c, p, 1, 1);
  require(method != "greedy" || p.routing.n_group == 1, c.where(),
          ": 'topk_method' is \"greedy\" and 'n_group' is ", p.routing.n_group,
          ", which contradict each other; use group_limited_greedy or n_group 1");
  set_factor(c, "routed_scaling_factor", 1, p);
  if (!c.flag("norm_topk_prob", false)) return;
  // Published implementations disagree on whether renormalised weights are scaled as well.
  require(p.routed_scaling_factor == 1, c.where(),
          ": 'norm_topk_prob' is true and 'routed_scaling_factor' is ", p.routed_scaling_factor,
          ", which contradict each other in this family; use one of them");
  p.routing.map = WeightMap::kDivideByEpsilonSum;
  p.routing.epsilon = 1e-20f;
}

void deepseek_v3_routing(const Config& c, std::int64_t, Problem& p) {
  noaux_routing(c, 8, 4, 2.5, p);
}
void nemotron_routing(const Config& c, std::int64_t, Problem& p) { noaux_routing(c, 1, 1, 1, p); }

void deepseek_v4_routing(const Config& c, std::int64_t layer, Problem& p) {
  c.word("scoring_func", "sqrtsoftplus", "sqrtsoftplus");
  c.word("topk_method", "noaux_tc", "noaux_tc");
  c.word("expert_dtype", "bf16|bfloat16|fp8", "bf16");
  bool hash = is_hash_layer(c, layer);
  set_method(hash ? RoutingMethodType::kHash : RoutingMethodType::kDeepSeekV4, p);
  unless_normalised(c, "norm_topk_prob", p);
  set_factor(c, "routed_scaling_factor", 1.5, p);
}

void llama4_routing(const Config&, std::int64_t, Problem& p) {
  set_method(RoutingMethodType::kLlama4, p);
}

void minimax_m2_routing(const Config& c, std::int64_t, Problem& p) {
  c.word("scoring_func", "sigmoid", "sigmoid");
  c.must_be("norm_topk_prob", true, "the family always renormalises");
  set_method(RoutingMethodType::kMiniMax2, p);
  p.routing.choice_bias = c.flag("use_routing_bias", true);
}

void afmoe_routing(const Config& c, std::int64_t, Problem& p) {
  c.word("score_func", "sigmoid", "sigmoid");
  set_method(RoutingMethodType::kMiniMax2, p);
  unless_normalised(c, "route_norm", p);
  set_factor(c, "route_scale", 1, p);
}

void phimoe_routing(const Config& c, std::int64_t, Problem& p) {
  set_method(RoutingMethodType::kSparseMixer, p);
  double jitter = c.number("router_jitter_noise", 0.01);
  require(jitter >= 0 && jitter < 1, c.where(), ": 'router_jitter_noise' is ", jitter,
          ", must be in 0 .. 1; it is SparseMixer's threshold");
  p.routing.jitter = float(jitter);
}

Activation gated_activation(const Config& c) {
  std::string act = c.word("hidden_act", "silu|swish|gelu|gelu_pytorch_tanh|gelu_new", "silu");
  if (act == "gelu") return Geglu{GeluForm::kErf};
  if (act.starts_with("gelu")) return Geglu{GeluForm::kTanh};
  return Swiglu{};
}

Activation clamped_swiglu(const Config& c) {
  c.word("hidden_act", "silu|swish", "silu");
  Swiglu out;
  if (c.has("swiglu_limit")) out.clamp = PerExpert(float(c.number("swiglu_limit", 0)));
  return out;
}

Activation gpt_oss_activation(const Config& c) {
  c.word("hidden_act", "silu|swish", "silu");
  SwigluBias out;
  out.gate_sigmoid_scale = float(c.number("swiglu_alpha", 1.702));
  out.linear_offset = float(c.number("swiglu_beta", 1));
  out.clamp = PerExpert(float(c.number("swiglu_limit", 7)));
  return out;
}

Activation single_activation(const Config& c) {
  std::string act = c.word("mlp_hidden_act", "relu2|relu|silu|gelu|gelu_pytorch_tanh", "relu2");
  if (act == "relu") return Relu{};
  if (act == "silu") return Silu{};
  if (act == "gelu") return Gelu{GeluForm::kErf};
  if (act == "gelu_pytorch_tanh") return Gelu{GeluForm::kTanh};
  return Relu2{};
}

void no_shared(const Config&, Problem&) {}
void counted_shared(const Config& c, Problem& p) { counted(c, 1, p); }
void counted_shared_default_none(const Config& c, Problem& p) { counted(c, 0, p); }

void qwen2_shared(const Config& c, Problem& p) {
  set_shared(
      p, 1,
      c.required("shared_expert_intermediate_size", 0, kMaxWidth, "width of the shared expert"));
  p.shared_gate = p.shared_inter > 0;
}

void one_shared(const Config&, Problem& p) { set_shared(p, 1, p.inter); }

void nemotron_shared(const Config& c, Problem& p) {
  std::int64_t n = c.integer("n_shared_experts", 0, 64).value_or(1);
  auto width = c.integer("moe_shared_expert_intermediate_size", 0, kMaxWidth);
  require(
      n == 0 || width, c.where(), ": 'n_shared_experts' is ", n,
      " and 'moe_shared_expert_intermediate_size' is absent; the shared width is unknown, add it");
  set_shared(p, n, width.value_or(0));
}

}  // namespace switchyard::checkpoint::recipes
