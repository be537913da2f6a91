// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace switchyard {

/// A constant of an activation: one value for all experts, or one per expert.
struct PerExpert {
  std::vector<float> values;  // size 1 or num_experts

  PerExpert() = default;
  PerExpert(float scalar) : values{scalar} {}  // NOLINT: a scalar is the common case
  explicit PerExpert(std::vector<float> v) : values(std::move(v)) {}

  float at(std::int64_t expert) const {
    return values[values.size() == 1 ? 0 : std::size_t(expert)];
  }
  bool operator==(const PerExpert&) const = default;
};

/// Which approximation of the normal distribution function GELU uses.
enum class GeluForm : std::uint8_t { kTanh, kErf };

/// silu(gate) * up. `clamp`: gate from above, up on both sides, > 0; after silu when asked
/// (Step-3.5).
struct Swiglu {
  std::optional<PerExpert> clamp = std::nullopt;
  bool clamp_after_silu = false;
  bool operator==(const Swiglu&) const = default;
};

/// gpt-oss: g = min(gate, clamp), u = clamp(up), g * sigmoid(scale * g) * (u + offset).
struct SwigluBias {
  PerExpert gate_sigmoid_scale = 1.702f;
  PerExpert linear_offset = 1.0f;
  std::optional<PerExpert> clamp = std::nullopt;
  bool operator==(const SwigluBias&) const = default;
};

/// Kimi-K3: cap(gate, gate_softcap) * sigmoid(gate) * cap(up, linear_softcap), cap(x,c) = c
/// tanh(x/c).
struct SiTu {
  PerExpert gate_softcap = 4.0f;
  PerExpert linear_softcap = 25.0f;
  bool operator==(const SiTu&) const = default;
};

/// gelu(gate) * up.
struct Geglu {
  GeluForm form = GeluForm::kTanh;
  bool operator==(const Geglu&) const = default;
};

/// max(x, 0)^2, one projection.
struct Relu2 {
  bool operator==(const Relu2&) const = default;
};
/// silu(x), one projection.
struct Silu {
  bool operator==(const Silu&) const = default;
};
/// gelu(x), one projection.
struct Gelu {
  GeluForm form = GeluForm::kTanh;
  bool operator==(const Gelu&) const = default;
};
/// max(x, 0), one projection.
struct Relu {
  bool operator==(const Relu&) const = default;
};
/// x, one projection.
struct Identity {
  bool operator==(const Identity&) const = default;
};

/// What stands between the two expert projections, as a tagged union with named constants.
using Activation = std::variant<Swiglu, SwigluBias, SiTu, Geglu, Relu2, Silu, Gelu, Relu, Identity>;

/// The tag of an Activation, in the order of its alternatives.
enum class ActivationType : std::uint8_t {
  kSwiglu,
  kSwigluBias,
  kSiTu,
  kGeglu,
  kRelu2,
  kSilu,
  kGelu,
  kRelu,
  kIdentity
};

/// The tag of `a`.
inline ActivationType type_of(const Activation& a) { return ActivationType(a.index()); }
/// "swiglu", "swiglu_bias", "situ", "geglu", "relu2", "silu", "gelu", "relu" or "identity".
std::string_view to_string(ActivationType type);
/// True for the kinds that read a gate and an up projection.
bool is_gated(ActivationType type);
/// Checks constants: clamps and soft caps > 0 and finite, arrays of size 1 or num_experts.
/// Errors: UsageError naming the constant, its value and the rule.
void check(const Activation& a, std::int64_t num_experts);
/// Canonical text, e.g. "swiglu(clamp=7)"; two activations are equal when their texts are.
std::string describe(const Activation& a);

/// One expert's constants as the formula of ops/activation reads them; plain data for both devices.
struct ActivationParams {
  ActivationType type = ActivationType::kSwiglu;
  GeluForm form = GeluForm::kTanh;
  bool has_limit = false;
  bool limit_after = false;
  float alpha = 1;  // SwigluBias: sigmoid scale; SiTu: gate cap
  float beta = 0;   // SwigluBias: linear offset; SiTu: linear cap
  float limit = 0;  // read only when has_limit
};

/// The only place that knows which register holds which constant.
ActivationParams lower(const Activation& a, std::int64_t expert);

}  // namespace switchyard
