// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "switchyard/api/strategies.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/problem.h"
#include "switchyard/resolve/report.h"

/// What serves a problem on all ranks of a deployment.
namespace switchyard::api {

/// A leaf, what joins its ranks, and whether this version builds the two together.
struct Served {
  resolve::Report report;
  Join join;
  Eligibility built = Eligibility::yes();  // what `report` names as the winner, where it does
};

/// Resolves, and asks whether the ranks can be joined where the winner runs. A preferred device
/// whose ranks cannot be is given up with a warning for one whose can, as any preference that
/// cannot be kept; a pin never is.
Served ask_served(const Problem& problem, const Deployment& deployment,
                  const resolve::Request& request, std::string_view comm);

/// Rejects every leaf that could serve, for what keeps the layer from being built.
void withdraw_winner(resolve::Report& report, Reject reason, std::string_view detail);

}  // namespace switchyard::api
