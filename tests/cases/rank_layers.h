// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "switchyard/api/rank_moe_layer.h"
#include "tests/cases/rank_case.h"

namespace switchyard::test {

/// One thread a rank, kRankCapacity tokens.
RankBuildOptions options_of(const Mode& m, int ranks = 4);
/// Of a layer of one rank.
BuildOptions alone();
/// Poisons output and workspace, runs, and returns the call's output.
std::vector<std::byte> output_of(RankMoeLayer& layer, Call& call);

}  // namespace switchyard::test
