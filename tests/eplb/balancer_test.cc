// SPDX-License-Identifier: Apache-2.0
// When slots change, and the one order of the hooks around a forward.
#include "switchyard/eplb/balancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "switchyard/base/check.h"
#include "switchyard/eplb/cycle.h"
#include "tests/support/usage_error.h"

namespace switchyard::eplb {
namespace {

using test::usage_error_of;
using testing::HasSubstr;
using Counts = std::vector<std::int64_t>;

struct Hook {
  const char* name;
  std::function<void(Cycle&)> call;
};

const std::vector<Hook>& hooks() {
  static const std::vector<Hook> all{{"start_wait", [](Cycle& c) { c.start_wait(); }},
                                     {"done_wait", [](Cycle& c) { c.done_wait(); }},
                                     {"count", [](Cycle& c) { c.count(); }},
                                     {"gathered", [](Cycle& c) { c.gathered(); }},
                                     {"route", [](Cycle& c) { c.route(); }},
                                     {"start_set", [](Cycle& c) { c.start_set(); }},
                                     {"done_set", [](Cycle& c) { c.done_set(); }}};
  return all;
}

/// A cycle after the named hooks.
Cycle after(const std::vector<std::string>& names) {
  Cycle out;
  for (const std::string& name : names)
    for (const Hook& hook : hooks())
      if (name == hook.name) hook.call(out);
  return out;
}

TEST(Cycle, EveryHookOutOfOrderIsRefusedByNameAndChangesNothing) {
  struct Case {
    std::vector<std::string> before;
    std::vector<std::string> legal;
  };
  const std::vector<Case> cases{
      {{}, {"start_wait"}},
      {{"start_wait"}, {"done_wait"}},
      {{"start_wait", "done_wait"}, {"count", "route", "start_set"}},
      {{"start_wait", "done_wait", "count"}, {"count", "gathered", "route", "start_set"}},
      {{"start_wait", "done_wait", "count", "route"}, {"count", "gathered", "route", "start_set"}},
      {{"start_wait", "done_wait", "count", "gathered"}, {"route", "start_set"}},
      {{"start_wait", "done_wait", "count", "gathered", "route"}, {"route", "start_set"}},
      {{"start_wait", "done_wait", "start_set"}, {"done_set"}},
      {{"start_wait", "done_wait", "count", "start_set", "done_set"}, {"start_wait"}}};
  for (const Case& c : cases)
    for (const Hook& hook : hooks()) {
      Cycle cycle = after(c.before);
      const Phase phase = cycle.phase();
      const bool legal = std::find(c.legal.begin(), c.legal.end(), hook.name) != c.legal.end();
      std::string error;
      try {
        hook.call(cycle);
      } catch (const InternalError& e) {
        error = e.what();
      }
      EXPECT_EQ(error.empty(), legal) << hook.name << " in phase " << to_string(phase);
      if (legal) continue;
      EXPECT_THAT(error, HasSubstr(std::string(hook.name) + " is out of order in phase " +
                                   std::string(to_string(phase))));
      EXPECT_EQ(cycle.phase(), phase);
    }
}

TEST(Cycle, SlotsChangeOnlyBetweenForwards) {
  Cycle cycle;
  cycle.check_idle("migration");
  cycle.start_wait();
  EXPECT_THROW(cycle.check_idle("migration"), InternalError);
  cycle.reset();  // as a forward that failed
  cycle.check_idle("migration");
}

constexpr std::int64_t kLayers = 3, kExperts = 8, kSlots = 12, kRanks = 4;

Placement start() { return linear_placement({kExperts, kSlots, kRanks}, kLayers); }

/// Tokens of an iteration: layer 1 is even, the others lean on one expert, layer 2 the more.
Counts counts_of(std::int64_t layer, std::int64_t hot) {
  Counts out(kExperts, 60);
  if (layer != 1) out[std::size_t(hot)] = layer == 0 ? 300 : 900;
  return out;
}

std::vector<Migration> iterate(Balancer& b, std::int64_t hot) {
  for (std::int64_t l = 0; l < kLayers; ++l) b.add(l, counts_of(l, hot));
  return b.end_iteration();
}

BalancerOptions quick() { return {.window = 2, .warm_up = 2, .interval = 4}; }

double balance(const Balancer& b, std::int64_t layer, std::int64_t hot) {
  const Counts counts = counts_of(layer, hot);
  return max_over_mean(std::vector<double>(counts.begin(), counts.end()),
                       b.placement().layers[std::size_t(layer)], kRanks);
}

TEST(Balancer, MovesTheLayerThatGainsMostAfterTheWarmUpOneAnIteration) {
  Balancer b(start(), quick());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(iterate(b, 0).empty()) << "warm-up " << i;
  const double before = balance(b, 2, 0);
  std::vector<Migration> asked = iterate(b, 0);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].layer, 2);
  EXPECT_EQ(asked[0].moves, plan_moves(start().layers[2], asked[0].slots, kRanks));
  EXPECT_EQ(b.placement(), start()) << "nothing stands before it is applied";
  b.applied(asked[0]);
  EXPECT_LT(balance(b, 2, 0), before);
  asked = iterate(b, 0);
  ASSERT_EQ(asked.size(), 1U);
  EXPECT_EQ(asked[0].layer, 0);
  b.applied(asked[0]);
  EXPECT_TRUE(iterate(b, 0).empty());
  EXPECT_EQ(b.plans(), 1);
  EXPECT_EQ(b.migrations(), 2);
  b.placement().check("after");
}

