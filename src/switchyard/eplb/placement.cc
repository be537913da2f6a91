// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/placement.h"

#include <algorithm>
#include <numeric>

#include "switchyard/base/check.h"
#include "switchyard/core/routing.h"

namespace switchyard::eplb {
namespace {

void check_layer(const Placement& p, std::size_t layer, std::string_view where) {
  const auto& slots = p.layers[layer];
  require(std::int64_t(slots.size()) == p.num_slots, where, ": layer ", layer, " lists ",
          slots.size(), " slots, must list num_slots = ", p.num_slots);
  std::vector<std::int64_t> last_slot(std::size_t(p.num_experts), -1);
  for (std::int64_t s = 0; s < p.num_slots; ++s) {
    std::int64_t e = slots[std::size_t(s)];
    require(e >= 0 && e < p.num_experts, where, ": layer ", layer, ", slot ", s, " holds expert ",
            e, ", must be 0 to ", p.num_experts - 1);
    std::int64_t& last = last_slot[std::size_t(e)];
    require(last < 0 || p.rank_of(last) != p.rank_of(s), where, ": layer ", layer, ": expert ", e,
            " stands twice on rank ", p.rank_of(s), ", in slots ", last, " and ", s,
            "; its replicas serve different ranks, move one");
    last = s;
  }
  auto lost = std::find(last_slot.begin(), last_slot.end(), -1);
  require(lost == last_slot.end(), where, ": layer ", layer, ": expert ", lost - last_slot.begin(),
          " has no slot; every expert needs one");
}

}  // namespace

void PlacementShape::check(std::string_view where) const {
  require(num_experts >= 1 && num_experts <= kMaxRoutedExperts, where, ": experts = ", num_experts,
          ", must be 1 to ", kMaxRoutedExperts);
  require(num_slots >= num_experts && num_slots <= kMaxSlots, where, ": slots = ", num_slots,
          ", must be from the number of experts, ", num_experts, ", to ", kMaxSlots,
          ": every expert needs a slot");
  require(num_ranks >= 1 && num_ranks <= kMaxRanks, where, ": ranks = ", num_ranks,
          ", must be 1 to ", kMaxRanks);
  require(num_slots % num_ranks == 0, where, ": ranks = ", num_ranks,
          " do not divide slots = ", num_slots,
          "; each rank holds the same number of slots, change one of them");
  require(num_slots / num_ranks <= num_experts, where, ": slots = ", num_slots,
          " over ranks = ", num_ranks, " are ", num_slots / num_ranks, " a rank, more than the ",
          num_experts, " experts; a rank needs each expert once, take fewer slots");
}

void Placement::check(std::string_view where) const {
  PlacementShape{num_experts, num_slots, num_ranks}.check(where);
  require(!layers.empty(), where, ": holds no layer; list the slots of each");
  for (std::size_t l = 0; l < layers.size(); ++l) check_layer(*this, l, where);
}

Placement linear_placement(const PlacementShape& shape, std::int64_t num_layers) {
  shape.check("linear placement");
  std::vector<std::int32_t> slots;
  for (std::int64_t r = 0; r < shape.num_ranks; ++r)
    for (std::int64_t s = 0; s < shape.num_slots / shape.num_ranks; ++s)
      slots.push_back(
          std::int32_t((r * shape.num_experts / shape.num_ranks + s) % shape.num_experts));
  return {shape.num_experts, shape.num_slots, shape.num_ranks,
          std::vector<std::vector<std::int32_t>>(std::size_t(num_layers), slots)};
}

std::vector<std::int32_t> count_replicas(std::span<const std::int32_t> slots,
                                         std::int64_t num_experts) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(num_experts), 0);
  for (std::int32_t e : slots) ++out[std::size_t(e)];
  return out;
}

std::int64_t count_moves(std::span<const std::int32_t> before,
                         std::span<const std::int32_t> after) {
  std::int64_t moves = 0;
  for (std::size_t s = 0; s < after.size(); ++s) moves += before[s] != after[s];
  return moves;
}

double max_over_mean(std::span<const double> loads, std::span<const std::int32_t> slots,
                     std::int64_t num_ranks) {
  double sum = std::accumulate(loads.begin(), loads.end(), 0.0), worst = 0;
  if (sum <= 0) return 1;
  auto replicas = count_replicas(slots, std::int64_t(loads.size()));
  std::size_t per_rank = slots.size() / std::size_t(num_ranks);
  for (std::size_t first = 0; first < slots.size(); first += per_rank) {
    double load = 0;
    for (std::int32_t e : slots.subspan(first, per_rank))
      load += loads[std::size_t(e)] / replicas[std::size_t(e)];
    worst = std::max(worst, load);
  }
  return worst / (sum / double(num_ranks));
}

double lower_bound(std::span<const double> loads, std::int64_t num_slots, std::int64_t num_ranks) {
  double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (sum <= 0) return 1;
  double most = *std::max_element(loads.begin(), loads.end());
  double replicas = double(num_slots - std::int64_t(loads.size()) + 1);
  return std::max(1.0, most / replicas / (sum / double(num_ranks)));
}

}  // namespace switchyard::eplb
