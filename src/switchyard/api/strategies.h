// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "switchyard/core/deployment.h"
#include "switchyard/resolve/report.h"

namespace switchyard::api {

/// The verdicts on what would join the ranks of `deployment`: every exchange strategy under
/// attention DP, the all-reduce under attention TP, only the pinned one when `comm` names one, and
/// none for one rank that pins none. None is built yet, so every verdict is path_not_enabled.
std::vector<resolve::StrategyVerdict> judge_strategies(const Deployment& deployment,
                                                       std::string_view comm);
/// The verdicts on every exchange strategy.
std::vector<resolve::StrategyVerdict> judge_exchanges();

}  // namespace switchyard::api
