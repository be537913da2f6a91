// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/layer/judge.h"
#include "switchyard/layer/rank_layer.h"

namespace switchyard::layer {

/// Most tokens that one rank can have judged at once.
inline constexpr std::int64_t kMostJudged = 64;

/// The budgets of a layer on ranks: its quantiser's, and under a low-precision combine what a
/// share that close to a code's edge may move.
Budgets budgets_of(const RankLayer& layer);

/// Runs a layer of ranks on GPUs on copies of a call whose pointers are the host's, as the one of
/// device_rank.h does on one rank. Collective; allocates. Errors: those of RankLayer::forward() and
/// wait().
void forward_from_host(RankLayer& layer, const ForwardArgs& args);

/// Runs the ranks' layer and the oracle on the same tokens, as judge() does on one rank. Every rank
/// computes in double what its experts make of each rank's tokens, rounds it to the wire where the
/// ranks round, and judges its own codes; each rank sums and finishes its own tokens.
///
/// The judgement is the group's: rel_l2_oracle and worst row of the worst rank, counts of all
/// ranks. `out` and `ids` are this rank's. Collective; each rank brings its own tokens, at most
/// kMostJudged, where RankLayer::own_tokens(), else all the same. Allocates. Errors:  those of
/// RankLayer::forward().
Judgement judge_ranks(RankLayer& layer, const JudgeArgs& args);

}  // namespace switchyard::layer
