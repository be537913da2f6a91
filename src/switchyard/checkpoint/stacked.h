// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "switchyard/checkpoint/experts.h"

namespace switchyard::checkpoint {

/// The routed experts of a block that stacks them in one tensor per side or projection, in the
/// family's order: unquantised, fp8 with 128x128 blocks (rows only), fp8 per tensor, NVFP4, or
/// mxfp4 blocks; empty after faults.
std::vector<ExpertSources> find_stacked(const BlockContext& context, const Scheme& scheme);

/// The MLP that Family::parallel names, in the layer's folder that `reader` reads; nothing after
/// faults.
std::optional<ExpertSources> find_parallel(const BlockContext& context, BlockReader& reader,
                                           const Scheme& scheme, std::int64_t inter);

}  // namespace switchyard::checkpoint
