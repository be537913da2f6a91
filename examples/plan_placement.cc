// SPDX-License-Identifier: Apache-2.0
// Which experts get a second slot, and where: loads of the last iterations become a placement.
#include <cstdio>
#include <vector>

#include "switchyard/api/switchyard.h"

using namespace switchyard;

int main() {
  const std::int64_t layers = 1, experts = 8, window = 100;
  eplb::LoadStatistics statistics(layers, experts, window);
  const std::vector<std::int64_t> tokens = {10, 80, 60, 10, 10, 10, 10, 10};
  for (int iteration = 0; iteration < 3; ++iteration) {
    statistics.add(0, tokens);  // e.g. MoeLayer::take_expert_load().choices, summed over the ranks
    statistics.end_iteration();
  }
  const eplb::LoadTable loads = statistics.loads();
  eplb::PlanArgs args;
  args.loads = &loads;
  args.num_slots = 10;
  args.num_ranks = 2;
  const eplb::BalancePlan plan = eplb::plan_placement(args);
  const eplb::PlannedLayer& layer = plan.layers[0];
  std::printf("largest rank load over the mean: %.2f, now %.2f\n", layer.before, layer.after);
  const std::int64_t per_rank = plan.placement.slots_per_rank();
  for (std::int64_t s = 0; s < plan.placement.num_slots; ++s) {
    if (s % per_rank == 0) std::printf("rank %d:", int(s / per_rank));
    std::printf(" %d", int(plan.placement.layers[0][std::size_t(s)]));
    if (s % per_rank == per_rank - 1) std::printf("\n");
  }
  return layer.after < layer.before ? 0 : 1;
}