TEST(Balancer, EvenLoadsAndGainsBelowTheLeastMoveNothing) {
  Balancer even(start(), quick());
  for (int i = 0; i < 12; ++i) {
    for (std::int64_t l = 0; l < kLayers; ++l) even.add(l, Counts(kExperts, 60));
    EXPECT_TRUE(even.end_iteration().empty()) << i;
  }
  EXPECT_GT(even.plans(), 1);
  BalancerOptions o = quick();
  o.least_gain = 0.95;
  Balancer lazy(start(), o);
  for (int i = 0; i < 12; ++i) EXPECT_TRUE(iterate(lazy, 0).empty()) << i;
  EXPECT_GT(lazy.plans(), 1);
}

TEST(Balancer, NothingOfAnOldPlanIsAskedForAfterANewOne) {
  Balancer b(start(), quick());
  std::vector<Migration> old;
  for (int i = 0; i < 3; ++i) old = iterate(b, 0);
  ASSERT_EQ(old.size(), 1U);
  for (int i = 0; i < 4; ++i) iterate(b, 5);  // the load has gone elsewhere; nobody applied
  EXPECT_EQ(b.plans(), 2);
  EXPECT_THAT(usage_error_of([&] { b.applied(old[0]); }), HasSubstr("no migration of layer 2"));
  const std::vector<Migration> asked = iterate(b, 5);
  ASSERT_EQ(asked.size(), 1U);
  b.applied(asked[0]);
  EXPECT_THAT(usage_error_of([&] { b.applied(asked[0]); }), HasSubstr("once"));
}

TEST(Balancer, StaticPlacementsStayAndTheSameCountsGiveTheSameMoves) {
  BalancerOptions o = quick();
  o.layers_per_iteration = 0;
  Balancer fixed(start(), o);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(iterate(fixed, 0).empty());
  EXPECT_EQ(fixed.plans(), 0);

  Balancer a(start(), quick()), b(start(), quick());
  for (std::int64_t i = 0; i < 40; ++i) {
    const std::vector<Migration> of_a = iterate(a, i / 7), of_b = iterate(b, i / 7);
    ASSERT_EQ(of_a.size(), of_b.size());
    for (std::size_t m = 0; m < of_a.size(); ++m) {
      EXPECT_EQ(of_a[m].slots, of_b[m].slots);
      a.applied(of_a[m]), b.applied(of_b[m]);
    }
  }
  EXPECT_EQ(a.placement(), b.placement());
  EXPECT_GT(a.migrations(), 4);
}

TEST(Balancer, OptionsAreChecked) {
  const auto refused = [](BalancerOptions o) {
    return usage_error_of([&] { Balancer(start(), o); });
  };
  EXPECT_THAT(refused({.window = 0}), HasSubstr("window = 0"));
  EXPECT_THAT(refused({.warm_up = -1}), HasSubstr("warm_up = -1"));
  EXPECT_THAT(refused({.interval = 0}), HasSubstr("interval = 0"));
  EXPECT_THAT(refused({.layers_per_iteration = -1}), HasSubstr("layers_per_iteration = -1"));
  EXPECT_THAT(refused({.least_gain = 1}), HasSubstr("least_gain = 1"));
  EXPECT_THAT(usage_error_of([] { Balancer({2, 2, 1, {}}, {}); }), HasSubstr("holds no layer"));
}

}  // namespace
}  // namespace switchyard::eplb
