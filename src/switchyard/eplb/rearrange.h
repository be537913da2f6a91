// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/eplb/pack.h"

namespace switchyard::eplb {

/// Slots for `bins`, one bin a rank, with few moves from `before`: nodes and, inside them, ranks
/// are renamed so that they keep many of their experts, and an expert that stays keeps its slot.
/// Shapes:  before and result [bins · items of a bin]; bins in the order of their nodes.
std::vector<std::int32_t> rearrange(const Bins& bins, std::span<const std::int32_t> before,
                                    std::int64_t num_nodes);

/// What improve() starts from and must keep.
struct ImproveArgs {
  std::span<const double> loads;
  std::span<const std::int32_t> before;  // [slots]
  std::int64_t num_ranks = 1;
  std::int64_t num_nodes = 1;
  std::span<const std::int32_t> node_of_expert;  // empty: any expert may stand on any rank
  double goal = 1;                               // max_over_mean at which to stop
  std::int64_t most_moves = 0;
};

/// Changes `before` in single steps, each the one that helps most per move: an expert with several
/// replicas gives one of its slots to another expert (one move), or two ranks swap experts (two).
/// Stops at the goal, after most_moves, or when no step helps; no balance gets worse.
/// Shapes:  result [slots].
std::vector<std::int32_t> improve(const ImproveArgs& args);

}  // namespace switchyard::eplb
