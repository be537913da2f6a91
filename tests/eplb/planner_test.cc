// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "switchyard/base/random.h"
#include "tests/support/soak.h"
#include "tests/support/usage_error.h"

namespace switchyard::eplb {
namespace {

using test::usage_error_of;
using testing::HasSubstr;
using Slots = std::vector<std::int32_t>;

// The figures of tests/data/eplb were computed and rounded in single precision.
constexpr double kSinglePrecision = 1e-6;

struct Given {
  std::string name;
  LoadTable loads;
  std::int64_t slots, groups, nodes, ranks;
  std::vector<double> max_over_mean;
};

std::vector<Given> given_cases() {
  std::ifstream in(std::string(SWITCHYARD_TEST_DATA) + "/eplb/loads.json");
  std::vector<Given> out;
  for (const auto& c : nlohmann::json::parse(in))
    out.push_back({c["name"],
                   {c["loads"]},
                   c["num_slots"],
                   c["num_groups"],
                   c["num_nodes"],
                   c["num_ranks"],
                   c["max_over_mean"]});
  return out;
}

PlanArgs args_of(const Given& c, bool hierarchical) {
  return {.loads = &c.loads,
          .num_slots = c.slots,
          .num_ranks = c.ranks,
          .num_nodes = hierarchical ? c.nodes : 1,
          .num_groups = hierarchical ? c.groups : 1};
}

TEST(Planner, IsNoWorseThanThePublicPlannerOnAnyLayer) {
  std::size_t layers = 0, linear_worse = 0;
  for (const Given& c : given_cases())
    for (bool hierarchical : {false, true}) {
      const BalancePlan plan = plan_placement(args_of(c, hierarchical));
      plan.placement.check(c.name);
      ASSERT_EQ(plan.layers.size(), c.max_over_mean.size());
      for (std::size_t l = 0; l < plan.layers.size(); ++l, ++layers) {
        const double given = c.max_over_mean[l] + kSinglePrecision;
        EXPECT_LE(plan.layers[l].after, given) << c.name << ", layer " << l << ", " << hierarchical;
        linear_worse += plan.layers[l].before > given;
      }
    }
  EXPECT_EQ(layers, 2u * 66);
  EXPECT_GT(linear_worse, layers / 2) << "control: the linear placement must fail most of these";
}

TEST(Planner, ReportsWhatThePlacementHas) {
  for (const Given& c : given_cases()) {
    const BalancePlan plan = plan_placement(args_of(c, true));
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
      const auto& row = c.loads.layers[l];
      const PlannedLayer& layer = plan.layers[l];
      EXPECT_EQ(layer.after, max_over_mean(row, plan.placement.layers[l], c.ranks));
      EXPECT_GE(layer.after, layer.lower_bound - 1e-12);
      const double mean = std::accumulate(row.begin(), row.end(), 0.0) / double(c.ranks);
      const double most = *std::max_element(row.begin(), row.end());
      const double replicas = double(c.slots - c.loads.num_experts() + 1);
      EXPECT_NEAR(layer.lower_bound, std::max(1.0, most / replicas / mean), 1e-12);
    }
  }
}

/// The node of every replica; each group's must be one.
void expect_groups_whole(const PlanArgs& a, const Slots& slots, const std::string& what) {
  const std::int64_t experts = a.loads->num_experts(), size = experts / a.num_groups;
  std::vector<std::int64_t> node(std::size_t(a.num_groups), -1);
  for (std::int64_t s = 0; s < a.num_slots; ++s) {
    std::int64_t& n = node[std::size_t(slots[std::size_t(s)] / size)];
    const std::int64_t here = s / (a.num_slots / a.num_nodes);
    EXPECT_TRUE(n < 0 || n == here) << what << ", slot " << s;
    n = here;
  }
}

LoadTable random_loads(std::int64_t layers, std::int64_t experts, std::uint64_t seed) {
  LoadTable out;
  for (std::int64_t l = 0; l < layers; ++l) {
    const Random random(seed, std::uint64_t(l));
    auto& row = out.layers.emplace_back();
    // Every other layer is steep, every third has experts that nobody chose.
    for (std::int64_t e = 0; e < experts; ++e) {
      double u = random.uniform(std::uint64_t(e));
      row.push_back(l % 3 == 2 && u < 0.3 ? 0 : std::floor(1000 * (l % 2 ? std::pow(u, 8) : u)));
    }
  }
  return out;
}

TEST(Planner, EveryPlanIsWholeAndNoWorseThanLinear) {
  struct Shape {
    std::int64_t experts, ranks, per_rank, nodes, groups;
  };
  const std::vector<Shape> some = {
      {1, 1, 1, 1, 1},  {2, 2, 2, 1, 1},   {3, 2, 2, 1, 1},    {8, 2, 5, 1, 1},   {8, 4, 8, 1, 1},
      {5, 7, 1, 1, 1},  {12, 8, 2, 2, 4},  {31, 8, 5, 1, 1},   {33, 3, 12, 1, 1}, {64, 8, 9, 4, 8},
      {64, 8, 8, 2, 2}, {16, 4, 8, 2, 16}, {160, 20, 9, 5, 10}};
  std::uint64_t seed = 1;
  for (const Shape& s : some) {
    const LoadTable loads = random_loads(test::subset_or_full(6, 120), s.experts, seed++);
    const PlanArgs args{.loads = &loads,
                        .num_slots = s.ranks * s.per_rank,
                        .num_ranks = s.ranks,
                        .num_nodes = s.nodes,
                        .num_groups = s.groups};
    const BalancePlan plan = plan_placement(args);
    plan.placement.check("plan");
    EXPECT_EQ(plan.placement, plan_placement(args).placement) << "the same arguments";
    const std::string what = testing::PrintToString(std::pair(s.experts, s.ranks));
    const Placement linear = linear_placement({s.experts, args.num_slots, s.ranks}, 1);
    std::int64_t moves = 0;
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
      expect_groups_whole(args, plan.placement.layers[l], what);
      // Whole groups on one node can cost more than a flat linear layout has.
      EXPECT_TRUE(s.nodes > 1 || plan.layers[l].after <= plan.layers[l].before + 1e-9)
          << what << " layer " << l;
      moves += count_moves(linear.layers[0], plan.placement.layers[l]);
    }
    EXPECT_EQ(moves, plan.num_moves());
  }
}

