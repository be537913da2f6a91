// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/compressed_tensors.h"

#include <algorithm>
#include <tuple>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/json_text.h"

namespace switchyard::checkpoint {
namespace {

using formats::ActivationQuant;
using nlohmann::json;

/// One side of a group, "weights" or "input_activations", as a Config of its own.
std::optional<Config> side(const Config& group, const char* name) {
  const json* block = group.find(name);
  if (!block) return {};
  require(block->is_object(), group.where(), ": '", name, "' is ", show_json(*block),
          ", must be an object or null");
  return Config(*block, cat(group.where(), ": ", name));
}

void want_symmetric(const Config& c) {
  c.must_be("symmetric", true, "a zero point is not served");
  c.must_be("actorder", nullptr, "reordered columns are not served");
}

/// `dynamic` is true, false, or "local" for NVFP4's block scales under a static global one.
bool is_dynamic(const Config& c) {
  const json* value = c.find("dynamic");
  if (!value) return false;
  require(value->is_boolean() || *value == "local", c.where(), ": 'dynamic' is ", show_json(*value),
          ", must be true, false or \"local\"");
  return *value == true;
}

void want_type(const Config& c, std::int64_t bits) {
  c.must_be("num_bits", bits, "the group's format says so");
  c.must_be("type", "float", "the group's format says so");
}

ActivationQuant fp8_activation(const std::optional<Config>& a) {
  if (!a) return ActivationQuant::kNone;
  want_type(*a, 8);
  want_symmetric(*a);
  std::string strategy = a->word("strategy", "tensor|token", "tensor");
  if (!is_dynamic(*a)) {
    require(strategy == "tensor", a->where(), ": 'strategy' is \"", strategy,
            "\" and 'dynamic' is false; static scales are served per tensor only");
    return ActivationQuant::kFp8Tensor;
  }
  require(strategy == "token", a->where(), ": 'strategy' is \"", strategy,
          "\" and 'dynamic' is true; dynamic scales are served per token only");
  return ActivationQuant::kFp8Token;
}

Scheme fp8_block_scheme(const Config& weights, const std::optional<Config>& activations) {
  weights.must_be("block_structure", json::array({128, 128}), "scales stand per 128 x 128");
  require(activations.has_value(), weights.where(),
          ": block scales without 'input_activations' are not served; declare dynamic groups of "
          "128");
  want_type(*activations, 8);
  activations->word("strategy", "group", "group");
  activations->must_be("group_size", 128, "activation scales stand per 1 x 128");
  require(is_dynamic(*activations), activations->where(),
          ": 'dynamic' is false; activation scales per 1 x 128 are dynamic");
  Scheme out = schemes::fp8_block(false);
  out.names.scale = "weight_scale";
  return out;
}

Scheme fp8_scheme(const Config& weights, const std::optional<Config>& activations) {
  want_type(weights, 8);
  std::string strategy = weights.word("strategy", "tensor|channel|block", "tensor");
  if (strategy == "block") return fp8_block_scheme(weights, activations);
  ActivationQuant activation = fp8_activation(activations);
  return strategy == "tensor" ? schemes::fp8_tensor(activation) : schemes::fp8_channel(activation);
}

Scheme nvfp4_scheme(const Config& weights, const std::optional<Config>& activations) {
  want_type(weights, 4);
  weights.must_be("group_size", 16, "NVFP4 has one scale per 16");
  weights.word("strategy", "tensor_group", "tensor_group");
  if (activations) {
    want_type(*activations, 4);
    activations->must_be("group_size", 16, "NVFP4 has one scale per 16");
    require(!is_dynamic(*activations), activations->where(),
            ": 'dynamic' is true; NVFP4's global activation scale is static (\"local\")");
  }
  Scheme out = schemes::nvfp4(!activations);
  out.names = {.codes = "weight_packed",
               .scale = "weight_scale",
               .global = "weight_global_scale",
               .input = "input_global_scale",
               .divides = true};
  return out;
}

Scheme mxfp4_scheme(const Config& weights, const std::optional<Config>& activations) {
  want_type(weights, 4);
  weights.must_be("group_size", 32, "MXFP4 has one scale per 32");
  Scheme out = schemes::mxfp4();
  if (activations) {
    activations->must_be("num_bits", 8, "MXFP4 weights are served with bf16 or MXFP8 activations");
    activations->must_be("type", "float", "MXFP8 is a float type");
    activations->must_be("group_size", 32, "MXFP8 has one scale per 32");
    require(is_dynamic(*activations), activations->where(),
            ": 'dynamic' is false; MXFP8's scales are dynamic");
    out = schemes::mxfp4_mxfp8();
  }
  out.names = {.codes = "weight_packed", .scale = "weight_scale"};
  return out;
}

/// The class of modules that experts belong to.
constexpr std::string_view kLinear = "Linear";

/// Modules' paths and regular expressions; the class is left out.
void add_names(ModuleMatcher& to, const std::vector<std::string>& names, const Config& c) {
  for (const std::string& name : names) {
    if (name.starts_with("re:"))
      to.add_expression(std::string_view(name).substr(3), "", c.where());
    else if (name != kLinear)
      to.add(name, "");
  }
}

bool names_class(const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), kLinear) != names.end();
}

