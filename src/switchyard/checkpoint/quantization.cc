// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/quantization.h"

#include "switchyard/base/check.h"
#include "switchyard/base/nearest.h"
#include "switchyard/checkpoint/compressed_tensors.h"
#include "switchyard/checkpoint/config.h"
#include "switchyard/checkpoint/json_text.h"
#include "switchyard/core/problem.h"

namespace switchyard::checkpoint {

using formats::ActivationQuant;
using nlohmann::json;

namespace {

/// A served schema: its spelling in documents, and words of which one makes it the nearest.
struct Served {
  std::string_view name;
  std::string_view words;
};

constexpr Served kServed[] = {
    {"none", ""},
    {"fp8: FP8 (per tensor; static, or dynamic per token)", "int8|w8a8|int-quantized|fbgemm_fp8"},
    {"fp8: FP8_BLOCK_SCALES (weight_block_size [128, 128])", ""},
    {"mxfp4: MXFP4 (gpt_oss)", "quark|mlx|auto-round|mxfp4"},
    {"modelopt: NVFP4", "bitsandbytes|nvfp4|NVFP4"},
    {"modelopt: NVFP4_AWQ", ""},
    {"modelopt: NVFP4_ARC", ""},
    {"modelopt: W4A16_NVFP4", "awq|gptq|pack-quantized|W4A16"},
    {"modelopt: FP8", "MXFP8|FP8|mxfp8-quantized"},
    {"modelopt: MIXED_PRECISION", ""},
    {"compressed-tensors: float-quantized", ""},
    {"compressed-tensors: nvfp4-pack-quantized", ""},
    {"compressed-tensors: mxfp4-pack-quantized", ""},
    {"expert_dtype: fp4 (deepseek_v4)", ""},
};

Scheme modelopt_scheme(const std::string& algorithm, const std::string& where) {
  std::string word = fold_format(algorithm);
  if (word == "none") return {};
  if (word == "nvfp4") return schemes::nvfp4(false);
  if (word == "w4a16_nvfp4") return schemes::nvfp4(true);
  if (word == "fp8") return schemes::fp8_tensor(ActivationQuant::kFp8Tensor);
  refuse_schema(where, "quant_algo", algorithm);
}

const json* member(const json& object, const char* key) {
  auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

void check_group_sizes(const Config& c, const Scheme& scheme) {
  if (scheme.kind != SchemeKind::kNvfp4) return;
  c.must_be("group_size", 16, "NVFP4 has one scale per 16");
  const json* groups = c.find("config_groups");
  if (!groups || !groups->is_object()) return;
  for (const auto& [name, group] : groups->items()) {
    const json* weights = group.is_object() ? member(group, "weights") : nullptr;
    if (weights && weights->is_object())
      Config(*weights, c.where()).must_be("group_size", 16, "config_groups contradicts NVFP4's 16");
  }
}

}  // namespace

/// Fills a Quantization from one declaration; a friend so that the result stays immutable.
struct QuantizationParser {
  const Config& c;
  Quantization out{};

  void exclude(std::string_view fields, bool suffixes) {
    out.excluded_ = ModuleMatcher(suffixes);
    for (std::string_view field : alternatives(fields)) {
      auto names = c.texts(field);
      for (const std::string& name : names.value_or(std::vector<std::string>{})) {
        require(!name.starts_with("re:"), c.where(), ": '", field,
                "' holds the regular expression '", show_name(name),
                "', which is not served; list names or globs with *");
        out.excluded_.add(name, "");
      }
    }
  }

  void fp8() {
    c.word("fmt", "e4m3|float8_e4m3fn", "e4m3");
    exclude("modules_to_not_convert|ignored_layers|ignore", true);
    const json* block = c.find("weight_block_size");
    std::string activation =
        c.word("activation_scheme", block ? "dynamic" : "dynamic|static", "dynamic");
    std::string scale_format = c.word("scale_fmt", "ue8m0|float|float32", "float");
    require(!block || *block == json::array({128, 128}), c.where(), ": 'weight_block_size' is ",
            block ? show_json(*block) : "", ", must be [128,128]; the value is not served");
    out.algorithm_ = block ? "FP8_BLOCK_SCALES" : "FP8";
    out.default_ = block ? schemes::fp8_block(scale_format == "ue8m0")
                         : schemes::fp8_tensor(activation == "static" ? ActivationQuant::kFp8Tensor
                                                                      : ActivationQuant::kFp8Token);
  }

  void modelopt() {
    out.algorithm_ = c.text("quant_algo", "");
    require(!out.algorithm_.empty(), c.where(),
            ": declares modelopt without 'quant_algo'; served: ", join(known_schemas()));
    exclude("ignore|exclude_modules", false);
    out.mixed_ = fold_format(out.algorithm_) == kMixedPrecision;
    if (!out.mixed_) out.default_ = modelopt_scheme(out.algorithm_, c.where());
    check_group_sizes(c, out.default_);
    const json* layers = c.find("quantized_layers");
    require(!out.mixed_ || (layers && layers->is_object()), c.where(),
            ": MIXED_PRECISION needs an object 'quantized_layers'; without it no layer's format is "
            "known");
    if (!layers) return;
    for (const auto& [name, entry] : layers->items()) layer_entry(name, entry);
  }

