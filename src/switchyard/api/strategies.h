// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/problem.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/report.h"

namespace switchyard::api {

/// The verdicts on what would join the ranks of `deployment`: every exchange strategy under
/// attention DP, the all-reduce under attention TP, only the pinned one when `comm` names one, and
/// none for one rank that pins none. Layers run on one rank yet, so no verdict is a yes: where the
/// gate has none against it, it is path_not_enabled.
std::vector<resolve::StrategyVerdict> judge_strategies(const Problem& problem,
                                                       const Deployment& deployment,
                                                       std::string_view comm);
/// The verdicts on every exchange strategy, for a small layer on two ranks of this machine.
std::vector<resolve::StrategyVerdict> judge_exchanges(const Environment& env);

/// Why the first of `verdicts`, none of which is a yes, keeps the ranks from being joined.
Eligibility missing_strategy(const std::vector<resolve::StrategyVerdict>& verdicts);

/// Whether this version can build what a leaf says yes to: one rank, one slot for each expert.
Eligibility can_build(const Problem& problem, const Deployment& deployment);
/// The leaf that would run a shared expert of `format` beside `problem`, and its verdict.
leaves::Found ask_shared_leaf(const Problem& problem, std::string_view format,
                              const Deployment& deployment);

/// Whether the projections of a latent layer can be computed as they are stored.
Eligibility ask_latent(const checkpoint::LatentProjection& latent);

}  // namespace switchyard::api
