// SPDX-License-Identifier: Apache-2.0
// eplb plan and eplb simulate: expert placements from measured loads, without a model or a device.
#include <algorithm>
#include <chrono>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/output.h"
#include "switchyard/api/eplb_live.h"
#include "switchyard/base/check.h"
#include "switchyard/core/routing.h"
#include "switchyard/eplb/placement_file.h"
#include "switchyard/eplb/planner.h"

namespace switchyard::cli {
namespace {

struct EplbFlags {
  std::string loads, placement, previous, out;
  std::optional<std::int64_t> slots, ranks, nodes, groups, expert_bytes;
  std::optional<float> tolerance;
  bool json = false;

  void add_shape(Arguments& args) {
    args.positional("LOADS", loads, "Loads of layers x experts: CSV, or JSON {\"loads\": [[...]]}");
    args.integer("--slots", {1, eplb::kMaxSlots}, slots,
                 "S, slots of a layer over all ranks, from the number of experts on");
    args.integer("--ranks", {1, eplb::kMaxRanks}, ranks, "R, ranks that share them; divides S");
    args.integer("--nodes", {1, eplb::kMaxRanks}, nodes,
                 "Nodes of the ranks, for a hierarchical plan; divides R and the groups");
    args.integer("--groups", {1, kMaxRoutedExperts}, groups,
                 "Expert groups of the model's routing, each kept on one node");
    args.integer("--expert-bytes", {1, std::int64_t(1) << 36}, expert_bytes,
                 "Bytes of one expert's weights, to show what the moves copy");
    args.toggle("--json", json, "Print JSON");
  }
};

/// A live layer instead of arithmetic.
struct LiveFlags {
  bool on = false;
  std::optional<std::int64_t> tokens, interval;

  void add(Arguments& args) {
    args.toggle("--live", on,
                "Serve the loads, a line for each step of one layer, with a small layer on thread "
                "ranks whose experts migrate, beside one whose experts never do");
    args.integer("--tokens", {1, 1 << 16}, tokens,
                 "Tokens of each rank and step of --live (default 64)");
    args.integer("--interval", {1, 1 << 20}, interval,
                 "Steps from one plan of --live to the next (default 4)");
  }
};

/// A plan with what the command says about it.
struct Report {
  const EplbFlags& flags;
  const eplb::BalancePlan& plan;
  std::string before;  // what stood before: "linear" or a file
  double plan_ms = 0;

