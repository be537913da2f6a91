// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/compressed_tensors.h"

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

/// A module's path, a regular expression, or a class of modules: experts are Linear.
void add_names(ModuleMatcher& to, const std::vector<std::string>& names, const Config& c,
               bool classes) {
  for (const std::string& name : names) {
    if (name.starts_with("re:"))
      to.add_expression(std::string_view(name).substr(3), "", c.where());
    else
      to.add(classes && name == "Linear" ? "*" : name, "");
  }
}

}  // namespace

Quantization CompressedTensorsParser::run() {
  Quantization out;
  out.method_ = "compressed-tensors";
  out.where_ = c_.where();
  std::string format = c_.text("format", "");
  add_names(out.excluded_, c_.texts("ignore").value_or(std::vector<std::string>{}), c_, true);
  const json* groups = c_.find("config_groups");
  require(groups && groups->is_object() && !groups->empty(), c_.where(),
          ": has no object 'config_groups'; without it no module's format is known");
  for (const auto& [name, block] : groups->items()) {
    require(block.is_object(), c_.where(), ": 'config_groups' entry '", show_name(name), "' is ",
            show_json(block), ", must be an object");
    Config group(block, cat(c_.where(), ": config_groups.", show_name(name)));
    std::string own = group.text("format", format);
    auto weights = side(group, "weights");
    auto activations = side(group, "input_activations");
    require(weights.has_value(), group.where(), ": has no 'weights'; only weights make a format");
    want_symmetric(*weights);
    Scheme scheme;
    if (own == "nvfp4-pack-quantized")
      scheme = nvfp4_scheme(*weights, activations);
    else if (own == "mxfp4-pack-quantized")
      scheme = mxfp4_scheme(*weights, activations);
    else if (own == "float-quantized" || own == "naive-quantized")
      scheme = fp8_scheme(*weights, activations);
    else
      refuse_schema(group.where(), "format", own);
    ModuleMatcher targets;
    add_names(targets, group.texts("targets").value_or(std::vector<std::string>{"Linear"}), group,
              true);
    out.algorithm_ = out.groups_.empty() ? own : "mixed-precision";
    out.groups_.emplace_back(std::move(targets), scheme);
  }
  return out;
}

}  // namespace switchyard::checkpoint
