// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/leaves/leaf.h"

namespace switchyard::layer {

/// The layer with its routed experts requantised to the leaf's format, one expert at a time when
/// asked for; the shared expert and the router keep theirs. Unchanged when the format is the same
/// already.
///
/// Static input scales of the source do not survive: the new format's quantiser is calibrated anew.
checkpoint::LayerWeights convert_format(checkpoint::LayerWeights weights, const leaves::Leaf& leaf);

}  // namespace switchyard::layer
