// SPDX-License-Identifier: Apache-2.0
// The readers of expert load balancing: load tables and placements.
#include "switchyard/eplb/loads.h"
#include "switchyard/eplb/placement_file.h"
#include "switchyard/eplb/planner.h"
#include "tests/fuzz/target.h"

namespace switchyard::fuzz {
namespace {

void run_loads(std::string_view input) {
  auto loads = eplb::parse_loads(input, "loads.csv");
  loads.check("loads.csv");
  if (loads.num_experts() > 64 || loads.layers.size() > 8) return;
  auto plan = eplb::plan_placement(
      {.loads = &loads, .num_slots = loads.num_experts(), .num_ranks = 1, .previous = nullptr});
  plan.placement.check("plan");
  for (const auto& layer : plan.layers)
    promise(layer.after >= layer.lower_bound - 1e-9, "a plan beats the lower bound");
}

void run_placement(std::string_view input) {
  auto placement = eplb::parse_placement(input, "placement.json");
  placement.check("placement.json");
  auto again = eplb::parse_placement(eplb::placement_text(placement), "text");
  promise(again == placement, "a placement does not survive its own text");
}

}  // namespace

const Target kLoads = {"loads", run_loads};
const Target kPlacement = {"placement", run_placement};

}  // namespace switchyard::fuzz
