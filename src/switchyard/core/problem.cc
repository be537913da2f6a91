// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/problem.h"

#include <cmath>

#include "switchyard/base/nearest.h"

namespace switchyard {
namespace {

void check_width(std::string_view field, std::int64_t value, std::int64_t least) {
  require(value >= least && value <= kMaxWidth, field, " = ", value, " is out of range; use ",
          least, " to ", kMaxWidth);
}

void check_format(const std::string& format) {
  require(format != kMixedPrecision, "format '", format,
          "' marks a whole model, not a layer; resolve each layer by its own format");
  require(format == fold_format(format), "format '", format,
          "' is not in canonical spelling; use '", fold_format(format), "' (fold_format gives it)");
}

void check_shared(const Problem& p) {
  require(p.num_shared >= 0 && p.num_shared <= kMaxRoutedExperts, "num_shared = ", p.num_shared,
          " is out of range; use 0 to ", kMaxRoutedExperts);
  check_width("shared_inter", p.shared_inter, 0);
  require((p.num_shared > 0) == (p.shared_inter > 0), "num_shared = ", p.num_shared,
          " and shared_inter = ", p.shared_inter, " contradict each other; both or neither are 0");
  require(!p.shared_gate || p.num_shared > 0,
          "shared_gate is set on a layer without shared experts; clear it or set num_shared");
}

}  // namespace

std::string_view to_string(ActivationMode m) {
  switch (m) {
    case ActivationMode::kFormat:
      return "format";
    case ActivationMode::kBf16:
      return "bf16";
    case ActivationMode::kF32:
      return "f32";
  }
  throw InternalError(cat("activation mode ", int(m), " has no text"));
}

ActivationMode to_activation_mode(std::string_view s) {
  return to_enum("activations", s,
                 {ActivationMode::kFormat, ActivationMode::kBf16, ActivationMode::kF32});
}

std::string_view to_string(CombinePrecision p) {
  switch (p) {
    case CombinePrecision::kBf16:
      return "bf16";
    case CombinePrecision::kFp8:
      return "fp8";
    case CombinePrecision::kNvfp4:
      return "nvfp4";
  }
  throw InternalError(cat("combine precision ", int(p), " has no text"));
}

CombinePrecision to_combine_precision(std::string_view s) {
  return to_enum("combine precision", s,
                 {CombinePrecision::kBf16, CombinePrecision::kFp8, CombinePrecision::kNvfp4});
}

void Problem::check() const {
  check_format(format);
  check_width("hidden", hidden, 1);
  check_width("latent", latent, 0);
  check_width("inter", inter, 1);
  routing.check();
  switchyard::check(activation, num_experts());
  require(std::isfinite(routed_scaling_factor) && routed_scaling_factor > 0,
          "routed_scaling_factor = ", routed_scaling_factor,
          " is not a finite number above 0; use 1 for none");
  check_shared(*this);
}

std::string fold_format(std::string_view name) {
  std::string word = normalise_word(name);
  if (word == "nvfp4_awq" || word == "nvfp4_arc") return "nvfp4";
  if (word.empty() || word == "no_quant" || word == "bf16" || word == "unquantized" ||
      word == "unquantised")
    return "none";
  return word;
}

std::string_view show_format(std::string_view canonical) {
  return canonical == "none" ? "bf16" : canonical;
}

}  // namespace switchyard
