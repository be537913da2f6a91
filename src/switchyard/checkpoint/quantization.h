// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "switchyard/checkpoint/module_matcher.h"
#include "switchyard/checkpoint/scheme.h"

namespace switchyard::checkpoint {

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

  /// "none", "fp8", "mxfp4", "modelopt" or "compressed-tensors".
  const std::string& method() const { return method_; }
  /// The declared algorithm, e.g. "NVFP4".
  const std::string& algorithm() const { return algorithm_; }
  /// Gives the routed experts ("*.experts.*") a scheme of their own, whatever else is declared.
  void set_routed(std::string_view algorithm, const Scheme& scheme);
  /// The scheme of the weight of `module`, a dotted path.
  /// Errors: UsageError when its own algorithm is not served.
  Scheme scheme_of(std::string_view module) const;

 private:
  friend struct QuantizationParser;
  friend class CompressedTensorsParser;
  bool same_as(const Quantization& other) const;

  std::string method_ = "none", algorithm_ = "none", where_;
  Scheme default_;
  bool mixed_ = false;  // default_ holds for no module that is not listed
  ModuleMatcher excluded_, layers_;
  std::vector<std::pair<ModuleMatcher, Scheme>> groups_;  // the first that matches counts
  std::optional<Scheme> routed_;
};

/// Every served schema, "method: algorithm", for documentation and error lines.
std::vector<std::string> known_schemas();

/// Throws for a schema that is not served: `what` names it, the nearest served one is added.
[[noreturn]] void refuse_schema(std::string_view where, std::string_view field,
                                std::string_view value);

}  // namespace switchyard::checkpoint
