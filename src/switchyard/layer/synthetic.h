// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/checkpoint/layer_weights.h"

namespace switchyard::layer {

/// A layer of `problem`'s shape with seeded random bf16 weights, every expert distinct; experts are
/// made one at a time when asked for, so a preset costs no canonical copy.
///
/// The problem's format is taken as a wish for later: the weights come unquantised.
checkpoint::LayerWeights make_synthetic(const Problem& problem, std::uint64_t seed);

}  // namespace switchyard::layer
