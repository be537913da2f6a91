// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace switchyard::eplb {

/// The most slots that a layer may have.
inline constexpr std::int64_t kMaxSlots = 1 << 14;
/// The most ranks that may share them.
inline constexpr std::int64_t kMaxRanks = 1024;

/// Which expert stands in which slot of which layer; rank r holds slots r·S/R to (r+1)·S/R − 1.
///
/// Shapes:  layers [num_layers][num_slots], each an expert id.
/// Errors:  check() throws UsageError naming `where` for counts out of range or not divisible, a
///          layer of another length, an id out of range, an expert without a slot, and an expert
///          that stands twice on one rank (the second serves nobody).
struct Placement {
  std::int64_t num_experts = 0, num_slots = 0, num_ranks = 1;
  std::vector<std::vector<std::int32_t>> layers;

  void check(std::string_view where) const;
  /// Slots that each rank holds.
  std::int64_t slots_per_rank() const { return num_slots / num_ranks; }
  /// The rank that holds a slot.
  std::int64_t rank_of(std::int64_t slot) const { return slot / slots_per_rank(); }

  bool operator==(const Placement&) const = default;
};

/// Sizes of a placement. Errors: check() throws UsageError naming `where`, value and limit.
struct PlacementShape {
  std::int64_t num_experts = 0, num_slots = 0, num_ranks = 1;

  void check(std::string_view where) const;
};

/// The layout before any balancing: slot s of rank r holds expert (⌊r·E/R⌋ + s) mod E.
/// Errors: as PlacementShape::check.
Placement linear_placement(const PlacementShape& shape, std::int64_t num_layers);

/// How many slots each expert has. Shapes: [num_experts].
std::vector<std::int32_t> count_replicas(std::span<const std::int32_t> slots,
                                         std::int64_t num_experts);

/// Slots whose expert differs: each is one expert's weights to be copied.
std::int64_t count_moves(std::span<const std::int32_t> before, std::span<const std::int32_t> after);

/// Largest rank load over the mean one, when each expert's load is shared evenly by its slots; 1
/// without any load.
/// Shapes:  loads [num_experts]; slots [num_slots], of which `num_ranks` parts.
double max_over_mean(std::span<const double> loads, std::span<const std::int32_t> slots,
                     std::int64_t num_ranks);

/// What no placement can beat: max(1, max over experts of load / (S − E + 1) over the mean rank
/// load); 1 without any load.
double lower_bound(std::span<const double> loads, std::int64_t num_slots, std::int64_t num_ranks);

}  // namespace switchyard::eplb
