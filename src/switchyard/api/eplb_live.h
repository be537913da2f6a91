// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/eplb/balancer.h"
#include "switchyard/eplb/loads.h"

namespace switchyard {

/// What `eplb simulate --live` is asked: loads are those of one layer, a line for each step.
struct EplbLiveOptions {
  eplb::LoadTable trace;
  std::int64_t slots = 0, ranks = 0;
  std::int64_t tokens = 64;  // of each rank and step
  eplb::BalancerOptions balancer{.window = 4, .warm_up = 4, .interval = 4};
  std::uint64_t seed = 1;
};

/// One step. Balances are largest rank load over the mean one, of what the tokens really chose.
struct EplbLiveStep {
  double fixed = 1, live = 1;  // in the linear slots, and in those that stood in this step
  std::int64_t moves = 0;      // slots whose expert changed behind it
};

/// The whole trace.
struct EplbLiveResult {
  bool ok = false;  // every output of the live layer has the bits of the layer that never moves
  std::int64_t experts = 0, differing_steps = 0, migrations = 0, moves = 0;
  std::int64_t expert_bytes = 0;  // packed, of one expert of the layer that serves
  double fixed = 1, live = 1;     // means over the steps
  std::vector<EplbLiveStep> steps;
};

/// Serves a trace of shifting loads with two small layers on thread ranks, under expert_major: one
/// whose experts stay where they are, and one that migrates them as the balancer says.
/// Errors: UsageError, one line, for a trace, slots or ranks that cannot be.
EplbLiveResult eplb_live(const EplbLiveOptions& options);

}  // namespace switchyard