  void layer_entry(const std::string& name, const json& entry) {
    const json* algorithm = entry.is_object() ? member(entry, "quant_algo") : nullptr;
    require(algorithm && algorithm->is_string(), c.where(), ": 'quantized_layers' entry '",
            show_name(name), "' is ", show_json(entry),
            ", must be an object with a string 'quant_algo'");
    const json* group = member(entry, "group_size");
    std::string word = fold_format(algorithm->get<std::string>());
    require(!group || word != "nvfp4" || *group == 16, c.where(), ": 'quantized_layers' entry '",
            show_name(name), "' has group_size ", group ? show_json(*group) : "",
            ", must be 16 (NVFP4 has one scale per 16)");
    out.layers_.add(name, algorithm->get<std::string>());
  }

  Quantization run(const std::string& method) {
    out.method_ = method;
    out.where_ = c.where();
    if (method == "fp8") {
      fp8();
    } else if (method == "modelopt") {
      modelopt();
    } else if (method == "mxfp4") {
      out.algorithm_ = "MXFP4";
      exclude("modules_to_not_convert", true);
      out.default_ = schemes::mxfp4_blocks();
    } else if (method == "compressed-tensors") {
      return CompressedTensorsParser(c).run();
    } else {
      refuse_schema(c.where(), "quant_method", method);
    }
    return out;
  }
};

namespace {

Quantization parse_config_block(const json& block, const std::string& where) {
  require(block.is_object(), where, ": 'quantization_config' is ", show_json(block),
          ", must be an object");
  if (block.empty()) return {};
  Config c(block, where + ": quantization_config");
  std::string method = c.text("quant_method", c.has("quant_algo") ? "modelopt" : "");
  require(!method.empty(), c.where(), ": has no 'quant_method'; served: ", join(known_schemas()));
  return QuantizationParser{c}.run(method);
}

Quantization parse_hf_quant(const json& root, const std::string& where) {
  const json* block = member(root, "quantization");
  require(block && block->is_object(), where,
          ": has no object 'quantization'; it is no ModelOpt file, fetch it again");
  if (!member(*block, "quant_algo")) return {};
  Config c(*block, where);
  return QuantizationParser{c}.run("modelopt");
}

}  // namespace

bool Quantization::same_as(const Quantization& other) const {
  return fold_format(algorithm_) == fold_format(other.algorithm_) && method_ == other.method_ &&
         excluded_.entries() == other.excluded_.entries() &&
         layers_.entries() == other.layers_.entries();
}

Quantization Quantization::parse(const json* config_block, const json* hf_quant,
                                 const std::string& where, std::vector<std::string>& notices) {
  const std::string config_where = where + "/config.json",
                    hf_where = where + "/hf_quant_config.json";
  bool declared = config_block && !config_block->is_null();
  if (!declared) return hf_quant ? parse_hf_quant(*hf_quant, hf_where) : Quantization{};
  Quantization out = parse_config_block(*config_block, config_where);
  if (!hf_quant) return out;
  bool agrees = false;
  try {
    agrees = out.same_as(parse_hf_quant(*hf_quant, hf_where));
  } catch (const UsageError&) {
    // config.json decides, whatever the other file says.
  }
  if (!agrees)
    notices.push_back(
        cat("hf_quant_config.json and config.json declare different quantisations; "
            "config.json (",
            out.algorithm_, ") counts"));
  return out;
}

void Quantization::set_routed(std::string_view algorithm, const Scheme& scheme) {
  routed_ = scheme;
  algorithm_ = method_ == "none" ? std::string(algorithm) : cat(algorithm_, " + ", algorithm);
  if (method_ == "none") method_ = "expert_dtype";
}

Scheme Quantization::scheme_of(std::string_view module) const {
  if (routed_ && glob_match("*.experts.*", module)) return *routed_;
  if (excluded_.match(module)) return {};
  for (const auto& [targets, scheme] : groups_)
    if (targets.match(module)) return scheme;
  if (const std::string* algorithm = layers_.match(module))
    return modelopt_scheme(*algorithm, cat(where_, ": '", show_name(module), "'"));
  return mixed_ ? Scheme{} : default_;
}

std::vector<std::string> known_schemas() {
  std::vector<std::string> out;
  for (const Served& s : kServed) out.emplace_back(s.name);
  return out;
}

void refuse_schema(std::string_view where, std::string_view field, std::string_view value) {
  std::vector<std::string> words;
  for (const Served& s : kServed)
    for (std::string_view word : alternatives(s.words))
      if (!word.empty()) words.emplace_back(word);
  std::string near = nearest_or_closest(value, words).front();
  std::string_view schema;
  for (const Served& s : kServed)
    for (std::string_view word : alternatives(s.words))
      if (word == near) schema = s.name;
  throw UsageError(cat(where, ": ", field, " '", show_name(value),
                       "' is not served; nearest: ", schema, "; served: ", join(known_schemas())));
}

}  // namespace switchyard::checkpoint
