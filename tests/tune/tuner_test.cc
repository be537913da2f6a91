// SPDX-License-Identifier: Apache-2.0
// The search among candidates, on times that are given: no clock is read.
#include "switchyard/tune/tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "switchyard/base/errors.h"
#include "switchyard/base/random.h"

namespace switchyard::tune {
namespace {

/// A machine whose calls take what the test says, and whose clock counts them.
class FakeMachine {
 public:
  /// `noise`: each time is multiplied by 1 + noise * u, u uniform in [0, 1).
  FakeMachine(std::vector<double> us, double noise, std::uint64_t seed = 1)
      : us_(std::move(us)), noise_(noise), random_(seed, 5) {}

  Timed timed() {
    return {[this](std::int64_t c) { return call(c); }, [this] { return now_; }};
  }
  std::int64_t count() const { return std::int64_t(us_.size()); }
  std::int64_t calls_of(std::int64_t c) const {
    return std::count(calls_.begin(), calls_.end(), c);
  }
  const std::vector<std::int64_t>& calls() const { return calls_; }
  /// Makes the first `calls` runs of `c` look this much faster.
  void flatter(std::int64_t c, std::int64_t calls, double by) {
    flattered_ = c, lucky_ = calls, luck_ = by;
  }

 private:
  double call(std::int64_t c) {
    double us = us_[std::size_t(c)] * (1 + noise_ * double(random_.uniform(calls_.size())));
    if (c == flattered_ && calls_of(c) < lucky_) us *= luck_;
    calls_.push_back(c);
    now_ += us;
    return us;
  }

  std::vector<double> us_;
  double noise_, now_ = 0, luck_ = 1;
  Random random_;
  std::vector<std::int64_t> calls_;
  std::int64_t flattered_ = -1, lucky_ = 0;
};

constexpr TunerLimits kShort{.seconds = 0.05};

TEST(Search, FindsTheFastest) {
  FakeMachine machine({100, 120, 80, 300, 95}, 0.05);
  const TunerResult r = search(machine.timed(), machine.count(), kShort);
  EXPECT_EQ(r.best, 2);
  EXPECT_NEAR(r.duel.us, 82, 3);
  EXPECT_NEAR(r.duel.plan_us, 102.5, 3);
  EXPECT_LT(r.duel.noise, 0.05);
  ASSERT_EQ(r.medians.size(), 5u);
  EXPECT_NEAR(r.medians[3], 307, 8) << "of those that left, too";
  EXPECT_NEAR(r.medians[4], 97.4, 3);
  EXPECT_LT(machine.calls_of(3), machine.calls_of(2) / 4) << "the hopeless leave early";
}

TEST(Search, KeepsThePlanWhereNothingIsFasterBeyondTheNoise) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    FakeMachine same({100, 100, 100, 100, 100, 100}, 0.2, seed);
    EXPECT_EQ(search(same.timed(), same.count(), kShort).best, 0) << seed;
  }
  FakeMachine slower({100, 101, 130}, 0.01);
  EXPECT_EQ(search(slower.timed(), slower.count(), kShort).best, 0);
  FakeMachine within({100, 99.7}, 0.0);
  EXPECT_EQ(search(within.timed(), within.count(), kShort).best, 0) << "0.3 % is no win";
}

TEST(Search, NeverChoosesASlowerOne) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    FakeMachine machine({100, 102, 104, 101, 103, 102}, 0.5, seed);
    EXPECT_EQ(search(machine.timed(), machine.count(), kShort).best, 0) << seed;
  }
}

TEST(Search, LuckOfTheRoundsChoosesNothing) {
  FakeMachine machine({100, 110}, 0.01);
  machine.flatter(1, 6, 0.5);  // in all the rounds that so short a time has room for
  const TunerResult r = search(machine.timed(), machine.count(), {.seconds = 0, .least_rounds = 6});
  EXPECT_EQ(r.best, 0);
  EXPECT_GT(r.duel.ratio, 1.05) << "it was fought against the plan, and lost";
}

TEST(Search, MakesTheLeastRoundsWhenTimeIsUp) {
  FakeMachine machine({1e7, 2e7}, 0);
  const TunerResult r = search(machine.timed(), machine.count(), {.seconds = 0.001});
  EXPECT_EQ(r.rounds, 3);
  EXPECT_EQ(r.duel.pairs, 7);
}

TEST(Search, EndsWithItsTime) {
  FakeMachine machine({100, 90, 95}, 0.01);
  search(machine.timed(), machine.count(), {.seconds = 0.01});
  EXPECT_LT(machine.timed().elapsed(), 1.1e4) << "10 ms, and the last round";
}

TEST(Search, OneCandidateIsThePlan) {
  FakeMachine machine({100}, 0.1);
  const TunerResult r = search(machine.timed(), 1, kShort);
  EXPECT_EQ(r.best, 0);
  EXPECT_NEAR(r.duel.ratio, 1, 0.1);
  EXPECT_THROW(search(machine.timed(), 0, kShort), InternalError);
}

TEST(Search, TheOrderWithinARoundChanges) {
  FakeMachine machine({100, 100, 100}, 0);
  search(machine.timed(), machine.count(), {.seconds = 0});
  const std::vector<std::int64_t>& calls = machine.calls();
  std::set<std::int64_t> first;
  for (std::size_t round = 0; round < 3; ++round) first.insert(calls[3 * round]);
  EXPECT_EQ(first.size(), 3u);
}

TEST(Search, EqualNumbersGiveEqualChoices) {
  FakeMachine one({100, 90, 89}, 0.3, 7), other({100, 90, 89}, 0.3, 7);
  const TunerResult a = search(one.timed(), 3, kShort), b = search(other.timed(), 3, kShort);
  EXPECT_EQ(a.best, b.best);
  EXPECT_EQ(one.calls(), other.calls()) << "ranks that merge their times run in step";
}

TEST(Duel, TellsFasterFromSlower) {
  FakeMachine machine({100, 90, 110}, 0.02);
  const Duel faster = duel(machine.timed(), 1, 0.01, {});
  EXPECT_TRUE(faster.faster());
  EXPECT_FALSE(faster.slower());
  const Duel slower = duel(machine.timed(), 2, 0.01, {});
  EXPECT_FALSE(slower.faster());
  EXPECT_TRUE(slower.slower());
}

// Three calls: number 2 has its choice, number 0 kept its plan, number 1 is judged.
TEST(DuelSides, DifferInTheJudgedCallAlone) {
  const auto tile = [](std::int64_t t) { return Tactic(TileTactic{t, t}); };
  const std::vector<Tactic> plans = {tile(8), tile(8), tile(8)};
  const std::vector<Tactic> chosen = {tile(8), tile(8), tile(64)};
  const std::vector<Tactic> here = {tile(16), tile(16), tile(16)};
  const DuelSides sides = duel_sides(plans, chosen, here, 1, tile(128));
  EXPECT_EQ(sides.plan, (std::vector<Tactic>{tile(16), tile(16), tile(64)}));
  EXPECT_EQ(sides.chosen, (std::vector<Tactic>{tile(16), tile(128), tile(64)}));
  EXPECT_THROW(duel_sides(plans, chosen, here, 3, tile(8)), InternalError);
  EXPECT_THROW(duel_sides(plans, {}, here, 1, tile(8)), InternalError);
}

}  // namespace
}  // namespace switchyard::tune
