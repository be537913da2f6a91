// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/checkpoint/module_matcher.h"
#include "switchyard/formats/matrix.h"

namespace switchyard::checkpoint {

/// How one module's weight is stored: which tensors replace it and what they mean.
enum class SchemeKind : std::uint8_t { kNone, kFp8Block, kFp8Tensor, kNvfp4, kMxfp4 };

/// A module's final scheme.
struct Scheme {
  SchemeKind kind = SchemeKind::kNone;
  std::string_view format = "none";  // canonical format name
  formats::WeightLayout layout;      // kNone: the stored element decides between bf16 and fp16
  formats::ActivationQuant activation = formats::ActivationQuant::kNone;
  bool bf16_activations = false;  // declared weight-only in a format that quantises activations

  bool operator==(const Scheme&) const = default;
  /// True when activations use the checkpoint's static input_scale.
  bool needs_input_scale() const { return formats::is_static(activation); }
};

/// A checkpoint's quantisation declaration: one default, exceptions, and per-layer algorithms.
class Quantization {
 public:
  /// Nothing is quantised.
  Quantization() = default;
  /// From config.json's quantization_config and hf_quant_config.json, either of which may be null;
  /// the first wins, and a conflict adds a notice.
  /// Errors: UsageError naming the schema or field, its value and what is served.
  static Quantization parse(const nlohmann::json* config_block, const nlohmann::json* hf_quant,
                            const std::string& where, std::vector<std::string>& notices);

  /// "none", "fp8", "mxfp4" or "modelopt".
  const std::string& method() const { return method_; }
  /// The declared algorithm, e.g. "NVFP4".
  const std::string& algorithm() const { return algorithm_; }
  /// The scheme of the weight of `module`, a dotted path.
  /// Errors: UsageError when its own algorithm is not served.
  Scheme scheme_of(std::string_view module) const;

 private:
  friend struct QuantizationParser;
  bool same_as(const Quantization& other) const;

  std::string method_ = "none", algorithm_ = "none", where_;
  Scheme default_;
  bool mixed_ = false;  // default_ holds for no module that is not listed
  ModuleMatcher excluded_, layers_;
};

}  // namespace switchyard::checkpoint
