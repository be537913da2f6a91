// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string_view>

#include "switchyard/core/deployment.h"
#include "switchyard/core/eligibility.h"
#include "switchyard/core/problem.h"

// Building blocks of gates: each asks one thing and answers with the failing value and the limit.

namespace switchyard {

/// The problem's format is `format`; aliases fold.
Eligibility require_quant(const Problem& p, std::string_view format);
/// The deployment places the layer on `device`.
Eligibility require_device(const Deployment& d, Device device);
/// The environment has dependency `name`.
Eligibility require_dep(const Deployment& d, std::string_view name);
/// The environment's GPU is of architecture `least` or later.
Eligibility require_sm(const Deployment& d, int least);
/// Hidden states are of one of `served`.
Eligibility require_dtype(const Problem& p, std::initializer_list<Dtype> served);
/// Activations are not in `f32` mode, which exists on the CPU only.
Eligibility require_no_f32_mode(const Problem& p);
/// The activation's kind is one of `served`.
Eligibility require_activation(const Problem& p, std::initializer_list<ActivationType> served);
/// The expert widths are even, as two 4-bit codes share a byte.
Eligibility require_even_widths(const Problem& p);
/// Slots cover all experts, every EP rank holds one, and more slots than experts divide by ep.
Eligibility require_slots(const Problem& p, const Deployment& d);
/// No routed-expert adapters are asked for.
Eligibility require_no_lora(const Deployment& d);

}  // namespace switchyard
