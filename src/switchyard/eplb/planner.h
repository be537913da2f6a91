// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/eplb/loads.h"
#include "switchyard/eplb/placement.h"

namespace switchyard::eplb {

/// What to plan.
///
/// With several nodes the plan is hierarchical, for routing that limits a token to some groups: the
/// `num_groups` groups of neighbouring experts are dealt to the nodes, and every replica of an
/// expert stays on its group's node. With one node any expert may stand on any rank.
/// Errors:  check() throws UsageError with value and limit.
struct PlanArgs {
  const LoadTable* loads = nullptr;
  std::int64_t num_slots = 0, num_ranks = 1;
  std::int64_t num_nodes = 1, num_groups = 1;
  /// What stands now. Without it, the linear placement, which is left for any better balance.
  const Placement* previous = nullptr;
  /// How much of the balance may be given up, as a share of it, to move fewer experts of
  /// `previous`.
  double tolerance = 0.02;

  void check() const;
};

/// One layer of a plan; balances are max_over_mean().
struct PlannedLayer {
  double before = 1, after = 1, lower_bound = 1;
  std::int64_t moves = 0;  // slots whose expert changes
};

/// A placement and what it brings.
struct BalancePlan {
  Placement placement;
  std::vector<PlannedLayer> layers;

  /// Moves of all layers.
  std::int64_t num_moves() const;
};

/// Plans every layer by itself; the same arguments give the same plan on every machine.
/// Errors: as PlanArgs::check.
BalancePlan plan_placement(const PlanArgs& args);

/// What `placement` brings against the linear one of its shape under `loads`.
/// Errors: UsageError when either is broken or they have other layers or experts.
BalancePlan judge_placement(const LoadTable& loads, const Placement& placement);

}  // namespace switchyard::eplb
