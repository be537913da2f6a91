// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "switchyard/ops/allreduce_norm/allreduce_norm.h"
#include "switchyard/ops/allreduce_norm/allreduce_peers.h"

namespace switchyard::comm {

/// What of a call must be the same on all ranks, as one word each.
using AllReduceWords = std::array<std::uint32_t, ops::kAllReduceCallWords>;
/// The words' names.
inline constexpr std::string_view kAllReduceWordNames[ops::kAllReduceCallWords] = {
    "tokens",  "hidden",      "dtype",    "strategy",         "rounding",
    "pattern", "the outputs", "eps bits", "weight_bias bits", "routed_scaling_factor bits"};

/// The words of a call that runs as `strategy`.
AllReduceWords allreduce_words(const ops::AllReduceCall& call, ops::AllReduceStrategy strategy);

}  // namespace switchyard::comm