/// Smallest max_over_mean of all placements that check() lets pass, by trying them.
double best_of_all(const std::vector<double>& loads, std::int64_t slots, std::int64_t ranks) {
  double best = 1e300;
  Slots at(std::size_t(slots), 0);
  const auto experts = std::int32_t(loads.size());
  for (;;) {
    const Placement candidate{experts, slots, ranks, {at}};
    if (test::usage_error_or_empty([&] { candidate.check(""); }).empty())
      best = std::min(best, max_over_mean(loads, at, ranks));
    std::size_t i = 0;
    while (i < at.size() && ++at[i] == experts) at[i++] = 0;
    if (i == at.size()) return best;
  }
}

TEST(Planner, IsCloseToTheOptimumOfTinyCases) {
  struct Shape {
    std::int64_t experts, slots, ranks;
  };
  double worst = 1, worst_linear = 1, sum = 0, count = 0;
  std::uint64_t seed = 50;
  for (const Shape& s : {Shape{3, 4, 2}, Shape{4, 4, 2}, Shape{4, 6, 2}, Shape{4, 6, 3},
                         Shape{5, 6, 2}, Shape{5, 6, 3}, Shape{3, 6, 3}, Shape{6, 6, 3}}) {
    const LoadTable loads = random_loads(test::subset_or_full(8, 60), s.experts, seed++);
    const BalancePlan plan =
        plan_placement({.loads = &loads, .num_slots = s.slots, .num_ranks = s.ranks});
    for (std::size_t l = 0; l < plan.layers.size(); ++l) {
      const double best = best_of_all(loads.layers[l], s.slots, s.ranks);
      EXPECT_GE(plan.layers[l].after, best - 1e-9) << "no plan beats all placements";
      worst = std::max(worst, plan.layers[l].after / best);
      sum += plan.layers[l].after / best, ++count;
      worst_linear = std::max(worst_linear, plan.layers[l].before / best);
    }
  }
  EXPECT_LE(worst, 4.0 / 3) << "Graham's bound for dealing the heaviest first";
  EXPECT_LE(sum / count, 1.02);
  EXPECT_GT(worst_linear, 1.5) << "control: the linear placement is far from the optimum";
}

