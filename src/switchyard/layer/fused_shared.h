// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/checkpoint/layer_weights.h"

namespace switchyard::layer {

/// The routed experts followed by the shared ones, each of the routed width.
///
/// The joint shared FFN of width n * I is the sum of its n slices, which is what makes them
/// experts. Errors:  UsageError for a slice that cuts a byte of 4-bit codes.
checkpoint::ExpertSource with_fused_shared(const checkpoint::LayerWeights& weights);

}  // namespace switchyard::layer
