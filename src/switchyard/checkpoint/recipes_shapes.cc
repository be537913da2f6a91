// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/checkpoint/json_text.h"
#include "switchyard/checkpoint/recipe_tools.h"
#include "switchyard/checkpoint/recipes.h"

namespace switchyard::checkpoint::recipes {
namespace {

constexpr std::string_view kGatedWords = "silu|swish|gelu|gelu_pytorch_tanh|gelu_new";

Activation gated(const std::string& word) {
  if (word == "gelu") return Geglu{GeluForm::kErf};
  if (word.starts_with("gelu")) return Geglu{GeluForm::kTanh};
  return Swiglu{};
}

void set_shared(Problem& p, std::int64_t count, std::int64_t width) {
  p.num_shared = width > 0 ? count : 0;
  p.shared_inter = count > 0 ? width : 0;
}

void counted(const Config& c, std::string_view names, std::int64_t fallback, Problem& p) {
  std::int64_t n = c.integer(names, 0, 64).value_or(fallback);
  set_shared(p, n, n * p.inter);
}

/// The layer's entry of a list of clamps that may be longer than the model; 0 and null are none.
Activation clamped_by_list(const Config& c, std::string_view field, std::int64_t layer) {
  c.word("hidden_act", "silu|swish", "silu");
  Swiglu out{.clamp_after_silu = true};
  const nlohmann::json* list = c.find(field);
  if (!list || (list->is_array() && list->empty())) return out;
  require(list->is_array() && layer < std::int64_t(list->size()), c.where(), ": '", field, "' is ",
          show_json(*list), ", must be a list with an entry for layer ", layer);
  const nlohmann::json& limit = (*list)[std::size_t(layer)];
  require(limit.is_null() || (limit.is_number() && limit.get<double>() >= 0), c.where(), ": '",
          field, "' entry ", layer, " is ", show_json(limit),
          ", must be a number >= 0 or null (no clamp)");
  if (limit.is_number() && limit.get<double>() > 0) out.clamp = PerExpert(limit.get<float>());
  return out;
}

float positive(const Config& c, std::string_view field, double fallback) {
  double value = c.number(field, fallback);
  require(value > 0, c.where(), ": '", field, "' is ", value, ", must be > 0; it is a soft cap");
  return float(value);
}

}  // namespace

Activation gated_activation(const Config& c, std::int64_t) {
  return gated(c.word("hidden_act|hidden_activation|activation_function", kGatedWords, "silu"));
}

Activation clamped_swiglu(const Config& c, std::int64_t) {
  c.word("hidden_act", "silu|swish", "silu");
  Swiglu out;
  if (c.has("swiglu_limit")) out.clamp = PerExpert(float(c.number("swiglu_limit", 0)));
  return out;
}

Activation gpt_oss_activation(const Config& c, std::int64_t) {
  c.word("hidden_act", "silu|swish|swigluoai", "silu");
  SwigluBias out;
  out.gate_sigmoid_scale = float(c.number("swiglu_alpha", 1.702));
  out.linear_offset = float(c.number("swiglu_beta", 1));
  out.clamp = PerExpert(float(c.number("swiglu_limit", 7)));
  return out;
}

Activation single_activation(const Config& c, std::int64_t) {
  std::string act = c.word("mlp_hidden_act", "relu2|relu|silu|gelu|gelu_pytorch_tanh", "relu2");
  if (act == "relu") return Relu{};
  if (act == "silu") return Silu{};
  if (act == "gelu") return Gelu{GeluForm::kErf};
  if (act == "gelu_pytorch_tanh") return Gelu{GeluForm::kTanh};
  return Relu2{};
}

Activation kimi_activation(const Config& c, std::int64_t) {
  std::string act =
      c.word("hidden_act", "situ|silu|swish", c.has("activation_situ_beta") ? "situ" : "silu");
  if (act != "situ") return Swiglu{};
  require(!c.present("activation_situ_linear_beta") || c.has("activation_situ_linear_beta"),
          c.where(),
          ": 'activation_situ_linear_beta' is null, an up projection without a soft cap "
          "is not served; give a number");
  SiTu out;
  out.gate_softcap = positive(c, "activation_situ_beta", 4);
  out.linear_softcap = positive(c, "activation_situ_linear_beta", 25);
  return out;
}

Activation step_activation(const Config& c, std::int64_t layer) {
  return clamped_by_list(c, "swiglu_limits", layer);
}

Activation step_shared_activation(const Config& c, std::int64_t layer) {
  return clamped_by_list(c, "swiglu_limits_shared", layer);
}

Activation dbrx_activation(const Config& c, std::int64_t) {
  const nlohmann::json* value = c.find("ffn_act_fn");
  if (!value) return Swiglu{};
  require(value->is_object() && value->contains("name"), c.where(), ": 'ffn_act_fn' is ",
          show_json(*value), ", must be an object with a 'name'");
  return gated(Config(*value, c.where() + ": ffn_act_fn").word("name", kGatedWords, "silu"));
}

void no_shared(const Config&, std::int64_t, Problem&) {}

void counted_shared(const Config& c, std::int64_t, Problem& p) {
  counted(c, "n_shared_experts|num_shared_experts", 1, p);
}
void counted_shared_default_none(const Config& c, std::int64_t, Problem& p) {
  counted(c, "n_shared_experts|num_shared_experts", 0, p);
}
void ernie_shared(const Config& c, std::int64_t, Problem& p) {
  counted(c, "moe_num_shared_experts", 0, p);
}

void hunyuan_shared(const Config& c, std::int64_t layer, Problem& p) {
  c.must_be("use_mixed_mlp_moe", true, "the family's block always holds its shared MLP");
  std::int64_t n = c.integer_at("num_shared_expert", layer, 0, 64).value_or(1);
  set_shared(p, n, n * p.inter);
}

void qwen2_shared(const Config& c, std::int64_t, Problem& p) {
  set_shared(
      p, 1,
      c.required("shared_expert_intermediate_size", 0, kMaxWidth, "width of the shared expert"));
  p.shared_gate = p.shared_inter > 0;
}

void one_shared(const Config&, std::int64_t, Problem& p) { set_shared(p, 1, p.inter); }

void nemotron_shared(const Config& c, std::int64_t, Problem& p) {
  std::int64_t n = c.integer("n_shared_experts", 0, 64).value_or(1);
  auto width = c.integer("moe_shared_expert_intermediate_size", 0, kMaxWidth);
  require(
      n == 0 || width, c.where(), ": 'n_shared_experts' is ", n,
      " and 'moe_shared_expert_intermediate_size' is absent; the shared width is unknown, add it");
  set_shared(p, n, width.value_or(0));
}

void minimax_m3_shared(const Config& c, std::int64_t, Problem& p) {
  std::int64_t n = c.integer("n_shared_experts", 0, 64).value_or(1);
  std::int64_t width = n == 0 ? 0
                              : c.required("shared_intermediate_size", 0, kMaxWidth / 64,
                                           "width of the shared expert");
  set_shared(p, n, n * width);
}

void step_shared(const Config& c, std::int64_t, Problem& p) {
  set_shared(p, 1, c.required("share_expert_dim", 0, kMaxWidth, "width of the shared expert"));
}

}  // namespace switchyard::checkpoint::recipes
