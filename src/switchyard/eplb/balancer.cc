// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/balancer.h"

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/eplb/planner.h"

namespace switchyard::eplb {
namespace {

void require_count(std::string_view what, std::int64_t value, std::int64_t least) {
  constexpr std::int64_t kMost = 1 << 20;
  require(value >= least && value <= kMost, "balancer: ", what, " = ", value, ", must be ", least,
          " to ", kMost);
}

struct Ranked {
  double gain;
  Migration migration;
};

}  // namespace

void BalancerOptions::check() const {
  require_count("window", window, 1);
  require_count("warm_up", warm_up, 0);
  require_count("interval", interval, 1);
  require_count("layers_per_iteration", layers_per_iteration, 0);
  require(least_gain >= 0 && least_gain < 1, "balancer: least_gain = ", least_gain,
          ", must be in [0, 1)");
}

Balancer::Balancer(Placement placement, const BalancerOptions& options)
    : placement_(std::move(placement)),
      options_((options.check(), options)),
      statistics_((placement_.check("balancer"), std::int64_t(placement_.layers.size())),
                  placement_.num_experts, options.window) {}

void Balancer::plan() {
  const LoadTable loads = statistics_.loads();
  const BalancePlan plan = plan_placement({.loads = &loads,
                                           .num_slots = placement_.num_slots,
                                           .num_ranks = placement_.num_ranks,
                                           .num_nodes = options_.num_nodes,
                                           .num_groups = options_.num_groups,
                                           .previous = &placement_});
  std::vector<Ranked> ranked;
  for (std::size_t l = 0; l < plan.layers.size(); ++l) {
    const PlannedLayer& layer = plan.layers[l];
    const double gain = (layer.before - layer.after) / layer.before;
    if (layer.moves == 0 || gain <= options_.least_gain) continue;
    const auto& slots = plan.placement.layers[l];
    ranked.push_back(
        {gain,
         {std::int64_t(l), slots, plan_moves(placement_.layers[l], slots, placement_.num_ranks)}});
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Ranked& a, const Ranked& b) { return a.gain > b.gain; });
  queue_.clear();  // what was decided on older loads and not yet done is decided anew
  for (Ranked& r : ranked) queue_.push_back(std::move(r.migration));
  ++plans_;
}

std::vector<Migration> Balancer::end_iteration() {
  statistics_.end_iteration();
  const std::int64_t done = ++iteration_;
  if (options_.layers_per_iteration == 0) return {};
  if (done > options_.warm_up && (done - options_.warm_up - 1) % options_.interval == 0) plan();
  const std::size_t count = std::min(queue_.size(), std::size_t(options_.layers_per_iteration));
  return {queue_.begin(), queue_.begin() + std::ptrdiff_t(count)};
}

void Balancer::applied(const Migration& migration) {
  const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const Migration& m) {
    return m.layer == migration.layer && m.slots == migration.slots;
  });
  require(found != queue_.end(), "balancer: no migration of layer ", migration.layer,
          " to these slots is asked for; apply what end_iteration() returned, once");
  placement_.layers[std::size_t(migration.layer)] = migration.slots;
  queue_.erase(found);
  ++migrations_;
}

}  // namespace switchyard::eplb
