// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/output.h"
#include "switchyard/core/routing_launch.h"
#include "switchyard/core/tactic.h"

namespace switchyard::cli {

/// The tactic's fields.
Json tactic_json(const Tactic& tactic);
/// Each call's tactic and who chose it.
Json tactics_json(const std::vector<CallTactic>& tactics);
/// Whether routing shares the launch that sorts and quantises, and why not.
Json routing_launch_json(const RoutingLaunchReport& report);
/// "experts fc1_tile=64 fc2_tile=64 routing=0 (file)", for all calls in one line.
std::string tactics_text(const std::vector<CallTactic>& tactics);
/// Whether somebody else than the planner chose any.
bool tuned(const std::vector<CallTactic>& tactics);

}  // namespace switchyard::cli
