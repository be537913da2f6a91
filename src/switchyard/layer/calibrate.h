// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// Static scales of the routed experts from a run in f32 mode, some tokens at a time: amax with 5 %
/// head room; FC1's over all experts, FC2's per expert, where an expert that saw no token takes the
/// largest.
///
/// Shapes:  hidden [tokens, H] fp32 dense; token_ids [tokens] or null.
/// Errors:  UsageError when no tokens are given, and those of routing.
StaticScales calibrated_scales(const Layer& layer, std::int64_t tokens, const float* hidden,
                               const std::int64_t* token_ids);

}  // namespace switchyard::layer
