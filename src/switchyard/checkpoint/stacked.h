// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "switchyard/checkpoint/experts.h"

namespace switchyard::checkpoint {

/// The routed experts of a block that stacks them in one tensor per side, in the family's order:
/// unquantised, fp8 with 128x128 blocks (rows only), or mxfp4 blocks; empty after faults.
std::vector<ExpertSources> find_stacked(const BlockContext& context, const Scheme& scheme);

}  // namespace switchyard::checkpoint
