// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard::eplb {

/// One expert's weights, copied whole from a slot that holds them to one that shall.
struct Move {
  std::int64_t slot = 0;     // that changes
  std::int64_t from = 0;     // that holds the expert before any move
  std::int32_t expert = -1;  // which one
  bool operator==(const Move&) const = default;
};

/// The copies that turn `before` into `after`, by ascending slot. An expert is taken from its own
/// rank where that holds it, else from the rank that has been asked the least so far.
///
/// Every source is read as it stands in `before`: reads of all moves come before the first write.
/// Shapes:  before, after [num_slots], the same ranks.
/// Errors:  UsageError for lengths that differ or do not divide, or an expert of `after` that
///          `before` does not hold.
std::vector<Move> plan_moves(std::span<const std::int32_t> before,
                             std::span<const std::int32_t> after, std::int64_t num_ranks);

/// The moves in rounds in which each rank shows one of its slots to all others, so that a window of
/// one expert per rank carries them; a slot that several ranks want is shown once.
std::vector<std::vector<Move>> in_rounds(std::span<const Move> moves, std::int64_t slots_per_rank);

}  // namespace switchyard::eplb