TEST(Planner, ReplicasOfAHotExpertStandOnDifferentRanks) {
  const LoadTable loads{{{100, 1, 1, 1, 1, 1, 1, 1}}};
  const BalancePlan plan = plan_placement({.loads = &loads, .num_slots = 10, .num_ranks = 2});
  const Slots& slots = plan.placement.layers[0];
  EXPECT_EQ(std::count(slots.begin(), slots.begin() + 5, 0), 1);
  EXPECT_EQ(std::count(slots.begin() + 5, slots.end(), 0), 1);
  plan.placement.check("plan");
}

TEST(Planner, EvenLoadsMoveNothing) {
  const LoadTable loads{{std::vector<double>(16, 7.0), std::vector<double>(16, 0.0)}};
  for (std::int64_t slots : {16, 24, 32})
    EXPECT_EQ(plan_placement({.loads = &loads, .num_slots = slots, .num_ranks = 8}).num_moves(), 0)
        << slots;
}

TEST(Planner, APreviousPlacementIsChangedLittle) {
  LoadTable loads = random_loads(1, 64, 9);
  for (double& load : loads.layers[0]) load += 200;
  PlanArgs args{.loads = &loads, .num_slots = 72, .num_ranks = 8};
  const BalancePlan first = plan_placement(args);
  args.previous = &first.placement;
  EXPECT_EQ(plan_placement(args).num_moves(), 0) << "the same loads again";

  LoadTable drifted = loads;
  drifted.layers[0][5] *= 3;
  drifted.layers[0][40] *= 2;
  args.loads = &drifted;
  const BalancePlan next = plan_placement(args);
  next.placement.check("next");
  PlanArgs anew = args;
  anew.previous = nullptr;
  const BalancePlan fresh = plan_placement(anew);
  EXPECT_GT(next.layers[0].before, fresh.layers[0].after * 1.02) << "the case needs a change";
  EXPECT_LE(next.layers[0].after, fresh.layers[0].after * 1.02 + 1e-6);
  EXPECT_GT(next.num_moves(), 0);
  EXPECT_LE(next.num_moves(), 12);
  EXPECT_GT(count_moves(first.placement.layers[0], fresh.placement.layers[0]), 36)
      << "control: a plan from nothing moves most experts";

  args.tolerance = 10;
  EXPECT_EQ(plan_placement(args).num_moves(), 0) << "any balance is good enough";
}

TEST(Planner, APreviousPlacementKeepsTheHierarchy) {
  LoadTable loads = random_loads(4, 64, 11);
  PlanArgs args{.loads = &loads, .num_slots = 72, .num_ranks = 8, .num_nodes = 4, .num_groups = 8};
  const BalancePlan first = plan_placement(args);
  args.previous = &first.placement;
  LoadTable drifted = loads;
  for (auto& row : drifted.layers) row[3] += 300, row[50] += 500;
  args.loads = &drifted;
  const BalancePlan next = plan_placement(args);
  for (const Slots& slots : next.placement.layers) expect_groups_whole(args, slots, "next");
  PlanArgs anew = args;
  anew.previous = nullptr;
  const BalancePlan fresh = plan_placement(anew);
  EXPECT_GT(next.num_moves(), 0) << "the case needs a change";
  for (std::size_t l = 0; l < 4; ++l) {
    EXPECT_LE(next.layers[l].after, fresh.layers[l].after * 1.02 + 1e-6) << l;
    EXPECT_LT(next.layers[l].after, next.layers[l].before) << l;
  }
  EXPECT_LT(next.num_moves(), 4 * 72);

  // A flat placement has groups on several nodes: the hierarchy is restored all the same.
  const Placement linear = linear_placement({64, 72, 8}, 4);
  args.previous = &linear;
  for (const Slots& slots : plan_placement(args).placement.layers)
    expect_groups_whole(args, slots, "from linear");
}