ModuleMatcher every_module() {
  ModuleMatcher out;
  out.add("*", "");
  return out;
}

/// Refuses what would change the weights' meaning; null and {} say nothing.
void must_be_empty(const Config& c, const char* name, const char* why) {
  const json* value = c.find(name);
  require(!value || value->empty(), c.where(), ": '", name, "' is ", value ? show_json(*value) : "",
          ", must be absent, null or empty; ", why);
}

/// A sparsity that stores the tensors in full ("dense") is none for a reader.
void must_be_dense(const Config& c) {
  const json* value = c.find("sparsity_config");
  if (value && value->is_object() && value->value("format", json()) == "dense") return;
  must_be_empty(c, "sparsity_config", "compressed sparse weights are not served");
}

/// Groups in the order they were numbered in: group_2 goes before group_10, which a sorted object
/// turns round.
std::vector<std::string> group_order(const json& groups) {
  std::vector<std::string> out;
  for (const auto& [name, block] : groups.items()) out.push_back(name);
  auto key = [](const std::string& name) {
    const std::size_t word = name.find_last_not_of("0123456789") + 1;
    return std::tuple(name.substr(0, word), name.size() - word, name.substr(word));
  };
  std::sort(out.begin(), out.end(),
            [&](const std::string& a, const std::string& b) { return key(a) < key(b); });
  return out;
}

/// The scheme of one group whose own or inherited format is `format`.
Scheme group_scheme(const Config& group, const std::string& format) {
  auto weights = side(group, "weights");
  auto activations = side(group, "input_activations");
  must_be_empty(group, "output_activations", "quantised outputs are not served");
  require(weights.has_value(), group.where(), ": has no 'weights'; only weights make a format");
  want_symmetric(*weights);
  if (format == "nvfp4-pack-quantized") return nvfp4_scheme(*weights, activations);
  if (format == "mxfp4-pack-quantized") return mxfp4_scheme(*weights, activations);
  if (format == "float-quantized" || format == "naive-quantized")
    return fp8_scheme(*weights, activations);
  refuse_schema(group.where(), "format", format);
}

}  // namespace

Quantization CompressedTensorsParser::run() {
  Quantization out;
  out.method_ = "compressed-tensors";
  out.where_ = c_.where();
  std::string format = c_.text("format", "");
  must_be_empty(c_, "transform_config", "rotated weights are not served");
  must_be_dense(c_);
  const auto ignored = c_.texts("ignore").value_or(std::vector<std::string>{});
  add_names(out.excluded_, ignored, c_);
  if (names_class(ignored)) out.excluded_.add("*", "");
  const json* groups = c_.find("config_groups");
  require(groups && groups->is_object() && !groups->empty(), c_.where(),
          ": has no object 'config_groups'; without it no module's format is known");
  // What names modules goes before what names their class, over all groups.
  decltype(out.groups_) classes;
  for (const std::string& name : group_order(*groups)) {
    const json& block = (*groups)[name];
    require(block.is_object(), c_.where(), ": 'config_groups' entry '", show_name(name), "' is ",
            show_json(block), ", must be an object");
    Config group(block, cat(c_.where(), ": config_groups.", show_name(name)));
    const std::string own = group.text("format", format);
    const Scheme scheme = group_scheme(group, own);
    const auto targets =
        group.texts("targets").value_or(std::vector<std::string>{std::string(kLinear)});
    out.algorithm_ = out.algorithm_ == "none" ? own : "mixed-precision";
    ModuleMatcher names;
    add_names(names, targets, group);
    out.groups_.emplace_back(std::move(names), scheme);
    if (names_class(targets)) classes.emplace_back(every_module(), scheme);
  }
  out.groups_.insert(out.groups_.end(), classes.begin(), classes.end());
  return out;
}

}  // namespace switchyard::checkpoint
