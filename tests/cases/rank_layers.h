// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "switchyard/api/rank_moe_layer.h"
#include "tests/cases/rank_case.h"

namespace switchyard::test {

/// One of the ways in which layers of two ranks share what they exchange through.
struct Way {
  Mode mode;
  Ending ending;
  const char* comm;
};
inline constexpr Way kWays[] = {{{Parallel::kDep, 1}, Ending::kPlain, "one_sided"},
                                {{Parallel::kDep, 1}, Ending::kPlain, "two_sided"},
                                {{Parallel::kDep, 1}, Ending::kPlain, "all_gather"},
                                {{Parallel::kDep, 1}, Ending::kPlain, "expert_major"},
                                {{Parallel::kDep, 1}, Ending::kPlain, "fused"},
                                {{Parallel::kDtp, 2}, Ending::kPlain, ""},
                                {{Parallel::kTtp, 2}, Ending::kPlain, ""},
                                {{Parallel::kTtp, 2}, Ending::kFused, ""},
                                {{Parallel::kTtp, 2}, Ending::kReduce, ""}};

/// One thread a rank, kRankCapacity tokens.
RankBuildOptions options_of(const Mode& m, int ranks = 4);
/// The same of two ranks in one of the ways.
RankBuildOptions options_of(const Way& way);
/// Of a layer of one rank.
BuildOptions alone();
/// Poisons output and workspace, runs, and returns the call's output.
std::vector<std::byte> output_of(RankMoeLayer& layer, Call& call);

}  // namespace switchyard::test