TEST(Planner, JudgesAPlacement) {
  const LoadTable loads{{{12, 2, 2, 2}}};
  const BalancePlan judged = judge_placement(loads, {4, 6, 2, {{0, 1, 2, 0, 3, 1}}});
  EXPECT_DOUBLE_EQ(judged.layers[0].before,
                   max_over_mean(loads.layers[0], Slots{0, 1, 2, 2, 3, 0}, 2));
  EXPECT_DOUBLE_EQ(judged.layers[0].after, 1);
  EXPECT_EQ(judged.num_moves(), 2);
  EXPECT_THAT(usage_error_of([&] {
                judge_placement({{{1, 2}}}, {4, 4, 2, {{0, 1, 2, 3}}});
              }),
              HasSubstr("4 experts"));
}

struct Bad {
  PlanArgs args;
  std::vector<std::string> says;
};

TEST(Planner, BadArgumentsAreRefused) {
  const LoadTable loads = random_loads(2, 12, 3), negative{{{1, -1}}};
  const Placement other = linear_placement({12, 16, 4}, 2), broken{12, 16, 8, {}};
  const Placement experts = linear_placement({13, 16, 8}, 2),
                  slots = linear_placement({12, 24, 8}, 2),
                  layers = linear_placement({12, 16, 8}, 1);
  auto with = [&](auto change) {
    PlanArgs a{.loads = &loads, .num_slots = 16, .num_ranks = 8};
    change(a);
    return a;
  };
  const Bad cases[] = {
      {with([](PlanArgs& a) { a.loads = nullptr; }), {"loads are missing"}},
      {with([&](PlanArgs& a) { a.loads = &negative; }), {"expert 1", "-1"}},
      {with([](PlanArgs& a) { a.num_slots = 11; }), {"slots = 11", "12"}},
      {with([](PlanArgs& a) { a.num_slots = 1 << 20; }), {"slots = 1048576", "16384"}},
      {with([](PlanArgs& a) { a.num_ranks = 0; }), {"ranks = 0"}},
      {with([](PlanArgs& a) { a.num_ranks = 2000; }), {"ranks = 2000", "1024"}},
      {with([](PlanArgs& a) { a.num_ranks = 5; }), {"ranks = 5", "16"}},
      {with([](PlanArgs& a) { a.num_ranks = 1; }), {"16 a rank", "12 experts"}},
      {with([](PlanArgs& a) { a.num_groups = 5; }), {"groups = 5", "12"}},
      {with([](PlanArgs& a) { a.num_groups = 0; }), {"groups = 0"}},
      {with([](PlanArgs& a) { a.num_nodes = 3; }), {"nodes = 3", "ranks = 8"}},
      {with([](PlanArgs& a) { a.num_nodes = 0; }), {"nodes = 0"}},
      {with([](PlanArgs& a) { a.num_nodes = 2; }), {"nodes = 2", "groups = 1"}},
      {with([](PlanArgs& a) { a.num_nodes = 4, a.num_groups = 6; }), {"nodes = 4", "groups = 6"}},
      {with([](PlanArgs& a) { a.num_ranks = 4, a.num_nodes = 4, a.num_groups = 4; }),
       {"4 a rank", "3 experts of a node"}},
      {with([](PlanArgs& a) { a.tolerance = -0.1; }), {"tolerance = -0.1"}},
      {with([](PlanArgs& a) { a.tolerance = std::nan(""); }), {"tolerance = nan"}},
      {with([&](PlanArgs& a) { a.previous = &other; }), {"4 ranks", "8"}},
      {with([&](PlanArgs& a) { a.previous = &experts; }), {"13 experts", "12"}},
      {with([&](PlanArgs& a) { a.previous = &slots; }), {"24 slots", "16"}},
      {with([&](PlanArgs& a) { a.previous = &layers; }), {"1 layer", "2"}},
      {with([&](PlanArgs& a) { a.previous = &broken; }), {"previous", "no layer"}},
  };
  for (const Bad& bad : cases) {
    std::string text = usage_error_of([&] { plan_placement(bad.args); });
    for (const std::string& part : bad.says) EXPECT_THAT(text, HasSubstr(part));
    EXPECT_NO_THROW(plan_placement(with([](PlanArgs&) {})));
  }
}

}  // namespace
}  // namespace switchyard::eplb
