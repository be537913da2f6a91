// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "switchyard/base/dtype.h"
#include "switchyard/core/activation.h"
#include "switchyard/core/routing.h"

namespace switchyard {

/// What happens to activations in front of the expert GEMMs.
enum class ActivationMode : std::uint8_t {
  kFormat,  // as the format defines it
  kBf16,    // unquantised in the hidden dtype: a named choice that every leaf serves
  kF32      // fp32 FMA on the dequantised weights; CPU only
};

/// "format", "bf16" or "f32".
std::string_view to_string(ActivationMode m);
/// Inverse of to_string(). Errors: UsageError on any other word.
ActivationMode to_activation_mode(std::string_view s);

/// Precision of the exchanged rows in the combine; a field of each layer, never inherited.
enum class CombinePrecision : std::uint8_t { kBf16, kFp8, kNvfp4 };

/// "bf16", "fp8" or "nvfp4".
std::string_view to_string(CombinePrecision p);
/// Inverse of to_string(). Errors: UsageError on any other word.
CombinePrecision to_combine_precision(std::string_view s);

/// Widths past this are refused: every product of two of them, E and 4 bytes fits 64 bits.
inline constexpr std::int64_t kMaxWidth = 1 << 24;

/// What one MoE layer is: complete by construction, so no gate ever abstains.
///
/// Units:   widths in elements.
struct Problem {
  std::string format = "none";  // canonical (folded) name; "none" is unquantised
  Dtype dtype = Dtype::kBf16;   // hidden states and output
  ActivationMode activations = ActivationMode::kFormat;
  std::int64_t hidden = 0;   // H
  std::int64_t latent = 0;   // width that the routed experts read and write; 0 means H
  std::int64_t inter = 0;    // I, routed expert width
  bool expert_bias = false;  // FC1 and FC2 biases per expert
  Activation activation = Swiglu{};
  RoutingSpec routing;              // E, Z and k live here
  float routed_scaling_factor = 1;  // owned by finalize
  std::int64_t num_shared = 0;      // shared experts, as the model counts them
  std::int64_t shared_inter = 0;    // their joint width; 0 means none
  bool shared_gate = false;         // sigmoid(x . w) multiplies the shared output
  CombinePrecision combine = CombinePrecision::kBf16;

  bool operator==(const Problem&) const = default;
  std::int64_t num_experts() const { return routing.num_experts; }
  std::int64_t top_k() const { return routing.top_k; }
  std::int64_t expert_hidden() const { return latent > 0 ? latent : hidden; }
  bool gated() const { return is_gated(type_of(activation)); }
  /// Checks every field against its range. Errors: UsageError with field, value and limit.
  void check() const;
};

/// The folded name of the model-level marker that is never a layer's format.
inline constexpr std::string_view kMixedPrecision = "mixed_precision";

/// Folds aliases to the one canonical spelling (NVFP4_AWQ and NVFP4_ARC -> nvfp4; NO_QUANT, bf16,
/// unquantized and "" -> none); other words come back trimmed and lower-cased, MIXED_PRECISION too,
/// so that callers can refuse it as a layer's format. The only folding function; never throws.
std::string fold_format(std::string_view name);
/// The command's spelling of a canonical format: "none" is shown as "bf16".
std::string_view show_format(std::string_view canonical);

}  // namespace switchyard
