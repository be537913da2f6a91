// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/checkpoint/recipe_tools.h"
#include "switchyard/checkpoint/recipes.h"

namespace switchyard::checkpoint::recipes {
namespace {

/// Everything that has no groups of its own refuses them through Config::refuse_unread.
void set_groups(const Config& c, std::string_view n_names, std::int64_t n_default,
                std::int64_t topk_default, Problem& p) {
  p.routing.n_group = c.integer(n_names, 1, kMaxRoutedExperts).value_or(n_default);
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

void normalise(bool wanted, Problem& p) {
  if (wanted) return;
  p.routing.map = WeightMap::kNone;
  p.routing.epsilon = 0;
}

/// Where the relatives of DeepSeek V3 differ when the config is silent.
struct NoauxDefaults {
  std::int64_t n_group = 1, topk_group = 1;
  double factor = 1;
  bool renorm = true;
};

void noaux_routing(const Config& c, const NoauxDefaults& d, Problem& p) {
  c.word("scoring_func", "sigmoid", "sigmoid");
  c.word("topk_method", "noaux_tc", "noaux_tc");
  set_method(RoutingMethodType::kDeepSeekV3, p);
  set_groups(c, "n_group", d.n_group, d.topk_group, p);
  normalise(c.flag("norm_topk_prob", d.renorm), p);
  set_factor(c, "routed_scaling_factor", d.factor, p);
}

/// Whether the V4 layer routes by its table: mlp_layer_types, else the first num_hash_layers.
bool is_hash_layer(const Config& c, std::int64_t layer) {
  auto count = c.integer("num_hash_layers", 0, kMaxLayers);
  std::vector<std::string> types = layer_words(c, "mlp_layer_types", "moe|hash_moe");
  if (types.empty()) return layer < count.value_or(3);
  std::int64_t hashed = 0;
  for (const std::string& t : types) hashed += t == "hash_moe";
  require(!count || *count == hashed, c.where(), ": 'num_hash_layers' is ", count.value_or(0),
          " and 'mlp_layer_types' lists ", hashed, " hash layers, which contradict each other");
  return layer < std::int64_t(types.size()) && types[std::size_t(layer)] == "hash_moe";
}

/// Sigmoid with a bias for the choice that a config field may switch off.
void biased_sigmoid(const Config& c, std::string_view bias_switch, bool by_default, Problem& p) {
  set_method(RoutingMethodType::kMiniMax2, p);
  p.routing.choice_bias = c.flag(bias_switch, by_default);
}

}  // namespace

void renormalize(const Config& c, std::int64_t, Problem& p) {
  c.must_be("norm_topk_prob", true, "the family always renormalises");
  set_method(RoutingMethodType::kRenormalize, p);
}

void plain_softmax(const Config& c, std::int64_t, Problem& p) {
  c.must_be("norm_topk_prob", false, "the family never renormalises");
  set_method(RoutingMethodType::kDefault, p);
}

void qwen2_routing(const Config& c, std::int64_t, Problem& p) { softmax_topk(c, false, p); }
void qwen3_routing(const Config& c, std::int64_t, Problem& p) { softmax_topk(c, true, p); }

void deepseek_v2_routing(const Config& c, std::int64_t, Problem& p) {
  c.word("scoring_func", "softmax", "softmax");
  std::string method = c.word("topk_method", "greedy|group_limited_greedy", "greedy");
  set_method(RoutingMethodType::kDeepSeekV2, p);
  set_groups(c, "n_group", 1, 1, p);
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
  noaux_routing(c, {.n_group = 8, .topk_group = 4, .factor = 2.5}, p);
}
void one_group_routing(const Config& c, std::int64_t, Problem& p) { noaux_routing(c, {}, p); }
void glm5_routing(const Config& c, std::int64_t, Problem& p) {
  noaux_routing(c, {.factor = 2.5}, p);
}
void glm4_lite_routing(const Config& c, std::int64_t, Problem& p) {
  noaux_routing(c, {.factor = 1.8}, p);
}

void dots1_routing(const Config& c, std::int64_t, Problem& p) {
  // Its published config calls the score function by the method's name.
  c.word("scoring_func", "sigmoid|noaux_tc", "sigmoid");
  c.word("topk_method", "noaux_tc", "noaux_tc");
  set_method(RoutingMethodType::kDeepSeekV3, p);
  set_groups(c, "n_group", 1, 1, p);
  normalise(c.flag("norm_topk_prob", false), p);
  set_factor(c, "routed_scaling_factor", 1, p);
}

void deepseek_v4_routing(const Config& c, std::int64_t layer, Problem& p) {
  c.word("scoring_func", "sqrtsoftplus", "sqrtsoftplus");
  c.word("topk_method", "noaux_tc", "noaux_tc");
  bool hash = is_hash_layer(c, layer);
  set_method(hash ? RoutingMethodType::kHash : RoutingMethodType::kDeepSeekV4, p);
  normalise(c.flag("norm_topk_prob", true), p);
  set_factor(c, "routed_scaling_factor", 1.5, p);
}

void kimi_routing(const Config& c, std::int64_t, Problem& p) {
  c.word("moe_router_activation_func", "sigmoid", "sigmoid");
  c.word("topk_method", "noaux_tc", "noaux_tc");
  set_method(RoutingMethodType::kDeepSeekV3, p);
  set_groups(c, "num_expert_group", 1, 1, p);
  require(c.flag("use_grouped_topk", true) || p.routing.n_group == 1, c.where(),
          ": 'use_grouped_topk' is false and 'num_expert_group' is ", p.routing.n_group,
          ", which contradict each other; use one group");
  normalise(c.flag("moe_renormalize", true), p);
  set_factor(c, "routed_scaling_factor", 1, p);
}

void bailing_routing(const Config& c, std::int64_t, Problem& p) {
  bool v2 = c.text("model_type", "") != "bailing_moe";
  // The releases' own configuration classes differ in these defaults (a factor of 1 or of 2.5).
  auto state = [&](const char* field) {
    require(c.has(field), c.where(), ": has no '", field,
            "', whose default differs between the family's releases; state it");
  };
  if (c.text("model_type", "") == "bailing_hybrid" ||
      c.text("model_type", "") == "bailing_moe_linear")
    state("score_function");
  std::string score = c.word("score_function", "softmax|sigmoid", v2 ? "sigmoid" : "softmax");
  if (score == "softmax") {
    softmax_topk(c, true, p);
    return;
  }
  for (const char* field : {"n_group", "topk_group", "routed_scaling_factor"}) state(field);
  set_method(RoutingMethodType::kDeepSeekV3, p);
  p.routing.choice_bias = c.flag("moe_router_enable_expert_bias", true);
  set_groups(c, "n_group", 1, 1, p);
  normalise(c.flag("norm_topk_prob", true), p);
  set_factor(c, "routed_scaling_factor", 1, p);
}

void llama4_routing(const Config&, std::int64_t, Problem& p) {
  set_method(RoutingMethodType::kLlama4, p);
}

void minimax_m2_routing(const Config& c, std::int64_t, Problem& p) {
  c.word("scoring_func", "sigmoid", "sigmoid");
  c.must_be("norm_topk_prob", true, "the family always renormalises");
  biased_sigmoid(c, "use_routing_bias", true, p);
}

void minimax_m3_routing(const Config& c, std::int64_t layer, Problem& p) {
  minimax_m2_routing(c, layer, p);
  set_factor(c, "routed_scaling_factor", 2, p);
}

void afmoe_routing(const Config& c, std::int64_t, Problem& p) {
  c.word("score_func", "sigmoid", "sigmoid");
  set_method(RoutingMethodType::kMiniMax2, p);
  normalise(c.flag("route_norm", true), p);
  set_factor(c, "route_scale", 1, p);
}

void lfm2_routing(const Config& c, std::int64_t, Problem& p) {
  biased_sigmoid(c, "use_expert_bias", true, p);
  p.routing.epsilon = 1e-6f;
  normalise(c.flag("norm_topk_prob", true), p);
  set_factor(c, "routed_scaling_factor", 1, p);
}

void step_routing(const Config& c, std::int64_t, Problem& p) {
  c.word("moe_router_activation", "sigmoid", "sigmoid");
  c.must_be("norm_expert_weight", true, "the family always renormalises");
  biased_sigmoid(c, "use_moe_router_bias", true, p);
  set_factor(c, "moe_router_scaling_factor", 1, p);
}

void phimoe_routing(const Config& c, std::int64_t, Problem& p) {
  set_method(RoutingMethodType::kSparseMixer, p);
  double jitter = c.number("router_jitter_noise", 0.01);
  require(jitter >= 0 && jitter < 1, c.where(), ": 'router_jitter_noise' is ", jitter,
          ", must be in 0 .. 1; it is SparseMixer's threshold");
  p.routing.jitter = float(jitter);
}

void ernie_routing(const Config& c, std::int64_t, Problem& p) {
  set_method(RoutingMethodType::kSoftmaxBias, p);
  double floor = c.number("moe_norm_min", double(p.routing.epsilon));
  require(floor >= 0, c.where(), ": 'moe_norm_min' is ", floor,
          ", must be >= 0; it is the least sum that weights are divided by");
  p.routing.epsilon = float(floor);
}

void longcat_routing(const Config& c, std::int64_t, Problem& p) {
  c.must_be("norm_topk_prob", false, "the family never renormalises");
  c.must_be("router_bias", false, "a bias on the logits is not served for this family");
  c.word("zero_expert_type", "identity", "identity");
  set_method(RoutingMethodType::kSoftmaxBias, p);
  normalise(false, p);
  p.routing.zero_experts = c.integer("zero_expert_num", 0, kMaxRoutedExperts).value_or(0);
  set_factor(c, "routed_scaling_factor", 6, p);
}

void dbrx_routing(const Config& c, std::int64_t, Problem& p) {
  bool given = c.has("moe_normalize_expert_weights");
  if (!given && c.present("moe_normalize_expert_weights"))
    return set_method(RoutingMethodType::kDefault, p);
  double order = c.number("moe_normalize_expert_weights", 1);
  require(order > 0, c.where(), ": 'moe_normalize_expert_weights' is ", order,
          ", must be > 0 or null; it is the order of a norm");
  set_method(RoutingMethodType::kLpNorm, p);
  p.routing.p = float(order);
}

void gemma4_routing(const Config& c, std::int64_t, Problem& p) {
  set_method(RoutingMethodType::kRenormalize, p);
  p.routing.per_expert_scale = true;
  double eps = c.number("rms_norm_eps", 1e-6);
  require(eps > 0, c.where(), ": 'rms_norm_eps' is ", eps,
          ", must be > 0; the router normalises its input with it");
  p.routing.input_norm_eps = float(eps);
}

}  // namespace switchyard::checkpoint::recipes