  double worst(double eplb::PlannedLayer::*field) const {
    double out = 0;
    for (const auto& layer : plan.layers) out = std::max(out, layer.*field);
    return out;
  }
  Json bytes(std::int64_t moves) const {
    return flags.expert_bytes ? Json(moves * *flags.expert_bytes) : Json(nullptr);
  }
  std::string json() const;
  std::string text() const;
};

std::string Report::json() const {
  const eplb::Placement& p = plan.placement;
  Json layers = Json::array();
  for (std::size_t l = 0; l < plan.layers.size(); ++l) {
    const eplb::PlannedLayer& layer = plan.layers[l];
    layers.push_back({{"layer", l},
                      {"before", layer.before},
                      {"max_over_mean", layer.after},
                      {"lower_bound", layer.lower_bound},
                      {"moves", layer.moves},
                      {"migrate_bytes", bytes(layer.moves)}});
  }
  Json body = {{"loads", flags.loads},
               {"experts", p.num_experts},
               {"slots", p.num_slots},
               {"ranks", p.num_ranks},
               {"nodes", flags.nodes.value_or(1)},
               {"groups", flags.groups.value_or(1)},
               {"before", before},
               {"worst",
                {{"before", worst(&eplb::PlannedLayer::before)},
                 {"max_over_mean", worst(&eplb::PlannedLayer::after)},
                 {"lower_bound", worst(&eplb::PlannedLayer::lower_bound)}}},
               {"moves", plan.num_moves()},
               {"migrate_bytes", bytes(plan.num_moves())},
               {"plan_ms", plan_ms},
               {"layers", std::move(layers)}};
  if (!flags.out.empty()) body["out"] = flags.out;
  return json_text(body);
}

std::string Report::text() const {
  const eplb::Placement& p = plan.placement;
  std::string out = cat(p.num_experts, " experts in ", p.num_slots, " slots on ", p.num_ranks,
                        " ranks; largest rank load over the mean one:\n");
  const std::string after = flags.placement.empty() ? "plan" : "placement";
  Table table({">layer", ">" + std::string(before == "linear" ? "linear" : "previous"), ">" + after,
               ">lower bound", ">moves"});
  for (std::size_t l = 0; l < plan.layers.size(); ++l) {
    const eplb::PlannedLayer& layer = plan.layers[l];
    table.add({cat(l), fixed(layer.before, 4), fixed(layer.after, 4), fixed(layer.lower_bound, 4),
               cat(layer.moves)});
  }
  out += table.str();
  out += cat("worst layer ", fixed(worst(&eplb::PlannedLayer::before), 4), " -> ",
             fixed(worst(&eplb::PlannedLayer::after), 4), ", moves ", plan.num_moves());
  if (flags.expert_bytes) out += cat(", ", plan.num_moves() * *flags.expert_bytes, " bytes");
  if (flags.placement.empty()) out += cat(", planned in ", fixed(plan_ms, 1), " ms");
  if (!flags.out.empty()) out += cat("\nwritten to ", flags.out);
  return out + "\n";
}

eplb::BalancePlan timed_plan(const EplbFlags& flags, const eplb::LoadTable& loads,
                             const eplb::Placement* previous, double& plan_ms) {
  require(!flags.groups || flags.nodes,
          "--groups is given without --nodes; a flat plan knows no groups, give both or none");
  require(flags.slots && flags.ranks, flags.slots ? "--ranks" : "--slots",
          " is missing; a plan needs --slots S and --ranks R, e.g. --slots ", loads.num_experts(),
          " --ranks 1");
  eplb::PlanArgs args{.loads = &loads,
                      .num_slots = *flags.slots,
                      .num_ranks = *flags.ranks,
                      .num_nodes = flags.nodes.value_or(1),
                      .num_groups = flags.groups.value_or(1),
                      .previous = previous};
  if (flags.tolerance) args.tolerance = double(*flags.tolerance);
  const auto start = std::chrono::steady_clock::now();
  eplb::BalancePlan plan = eplb::plan_placement(args);
  plan_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return plan;
}

Answer answer(const Report& report) {
  return {kOk, report.flags.json ? report.json() : report.text()};
}

Answer plan_command(Arguments& args) {
  EplbFlags flags;
  flags.add_shape(args);
  args.text("--previous", flags.previous, "Placement that stands now; few experts move from it",
            "FILE");
  args.not_negative("--tolerance", flags.tolerance,
                    "Share of the balance that may be lost to move fewer experts of --previous "
                    "(default 0.02)");
  args.text("--out", flags.out, "Write the placement to this file", "FILE");
  if (!args.parse()) return {kOk, args.help()};
  require(!flags.tolerance || !flags.previous.empty(),
          "--tolerance says how few experts of --previous move; give both or none");
  const eplb::LoadTable loads = eplb::read_loads(flags.loads);
  std::optional<eplb::Placement> previous;
  if (!flags.previous.empty()) previous = eplb::read_placement(flags.previous);
  double plan_ms = 0;
  const eplb::BalancePlan plan = timed_plan(flags, loads, previous ? &*previous : nullptr, plan_ms);
  if (!flags.out.empty()) eplb::write_placement(plan.placement, flags.out);
  return answer({flags, plan, previous ? flags.previous : "linear", plan_ms});
}

std::string live_json(const EplbFlags& flags, const EplbLiveResult& r) {
  Json steps = Json::array();
  for (const EplbLiveStep& s : r.steps)
    steps.push_back({{"fixed", s.fixed}, {"live", s.live}, {"moves", s.moves}});
  return json_text({{"ok", r.ok},
                    {"loads", flags.loads},
                    {"experts", r.experts},
                    {"slots", *flags.slots},
                    {"ranks", *flags.ranks},
                    {"mean", {{"fixed", r.fixed}, {"live", r.live}}},
                    {"migrations", r.migrations},
                    {"moves", r.moves},
                    {"migrate_bytes", r.moves * flags.expert_bytes.value_or(r.expert_bytes)},
                    {"differing_steps", r.differing_steps},
                    {"steps", std::move(steps)}});
}

std::string live_text(const EplbFlags& flags, const EplbLiveResult& r) {
  return cat(r.experts, " experts in ", *flags.slots, " slots on ", *flags.ranks, " ranks, ",
             r.steps.size(), " steps; largest rank load over the mean one, as tokens chose:\n",
             "fixed ", fixed(r.fixed, 4), ", live ", fixed(r.live, 4), " (means over the steps); ",
             r.migrations, " migrations of ", r.moves, " slots, ",
             r.moves * flags.expert_bytes.value_or(r.expert_bytes), " bytes\n",
             r.ok ? "every output has the bits of the layer that never moves\n"
                  : cat(r.differing_steps, " steps gave other bits: FAILED\n"));
}

/// Serves the loads as a trace: a line for each step of one layer.
Answer live_command(const EplbFlags& flags, const LiveFlags& live, eplb::LoadTable trace) {
  require(flags.placement.empty() && flags.slots && flags.ranks,
          "--live starts from linear slots: give --slots S and --ranks R, and no --placement");
  EplbLiveOptions o{.trace = std::move(trace), .slots = *flags.slots, .ranks = *flags.ranks};
  o.tokens = live.tokens.value_or(o.tokens);
  o.balancer.num_nodes = flags.nodes.value_or(1);
  o.balancer.num_groups = flags.groups.value_or(1);
  if (live.interval) o.balancer.window = o.balancer.warm_up = o.balancer.interval = *live.interval;
  const EplbLiveResult result = eplb_live(o);
  return {result.ok ? kOk : kFailed,
          flags.json ? live_json(flags, result) : live_text(flags, result)};
}

Answer simulate_command(Arguments& args) {
  EplbFlags flags;
  LiveFlags live;
  flags.add_shape(args);
  args.text("--placement", flags.placement, "Judge this placement instead of planning one", "FILE");
  live.add(args);
  if (!args.parse()) return {kOk, args.help()};
  const eplb::LoadTable loads = eplb::read_loads(flags.loads);
  require(live.on || (!live.tokens && !live.interval),
          "--tokens and --interval are for --live, which is missing");
  if (live.on) return live_command(flags, live, loads);
  double plan_ms = 0;
  if (flags.placement.empty()) {
    const eplb::BalancePlan plan = timed_plan(flags, loads, nullptr, plan_ms);
    return answer({flags, plan, "linear", plan_ms});
  }
  require(
      !flags.slots && !flags.ranks && !flags.nodes && !flags.groups,
      "--placement brings its own slots and ranks; leave --slots, --ranks, --nodes and --groups "
      "out");
  const eplb::BalancePlan judged =
      eplb::judge_placement(loads, eplb::read_placement(flags.placement));
  return answer({flags, judged, "linear", plan_ms});
}

}  // namespace

const Command kEplbPlan = {
    .name = "eplb plan",
    .summary = "Plans which experts get more slots, and which rank holds which, from loads",
    .example =
        "switchyard eplb plan loads.csv --slots 288 --ranks 32 --out placement.json\n"
        "switchyard eplb plan loads.csv --slots 288 --ranks 32 --nodes 4 --groups 8 --json\n"
        "switchyard eplb plan new.csv --slots 288 --ranks 32 --previous placement.json",
    .run = plan_command};

const Command kEplbSimulate = {
    .name = "eplb simulate",
    .summary = "Shows the balance of a placement, or of a new plan, under loads",
    .example =
        "switchyard eplb simulate loads.csv --placement placement.json\n"
        "switchyard eplb simulate trace.csv --slots 12 --ranks 4 --live\n"
        "switchyard eplb simulate loads.csv --slots 288 --ranks 32",
    .run = simulate_command};

}  // namespace switchyard::cli
