// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "switchyard/base/check.h"
#include "switchyard/eplb/pack.h"
#include "switchyard/eplb/rearrange.h"
#include "switchyard/eplb/search.h"

namespace switchyard::eplb {
namespace {

constexpr double kSameBalance = 1e-9;  // balances closer than this differ by rounding only

/// Experts of each node: whole groups, so that their loads are about even.
std::vector<std::vector<std::int32_t>> experts_of_nodes(const PlanArgs& args,
                                                        std::span<const double> loads) {
  const std::size_t groups = std::size_t(args.num_groups), size = loads.size() / groups;
  std::vector<double> group_loads(groups);
  for (std::size_t g = 0; g < groups; ++g)
    group_loads[g] = std::accumulate(loads.begin() + std::ptrdiff_t(g * size),
                                     loads.begin() + std::ptrdiff_t((g + 1) * size), 0.0);
  const std::vector<std::int32_t> once(groups, 1);
  std::vector<std::vector<std::int32_t>> out;
  for (auto& node : pack(group_loads, once, args.num_nodes)) {
    std::sort(node.begin(), node.end());
    std::vector<std::int32_t>& experts = out.emplace_back();
    for (std::int32_t g : node)
      for (std::size_t e = 0; e < size; ++e)
        experts.push_back(std::int32_t(std::size_t(g) * size + e));
  }
  return out;
}

/// Replicates and packs the experts of one node over its ranks.
Bins plan_node(std::span<const double> loads, std::span<const std::int32_t> experts,
               std::int64_t slots, std::int64_t ranks) {
  std::vector<double> own;
  for (std::int32_t e : experts) own.push_back(loads[std::size_t(e)]);
  Bins bins = place_replicas(own, slots, ranks);
  for (auto& bin : bins)
    for (std::int32_t& item : bin) item = experts[std::size_t(item)];
  return bins;
}

/// Bins for every rank, node by node, whatever stands now.
Bins plan_fresh(const PlanArgs& args, std::span<const double> loads) {
  std::vector<std::vector<std::int32_t>> nodes(1);
  if (args.num_nodes > 1) {
    nodes = experts_of_nodes(args, loads);
  } else {
    nodes[0].resize(loads.size());
    std::iota(nodes[0].begin(), nodes[0].end(), 0);
  }
  Bins out;
  for (const auto& experts : nodes)
    for (auto& bin : plan_node(loads, experts, args.num_slots / args.num_nodes,
                               args.num_ranks / args.num_nodes))
      out.push_back(std::move(bin));
  return out;
}

/// The node of each expert as `slots` has it; empty when an expert or a group is on several.
std::vector<std::int32_t> nodes_now(const PlanArgs& args, std::span<const std::int32_t> slots) {
  const std::size_t experts = std::size_t(args.loads->num_experts()),
                    group_size = experts / std::size_t(args.num_groups),
                    node_slots = slots.size() / std::size_t(args.num_nodes);
  std::vector<std::int32_t> out(experts, -1);
  for (std::size_t s = 0; s < slots.size(); ++s) {
    const std::int32_t node = std::int32_t(s / node_slots);
    // The group's first expert stands for the group: it must be where each of the others is.
    for (std::size_t e : {std::size_t(slots[s]), std::size_t(slots[s]) / group_size * group_size}) {
      if (out[e] >= 0 && out[e] != node) return {};
      out[e] = node;
    }
  }
  return out;
}

std::vector<std::int32_t> plan_layer(const PlanArgs& args, std::span<const double> loads,
                                     std::span<const std::int32_t> now) {
  std::vector<std::int32_t> best = rearrange(plan_fresh(args, loads), now, args.num_nodes);
  const bool grouped = args.num_nodes > 1;
  const auto nodes = grouped ? nodes_now(args, now) : std::vector<std::int32_t>{};
  if (grouped && nodes.empty()) return best;  // what stands breaks the hierarchy
  const double slack = args.previous ? args.tolerance : 0.0;
  const double goal = max_over_mean(loads, best, args.num_ranks) * (1 + slack) + kSameBalance;
  if (max_over_mean(loads, now, args.num_ranks) <= goal) return {now.begin(), now.end()};
  if (!args.previous) return best;
  auto stepped = improve({.loads = loads,
                          .before = now,
                          .num_ranks = args.num_ranks,
                          .num_nodes = args.num_nodes,
                          .node_of_expert = nodes,
                          .goal = goal,
                          .most_moves = count_moves(now, best)});
  const bool reached = max_over_mean(loads, stepped, args.num_ranks) <= goal + kSameBalance;
  return reached && count_moves(now, stepped) < count_moves(now, best) ? stepped : best;
}

void check_hierarchy(const PlanArgs& a, std::int64_t experts) {
  require(a.num_groups >= 1 && a.num_groups <= experts && experts % a.num_groups == 0,
          "groups = ", a.num_groups, " do not divide experts = ", experts,
          "; groups are neighbouring experts of one size");
  require(a.num_nodes >= 1 && a.num_nodes <= a.num_ranks && a.num_ranks % a.num_nodes == 0,
          "nodes = ", a.num_nodes, " do not divide ranks = ", a.num_ranks,
          "; every node has the same number of ranks");
  require(a.num_groups % a.num_nodes == 0, "nodes = ", a.num_nodes,
          " do not divide groups = ", a.num_groups, "; a hierarchical plan deals whole groups of ",
          "experts to nodes, give the model's groups or leave the nodes out for a flat plan");
  require(a.num_slots / a.num_ranks <= experts / a.num_nodes, "slots = ", a.num_slots, " over ",
          a.num_ranks, " ranks are ", a.num_slots / a.num_ranks, " a rank, more than the ",
          experts / a.num_nodes, " experts of a node; take fewer slots or a flat plan");
}

}  // namespace

void PlanArgs::check() const {
  require(loads != nullptr, "loads are missing; give a table");
  loads->check("loads");
  const PlacementShape shape{loads->num_experts(), num_slots, num_ranks};
  shape.check("plan");
  check_hierarchy(*this, loads->num_experts());
  require(std::isfinite(tolerance) && tolerance >= 0 && tolerance <= 10, "tolerance = ", tolerance,
          ", must be from 0 to 10; 0.02 gives up two hundredths of the balance");
  if (previous == nullptr) return;
  previous->check("previous placement");
  const Placement& p = *previous;
  bool same = p.num_experts == shape.num_experts && p.num_slots == num_slots &&
              p.num_ranks == num_ranks && p.layers.size() == loads->layers.size();
  require(same, "previous placement: has ", p.num_experts, " experts, ", p.num_slots, " slots, ",
          p.num_ranks, " ranks and ", p.layers.size(), " layers, the plan ", shape.num_experts,
          ", ", num_slots, ", ", num_ranks, " and ", loads->layers.size(),
          "; moves exist between equal shapes only");
}

std::int64_t BalancePlan::num_moves() const {
  std::int64_t sum = 0;
  for (const PlannedLayer& layer : layers) sum += layer.moves;
  return sum;
}

BalancePlan judge_placement(const LoadTable& loads, const Placement& placement) {
  loads.check("loads");
  placement.check("placement");
  const Placement& p = placement;
  require(p.num_experts == loads.num_experts() && p.layers.size() == loads.layers.size(),
          "placement: has ", p.num_experts, " experts and ", p.layers.size(), " layers, the loads ",
          loads.num_experts(), " and ", loads.layers.size(),
          "; give the placement and the loads of one model");
  const Placement linear =
      linear_placement({p.num_experts, p.num_slots, p.num_ranks}, std::int64_t(p.layers.size()));
  BalancePlan out{.placement = p, .layers = {}};
  for (std::size_t l = 0; l < p.layers.size(); ++l) {
    const auto& row = loads.layers[l];
    out.layers.push_back({.before = max_over_mean(row, linear.layers[l], p.num_ranks),
                          .after = max_over_mean(row, p.layers[l], p.num_ranks),
                          .lower_bound = lower_bound(row, p.num_slots, p.num_ranks),
                          .moves = count_moves(linear.layers[l], p.layers[l])});
  }
  return out;
}

BalancePlan plan_placement(const PlanArgs& args) {
  args.check();
  const auto& tables = args.loads->layers;
  const PlacementShape shape{args.loads->num_experts(), args.num_slots, args.num_ranks};
  BalancePlan out;
  out.placement =
      args.previous ? *args.previous : linear_placement(shape, std::int64_t(tables.size()));
  for (std::size_t l = 0; l < tables.size(); ++l) {
    auto& slots = out.placement.layers[l];
    auto planned = plan_layer(args, tables[l], slots);
    out.layers.push_back({.before = max_over_mean(tables[l], slots, args.num_ranks),
                          .after = max_over_mean(tables[l], planned, args.num_ranks),
                          .lower_bound = lower_bound(tables[l], args.num_slots, args.num_ranks),
                          .moves = count_moves(slots, planned)});
    slots = std::move(planned);
  }
  return out;
}

}  // namespace switchyard::eplb
