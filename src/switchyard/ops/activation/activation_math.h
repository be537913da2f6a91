// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "switchyard/base/float_math.h"
#include "switchyard/base/host_device.h"
#include "switchyard/core/activation.h"

/// The formulas of every kind, shared by the CPU and the CUDA twin and by fused kernels.
///
/// A kind is a struct with `eval(params, gate, up)`; kinds with one projection ignore `gate`.
/// All are free of branches on data, so that loops over them vectorise with equal bits.
/// NaN in gives NaN out: a clamp is written so that a NaN passes it.
/// Source:  numerics of the published activations; gate is limited from above only.
namespace switchyard::ops {

/// min(x, limit) that keeps NaN.
[[gnu::always_inline]] SWITCHYARD_HD inline float clamp_above(float x, float limit) {
  return select(x > limit, limit, x);
}

/// x limited to [-limit, limit]; keeps NaN.
[[gnu::always_inline]] SWITCHYARD_HD inline float clamp_both(float x, float limit) {
  const float y = clamp_above(x, limit);
  return select(y < -limit, -limit, y);
}

/// The clamp of `p`; infinite where there is none, so that both cases run the same instructions.
[[gnu::always_inline]] SWITCHYARD_HD inline float limit_of(const ActivationParams& p) {
  return select(p.has_limit, p.limit, HUGE_VALF);
}

/// x * sigmoid(scale * x).
[[gnu::always_inline]] SWITCHYARD_HD inline float silu_float(float x, float scale = 1.0f) {
  return x * sigmoid_float(scale * x);
}

/// cap * tanh(x / cap).
[[gnu::always_inline]] SWITCHYARD_HD inline float softcap_float(float x, float cap) {
  return cap * tanh_float(x / cap);
}

/// GELU in the tanh approximation: 0.5 (1 + tanh(y)) is sigmoid(2 y), without its cancellation.
[[gnu::always_inline]] SWITCHYARD_HD inline float gelu_tanh_float(float x) {
  constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
  return x * sigmoid_float(kTwoRootTwoOverPi * (x + 0.044715f * (x * x * x)));
}

/// GELU by the normal distribution function.
[[gnu::always_inline]] SWITCHYARD_HD inline float gelu_erf_float(float x) {
  return x * normal_cdf_float(x);
}

/// silu(gate) * up, clamped before silu when there is a limit.
struct SwigluFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams& p, float gate,
                                                         float up) {
    const float limit = limit_of(p);
    return silu_float(clamp_above(gate, limit)) * clamp_both(up, limit);
  }
};

/// min(silu(gate), limit) * clamp(up): the clamp stands after silu.
struct SwigluStepFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams& p, float gate,
                                                         float up) {
    const float limit = limit_of(p);
    return clamp_above(silu_float(gate), limit) * clamp_both(up, limit);
  }
};

/// g * sigmoid(alpha g) * (u + beta) on the clamped pair.
struct SwigluBiasFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams& p, float gate,
                                                         float up) {
    const float limit = limit_of(p);
    return silu_float(clamp_above(gate, limit), p.alpha) * (clamp_both(up, limit) + p.beta);
  }
};

/// Soft caps on both sides; the sigmoid sees the uncapped gate.
struct SituFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams& p, float gate,
                                                         float up) {
    return softcap_float(gate, p.alpha) * sigmoid_float(gate) * softcap_float(up, p.beta);
  }
};

/// gelu_tanh(gate) * up.
struct GegluTanhFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams&, float gate,
                                                         float up) {
    return gelu_tanh_float(gate) * up;
  }
};

/// gelu_erf(gate) * up.
struct GegluErfFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams&, float gate,
                                                         float up) {
    return gelu_erf_float(gate) * up;
  }
};

/// max(x, 0)^2.
struct Relu2Formula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams&, float, float x) {
    const float positive = select(x < 0, 0.0f, x);
    return positive * positive;
  }
};

/// silu(x).
struct SiluFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams&, float, float x) {
    return silu_float(x);
  }
};

/// gelu_tanh(x).
struct GeluTanhFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams&, float, float x) {
    return gelu_tanh_float(x);
  }
};

/// gelu_erf(x).
struct GeluErfFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams&, float, float x) {
    return gelu_erf_float(x);
  }
};

/// max(x, 0).
struct ReluFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams&, float, float x) {
    return select(x < 0, 0.0f, x);
  }
};

/// x.
struct IdentityFormula {
  [[gnu::always_inline]] SWITCHYARD_HD static float eval(const ActivationParams&, float, float x) {
    return x;
  }
};

/// Calls `visit(Formula{})` with the formula of the kind: one branch outside a loop over elements.
///
/// `limit_after` is the same for all experts of a layer, as `type` and `form` are.
SWITCHYARD_ANY_SIDE
template <class Visitor>
SWITCHYARD_HD void with_formula(const ActivationParams& kind, Visitor&& visit) {
  const bool tanh_form = kind.form == GeluForm::kTanh;
  switch (kind.type) {
    case ActivationType::kSwiglu:
      return kind.limit_after ? visit(SwigluStepFormula{}) : visit(SwigluFormula{});
    case ActivationType::kSwigluBias:
      return visit(SwigluBiasFormula{});
    case ActivationType::kSiTu:
      return visit(SituFormula{});
    case ActivationType::kGeglu:
      return tanh_form ? visit(GegluTanhFormula{}) : visit(GegluErfFormula{});
    case ActivationType::kRelu2:
      return visit(Relu2Formula{});
    case ActivationType::kSilu:
      return visit(SiluFormula{});
    case ActivationType::kGelu:
      return tanh_form ? visit(GeluTanhFormula{}) : visit(GeluErfFormula{});
    case ActivationType::kRelu:
      return visit(ReluFormula{});
    case ActivationType::kIdentity:
      return visit(IdentityFormula{});
  }
}

/// One element of any kind; the same bits as the twins. Kinds with one projection read `up`.
SWITCHYARD_HD inline float activate(const ActivationParams& params, float gate, float up) {
  float y = 0;
  with_formula(params, [&](auto formula) { y = decltype(formula)::eval(params, gate, up); });
  return y;
}

}  // namespace switchyard::ops
