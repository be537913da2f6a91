// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/checkpoint/layer_weights.h"

namespace switchyard::test {

/// The whole MoE block in plain double loops over decoded weights: routing, experts, zero
/// experts, factor, latent projections, shared expert. Shares no arithmetic with the library, so
/// that a loader's mistake cannot cancel out.
///
/// Shapes:  x, result [tokens, H]; token_ids [tokens] or empty.
std::vector<double> naive_moe(const checkpoint::LayerWeights& layer, std::span<const float> x,
                              std::span<const std::int32_t> token_ids);

/// ||y - r|| / ||r||.
double rel_l2(std::span<const double> y, std::span<const float> r);

}  // namespace switchyard::test
