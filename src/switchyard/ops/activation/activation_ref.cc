// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "switchyard/ops/activation/activation.h"

namespace switchyard::ops {
namespace {

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

double silu(double x) { return x * sigmoid(x); }

double gelu(double x, GeluForm form) {
  if (form == GeluForm::kErf) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  const double pi = std::acos(-1.0);
  // 1 + tanh(y) as 2 / (1 + exp(-2 y)): tanh near -1 would leave nothing of the sum.
  return x / (1 + std::exp(-2 * std::sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
}

double swiglu(const ActivationParams& p, double gate, double up) {
  if (!p.has_limit) return silu(gate) * up;
  const double limit = p.limit;
  const double bounded = std::clamp(up, -limit, limit);
  if (p.limit_after) return std::min(silu(gate), limit) * bounded;
  return silu(std::min(gate, limit)) * bounded;
}

double swiglu_bias(const ActivationParams& p, double gate, double up) {
  if (p.has_limit) {
    const double limit = p.limit;
    gate = std::min(gate, limit);
    up = std::clamp(up, -limit, limit);
  }
  return gate * sigmoid(double(p.alpha) * gate) * (up + double(p.beta));
}

double situ(const ActivationParams& p, double gate, double up) {
  const double gate_cap = p.alpha, linear_cap = p.beta;
  return gate_cap * std::tanh(gate / gate_cap) * sigmoid(gate) * linear_cap *
         std::tanh(up / linear_cap);
}

double formula(const ActivationParams& p, double gate, double up) {
  switch (p.type) {
    case ActivationType::kSwiglu:
      return swiglu(p, gate, up);
    case ActivationType::kSwigluBias:
      return swiglu_bias(p, gate, up);
    case ActivationType::kSiTu:
      return situ(p, gate, up);
    case ActivationType::kGeglu:
      return gelu(gate, p.form) * up;
    case ActivationType::kRelu2:
      return std::max(up, 0.0) * std::max(up, 0.0);
    case ActivationType::kSilu:
      return silu(up);
    case ActivationType::kGelu:
      return gelu(up, p.form);
    case ActivationType::kRelu:
      return std::max(up, 0.0);
    case ActivationType::kIdentity:
      return up;
  }
  return up;
}

}  // namespace

double activate_ref(const ActivationParams& params, double gate, double up) {
  // NaN in gives NaN out; min, max and clamp above may drop one.
  if (std::isnan(up) || (is_gated(params.type) && std::isnan(gate))) return std::nan("");
  return formula(params, gate, up);
}

void activation_ref(const ActivationArgs& args) {
  args.check();
  args.check_rows();
  const bool gated = is_gated(args.kind.type);
  for (std::int64_t r = 0; r < args.out.rows; ++r) {
    const std::int32_t id = args.expert_ids ? args.expert_ids[r] : 0;
    for (std::int64_t c = 0; c < args.out.cols; ++c) {
      float* y = args.out.row(r) + c;
      if (id == -1) {
        *y = 0;
        continue;
      }
      const ActivationParams& p = args.params[args.num_params == 1 ? 0 : id];
      *y = float(activate_ref(p, gated ? args.gate.row(r)[c] : 0.0, args.up.row(r)[c]));
    }
  }
}

}  // namespace switchyard::ops
