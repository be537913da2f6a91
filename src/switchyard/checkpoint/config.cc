// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/config.h"

#include <algorithm>
#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/json_text.h"

namespace switchyard::checkpoint {
namespace {

using nlohmann::json;

/// A field that concerns the MoE block, with the JSON values that change nothing.
struct Concern {
  const char* name;
  const char* neutral;  // a JSON list
};

constexpr Concern kConcerns[] = {
    {"scoring_func", "[]"},
    {"score_func", "[]"},
    {"score_function", "[]"},
    {"moe_router_activation_func", "[]"},
    {"topk_method", "[]"},
    {"n_group", "[0, 1]"},
    {"topk_group", "[0, 1]"},
    {"num_expert_group", "[0, 1]"},
    {"num_expert_groups", "[0, 1]"},
    {"num_limited_groups", "[0, 1]"},
    {"use_grouped_topk", "[false]"},
    {"norm_topk_prob", "[]"},
    {"route_norm", "[]"},
    {"moe_renormalize", "[]"},
    {"moe_normalize_expert_weights", "[]"},
    {"moe_norm_min", "[]"},
    {"routed_scaling_factor", "[1.0]"},
    {"moe_router_scaling_factor", "[1.0]"},
    {"route_scale", "[1.0]"},
    {"use_routing_bias", "[false]"},
    {"use_expert_bias", "[false]"},
    {"moe_router_enable_expert_bias", "[false]"},
    {"swiglu_limit", "[]"},
    {"swiglu_alpha", "[]"},
    {"swiglu_beta", "[]"},
    {"swiglu_limits", "[[]]"},
    {"swiglu_limits_shared", "[[]]"},
    {"activation_situ_beta", "[]"},
    {"activation_situ_linear_beta", "[]"},
    {"mlp_bias", "[false]"},
    {"zero_expert_num", "[0]"},
    {"moe_latent_size", "[0]"},
    {"routed_expert_hidden_size", "[0]"},
    {"n_shared_experts", "[0]"},
    {"num_shared_experts", "[0]"},
    {"shared_expert_intermediate_size", "[0]"},
    {"shared_intermediate_size", "[0]"},
    {"moe_shared_expert_intermediate_size", "[0]"},
    {"share_expert_dim", "[0]"},
    {"num_hash_layers", "[0]"},
    {"expert_dtype", "[]"},
    {"experts_per_token", "[]"},
    {"num_experts_per_token", "[]"},
    {"moe_topk", "[]"},
    {"moe_k", "[]"},
    {"top_k_experts", "[]"},
    {"num_local_experts", "[]"},
    {"num_experts", "[]"},
    {"n_routed_experts", "[]"},
    {"moe_num_experts", "[]"},
    {"first_k_dense_replace", "[0]"},
    {"moe_layer_freq", "[1]"},
    {"decoder_sparse_step", "[1]"},
    {"mlp_only_layers", "[[]]"},
    {"interleave_moe_layer_step", "[1]"},
    {"moe_layers", "[]"},
    {"mlp_layer_types", "[]"},
    {"num_dense_layers", "[0]"},
    {"expert_layer_period", "[1]"},
    {"expert_layer_offset", "[0]"},
    {"moe_layer_interval", "[1]"},
    {"moe_layer_start_index", "[0]"},
    {"moe_layer_end_index", "[-1]"},
    {"moe_layers_enum", "[\"\"]"},
    {"moe_layer_num_skipped", "[0]"},
    {"enable_moe_block", "[]"},
    {"moe_num_shared_experts", "[0]"},
    {"num_shared_expert", "[0]"},
    {"latent_moe_use_norm", "[false]"},
    {"moe_router_activation", "[]"},
    {"use_moe_router_bias", "[false]"},
    {"norm_expert_weight", "[]"},
    {"router_bias", "[false]"},
    {"zero_expert_type", "[]"},
    {"moe_top_k", "[]"},
};

}  // namespace

std::vector<std::string_view> alternatives(std::string_view names) {
  std::vector<std::string_view> out;
  for (;;) {
    std::size_t bar = names.find('|');
    out.push_back(names.substr(0, bar));
    if (bar == std::string_view::npos) return out;
    names.remove_prefix(bar + 1);
  }
}

Config::Config(json object, std::string where)
    : object_(std::move(object)), where_(std::move(where)) {}

void Config::wrong(std::string_view name, const json& value, const std::string& must) const {
  throw UsageError(cat(where_, ": '", name, "' is ", show_json(value), ", must be ", must,
                       "; the value is not served"));
}

const json* Config::find(std::string_view names) const {
  const json* found = nullptr;
  std::string_view found_name;
  for (std::string_view name : alternatives(names)) {
    auto it = object_.find(std::string(name));
    if (it == object_.end()) continue;
    read_.emplace(name);
    if (it->is_null()) continue;
    require(found == nullptr || *found == *it, where_, ": '", found_name, "' is ",
            found ? show_json(*found) : "", " and '", name, "' is ", show_json(*it),
            ", which contradict each other; keep one");
    found = &*it;
    found_name = name;
  }
  return found;
}

bool Config::present(std::string_view names) const {
  auto spellings = alternatives(names);
  return std::any_of(spellings.begin(), spellings.end(),
                     [&](std::string_view name) { return object_.contains(std::string(name)); });
}

std::string Config::spelling(std::string_view names) const {
  for (std::string_view name : alternatives(names)) {
    auto it = object_.find(std::string(name));
    if (it != object_.end() && !it->is_null()) return std::string(name);
  }
  return std::string(alternatives(names).front());
}

std::int64_t Config::to_integer(std::string_view names, const json& value, std::int64_t low,
                                std::int64_t high) const {
  bool ok = value.is_number_integer() &&
            !(value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t(high));
  ok = ok && value.get<std::int64_t>() >= low && value.get<std::int64_t>() <= high;
  if (!ok) wrong(spelling(names), value, cat("an integer in ", low, " .. ", high));
  return value.get<std::int64_t>();
}

std::optional<std::int64_t> Config::integer(std::string_view names, std::int64_t low,
                                            std::int64_t high) const {
  const json* value = find(names);
  if (!value) return {};
  return to_integer(names, *value, low, high);
}

std::optional<std::int64_t> Config::integer_at(std::string_view names, std::int64_t layer,
                                               std::int64_t low, std::int64_t high) const {
  const json* value = find(names);
  if (!value) return {};
  if (!value->is_array()) return to_integer(names, *value, low, high);
  if (layer < 0 || layer >= std::int64_t(value->size()))
    wrong(spelling(names), *value, cat("a list with an entry for layer ", layer));
  return to_integer(names, (*value)[std::size_t(layer)], low, high);
}

std::int64_t Config::required(std::string_view names, std::int64_t low, std::int64_t high,
                              std::string_view what) const {
  auto value = integer(names, low, high);
  require(value.has_value(), where_, ": has no '", alternatives(names).front(), "' (", what,
          "); an MoE layer cannot be described without it, add it");
  return *value;
}

double Config::number(std::string_view names, double fallback) const {
  const json* value = find(names);
  if (!value) return fallback;
  bool ok = value->is_number() && std::isfinite(value->get<double>());
  if (!ok) wrong(spelling(names), *value, "a finite number");
  return value->get<double>();
}

bool Config::flag(std::string_view names, bool fallback) const {
  const json* value = find(names);
  if (!value) return fallback;
  if (!value->is_boolean()) wrong(spelling(names), *value, "true or false");
  return value->get<bool>();
}

std::string Config::text(std::string_view names, std::string_view fallback) const {
  const json* value = find(names);
  if (!value) return std::string(fallback);
  if (!value->is_string()) wrong(spelling(names), *value, "a string");
  return value->get<std::string>();
}

std::string Config::word(std::string_view names, std::string_view served,
                         std::string_view fallback) const {
  std::string value = text(names, fallback);
  auto words = alternatives(served);
  if (std::find(words.begin(), words.end(), value) != words.end()) return value;
  std::string list;
  for (std::string_view w : words) list += cat(list.empty() ? "" : " or ", "\"", w, "\"");
  wrong(spelling(names), value, list);
}

std::optional<std::vector<std::string>> Config::texts(std::string_view names) const {
  const json* value = find(names);
  if (!value) return {};
  bool ok = value->is_array() &&
            std::all_of(value->begin(), value->end(), [](const json& v) { return v.is_string(); });
  if (!ok) wrong(spelling(names), *value, "a list of strings");
  return value->get<std::vector<std::string>>();
}

std::optional<std::vector<std::int64_t>> Config::integers(std::string_view names) const {
  const json* value = find(names);
  if (!value) return {};
  auto index = [](const json& v) {
    return v.is_number_unsigned() && v.get<std::uint64_t>() <= std::uint64_t(INT32_MAX);
  };
  bool ok = value->is_array() && std::all_of(value->begin(), value->end(), index);
  if (!ok) wrong(spelling(names), *value, "a list of layer indices");
  return value->get<std::vector<std::int64_t>>();
}

void Config::must_be(std::string_view names, const json& served, std::string_view why) const {
  const json* value = find(names);
  if (value && *value != served) wrong(spelling(names), *value, cat(served.dump(), " (", why, ")"));
}

void Config::refuse_unread(std::string_view family) const {
  for (const Concern& concern : kConcerns) {
    auto it = object_.find(concern.name);
    if (it == object_.end() || it->is_null() || read_.count(concern.name)) continue;
    json neutral = json::parse(concern.neutral);
    bool harmless = std::find(neutral.begin(), neutral.end(), *it) != neutral.end();
    require(harmless, where_, ": '", concern.name, "' is ", show_json(*it), ", which family ",
            family, " does not define; remove the field or name the family that it belongs to");
  }
}

}  // namespace switchyard::checkpoint
