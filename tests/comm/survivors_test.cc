// SPDX-License-Identifier: Apache-2.0
// A rank dies; the others form a new group and go on without its slots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <span>
#include <thread>

#include "switchyard/base/check.h"
#include "switchyard/core/shard.h"
#include "tests/cases/exchange_case.h"
#include "tests/comm/process_ranks.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"

namespace switchyard::comm {
namespace {

using test::long_deadlines;
using test::on_thread_ranks;
using test::text_of;
using testing::HasSubstr;

const Strategy* const kBuilt[] = {&all_gather(), &one_sided(), &two_sided(), &expert_major(),
                                  &compact()};
constexpr int kRanks = 4;
constexpr int kDeadRanks[] = {1, 0, 3};
constexpr std::int64_t kTokens = 9;

/// All ranks but those two; -1: nobody.
std::vector<int> without(int dead, int other = -1) {
  std::vector<int> out;
  for (int r = 0; r < kRanks; ++r)
    if (r != dead && r != other) out.push_back(r);
  return out;
}

ExchangeShape shape_of_test() { return test::exchange_shape(kRanks, 10, 4, kTokens, 48); }

test::ExchangeInput input_of(int rank, int round) {
  return {shape_of_test(), rank, kTokens, round, test::PayloadKind::kFp8Block, Wire::kBf16};
}

std::int64_t skip_rank(test::ExchangeInput& in, int dead) {
  const Shard lost = ep_shard(in.shape.slots, in.shape.ep, dead);
  std::int64_t out = 0;
  for (std::int32_t& id : in.ids)
    if (id >= lost.begin && id < lost.begin + lost.size) {
      id = -1;
      ++out;
    }
  return out;
}

/// One exchange; the choices of ranks that are `dead` must count as skipped. `rank` is that of the
/// whole group. Returns what is wrong.
std::string exchange_once(Exchange& exchange, const Strategy& strategy, int rank, int round,
                          std::span<const int> dead) {
  const test::ExchangeInput in = input_of(rank, round);
  Ticket ticket = exchange.dispatch(in.args());
  const std::int64_t reported = ticket.received().skipped_choices;
  test::serve(ticket.received(), in.shape, strategy.contract, in.payload, rank);
  test::SumCollector got(in.tokens, in.shape.hidden);
  exchange.combine(std::move(ticket), got.sink());
  test::ExchangeInput judged = in;
  std::int64_t lost = 0;
  for (int d : dead) lost += skip_rank(judged, d);
  if (!dead.empty() && lost == 0) return "the case has no choice of the dead rank";
  if (reported != lost) return cat(reported, " choices are reported, ", lost, " were lost");
  if (!test::same_bits(got.sums, test::expected_sums(judged, strategy.contract)))
    return cat("rank ", rank, " round ", round, ": sums differ");
  if (!dead.empty() && test::same_bits(got.sums, test::expected_sums(in, strategy.contract)))
    return "the control: the whole group's sums are the same";
  return exchange.canaries_intact() ? "" : "a guard is damaged";
}

struct DiesInRoundOne {
  bool by_signal;
  const Group* group;
  int round = 0;
  FaultHook hook() {
    return {this, [](void* self, FaultPoint at, MessageHeader*) {
              const auto& d = *static_cast<DiesInRoundOne*>(self);
              if (at != FaultPoint::kAfterData || d.round != 1) return;
              if (d.by_signal) raise(SIGKILL);
              test::play_dead(*d.group);
              throw std::string("dead");
            }};
  }
};

/// A rank's life until rank `dead` dies in its second exchange: "dead" or "left", or what is wrong.
std::string live_until_death(Group& g, const Strategy& strategy, int dead, bool by_signal) {
  DiesInRoundOne dies{by_signal, &g};
  try {
    auto exchange = make_exchange(strategy, g, shape_of_test(),
                                  {.hook = g.rank() == dead ? dies.hook() : FaultHook{}});
    for (; dies.round < 3; ++dies.round) {
      std::string wrong = exchange_once(*exchange, strategy, g.rank(), dies.round, {});
      if (!wrong.empty()) return wrong;
    }
    return "nobody noticed";
  } catch (const PeerError& e) {
    return std::string(e.what()).find(cat("for rank ", dead, " in ")) == std::string::npos
               ? e.what()
               : "left";
  } catch (const std::string& text) {
    return text;
  }
}

/// Exchanges in the group that `live` ranks formed; "went on", or what is wrong.
std::string exchange_in(Group& left, const Strategy& strategy, int rank,
                        const std::vector<int>& live, const std::vector<int>& dead) {
  const auto seat = std::find(live.begin(), live.end(), rank) - live.begin();
  if (left.size() != int(live.size()) || left.rank() != int(seat) || left.aborted())
    return cat("rank ", rank, " is ", left.rank(), " of ", left.size());
  auto exchange = make_exchange(strategy, left, shape_of_test(), {.live = live});
  for (int round = 5; round < 9; ++round) {
    std::string wrong = exchange_once(*exchange, strategy, rank, round, dead);
    if (!wrong.empty()) return wrong;
  }
  left.barrier("end");
  return "went on";
}

std::string live_on(Group& g, const Strategy& strategy, int dead, bool by_signal) {
  std::string fate = live_until_death(g, strategy, dead, by_signal);
  if (fate != "left") return fate;
  const std::vector<int> live = without(dead);
  Group left = g.survivors(live, long_deadlines());
  return exchange_in(left, strategy, g.rank(), live, {dead});
}

TEST(Survivors, ThreadsGoOnWithEveryStrategy) {
  int turn = 0;
  for (const Strategy* strategy : kBuilt) {
    const int dead = kDeadRanks[turn++ % 3];
    std::vector<std::string> texts(kRanks);
    test::expect_all_well(on_thread_ranks(kRanks, test::short_serving(), [&](Group& g) {
      texts[std::size_t(g.rank())] = live_on(g, *strategy, dead, false);
    }));
    for (int r = 0; r < kRanks; ++r)
      EXPECT_EQ(texts[std::size_t(r)], r == dead ? "dead" : "went on") << strategy->name;
  }
}

TEST(Survivors, ProcessesGoOnAfterOneIsKilled) {
  int turn = 0;
  for (const Strategy* strategy : {&one_sided(), &two_sided(), &compact()}) {
    const int dead = kDeadRanks[turn++];
    const auto out = test::on_process_ranks(
        kRanks, test::short_serving(), [&](Group& g) { return live_on(g, *strategy, dead, true); });
    for (std::size_t r = 0; r < out.size(); ++r) {
      EXPECT_EQ(out[r].signal, int(r) == dead ? SIGKILL : 0);
      EXPECT_EQ(out[r].text, int(r) == dead ? "" : "went on") << strategy->name;
    }
    EXPECT_FALSE(test::left_in_dev_shm(out)) << strategy->name;
  }
}

// A second rank dies while the survivors of the first are forming their group: the attempt fails
// on all that are left, and they form one without it too.
TEST(Survivors, AreFormedAgainWhenAnotherDiesMeanwhile) {
  constexpr int kFirst = 1, kSecond = 3;
  const std::vector<int> three = without(kFirst), two = without(kFirst, kSecond);
  const auto out = test::on_process_ranks(kRanks, test::short_serving(), [&](Group& g) {
    std::string fate = live_until_death(g, one_sided(), kFirst, true);
    if (fate != "left") return fate;
    if (g.rank() == kSecond) alarm(1);  // ends it where it waits for rank 0
    if (g.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
    try {
      g.survivors(three, Deadlines{.warm_up = std::chrono::seconds(6), .serving = {}});
      return std::string("a dead rank took its seat");
    } catch (const PeerError& e) {
      fate = e.what();
    }
    if (fate.find("formation of a group of survivors") == std::string::npos) return fate;
    Group left = g.survivors(two, long_deadlines());
    return exchange_in(left, one_sided(), g.rank(), two, {kFirst, kSecond});
  });
  EXPECT_EQ(out[kFirst].signal, SIGKILL);
  EXPECT_EQ(out[kSecond].signal, SIGALRM);
  for (int r : two) EXPECT_EQ(out[std::size_t(r)].text, "went on") << r;
  EXPECT_FALSE(test::left_in_dev_shm(out));
}

// A rank that has tried more often meets one that has tried once.
TEST(Survivors, MeetAfterDifferentNumbersOfAttempts) {
  test::expect_all_well(on_thread_ranks(3, long_deadlines(), [](Group& g) {
    if (g.rank() == 2) return;
    const Deadlines brief{.warm_up = std::chrono::milliseconds(200), .serving = {}};
    const int all[] = {0, 1, 2}, others[] = {0, 2}, both[] = {0, 1};
    if (g.rank() == 0) {
      for (int i = 0; i < 3; ++i) EXPECT_THROW(g.survivors(others, brief), PeerError);
    } else {
      EXPECT_THROW(g.survivors(all, brief), DeviceError);
    }
    for (;;) try {
        Group two = g.survivors(both, long_deadlines());
        EXPECT_EQ(two.all_gather(cat(two.rank()), "test"), (std::vector<std::string>{"0", "1"}));
        return;
      } catch (const PeerError&) {  // the other had not given its attempt up yet, or had
      } catch (const UsageError&) {
      }
  }));
}

// A second death: survivors of survivors, in one rank at last.
TEST(Survivors, CanShrinkAgain) {
  test::expect_all_well(on_thread_ranks(3, long_deadlines(), [](Group& g) {
    if (g.rank() == 2) return;
    const int both[] = {0, 1}, alone[] = {1};
    Group two = g.survivors(both);
    EXPECT_EQ(two.size(), 2);
    EXPECT_EQ(two.all_gather(cat(two.rank()), "test"), (std::vector<std::string>{"0", "1"}));
    if (two.rank() == 0) return;
    Group one = two.survivors(alone);
    EXPECT_EQ(one.size(), 1);
    one.barrier("test");
  }));
}

TEST(Survivors, RefuseWhatIsNoList) {
  struct Bad {
    const char* text;
    std::vector<int> live;
  };
  for (const Bad& bad :
       {Bad{"is not ascending within 0..2", {}}, Bad{"is not ascending within 0..2", {1, 0}},
        Bad{"is not ascending within 0..2", {0, 0, 1}}, Bad{"is not ascending within 0..2", {0, 3}},
        Bad{"is not ascending within 0..2", {-1, 0}},
        Bad{"rank 0 is not in its own list 1,2", {1, 2}}})
    test::expect_all_well(on_thread_ranks(3, long_deadlines(), [&](Group& g) {
      if (g.rank() == 0) {
        EXPECT_THAT(text_of<UsageError>([&] {
                      try {
                        g.survivors(bad.live);
                      } catch (...) {
                        return std::current_exception();
                      }
                      return std::exception_ptr();
                    }()),
                    HasSubstr(bad.text));
        EXPECT_FALSE(g.aborted()) << "a list that is refused ends nothing";
      }
      g.barrier("still in step");
    }));
}

TEST(Survivors, DifferentListsAreShownOnBothSides) {
  const auto out = on_thread_ranks(3, long_deadlines(), [](Group& g) {
    if (g.rank() == 2) return;
    const std::vector<int> mine = g.rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1};
    g.survivors(mine);
  });
  EXPECT_THAT(text_of<UsageError>(out[0]), HasSubstr("rank 0 counts on 0,1, rank 1 on 1"));
  EXPECT_FALSE(out[1]) << "that one is alone, as it said";
  test::expect_all_well(on_thread_ranks(2, long_deadlines(), [](Group& g) {
    const int both[] = {0, 1}, alone[] = {0};
    if (g.rank() == 1) return static_cast<void>(g.survivors(std::vector<int>{1}));
    EXPECT_THROW(g.survivors(both), UsageError);
    EXPECT_EQ(g.survivors(alone).size(), 1) << "it may call again";
  }));
}

TEST(Survivors, OneThatDoesNotComeIsNamedAndAGroupIsFollowedOnce) {
  const auto out = on_thread_ranks(3, test::short_deadlines(), [](Group& g) {
    const int all[] = {0, 1, 2};
    if (g.rank() != 1) g.survivors(all);
  });
  for (std::size_t r : {0U, 2U})
    EXPECT_THAT(text_of<PeerError>(out[r]),
                HasSubstr("for rank 1 in formation of a group of survivors"));
  test::expect_all_well(on_thread_ranks(1, long_deadlines(), [](Group& g) {
    const int me[] = {0};
    g.survivors(me);
    EXPECT_TRUE(g.aborted());
    EXPECT_THROW(g.survivors(me), UsageError);
  }));
}

TEST(Survivors, AnExchangeKnowsWhoTakesPart) {
  test::expect_all_well(on_thread_ranks(2, long_deadlines(), [](Group& g) {
    auto text_with = [&](ExchangeShape shape, std::vector<int> live, const Strategy& strategy) {
      try {
        make_exchange(strategy, g, shape, {.live = std::move(live)});
        return std::string("built");
      } catch (const UsageError& e) {
        return std::string(e.what());
      }
    };
    const ExchangeShape shape = shape_of_test();
    EXPECT_EQ(text_with(shape, {1, 3}, one_sided()), "built");
    EXPECT_THAT(text_with(shape, {1}, one_sided()), HasSubstr("names 1 ranks, the group has 2"));
    EXPECT_THAT(text_with(shape, {3, 1}, one_sided()), HasSubstr("live = 3,1 is not ascending"));
    EXPECT_THAT(text_with(shape, {1, 4}, one_sided()), HasSubstr("ascending within 0..3"));
    EXPECT_THAT(text_with(shape, {}, one_sided()), HasSubstr("make 4 ranks, the group has 2"));
    EXPECT_THAT(text_with(shape, {0, g.rank() + 1}, one_sided()),
                HasSubstr("rank 0 has live = '0,1', rank 1 has live = '0,2'"));
    ExchangeShape cut = shape;
    cut.tp = 2;
    EXPECT_THAT(text_with(cut, {0, 1}, all_gather()),
                HasSubstr("strategy all_gather cannot go on without some of its ranks when experts "
                          "are cut (tp = 2)"));
  }));
}

}  // namespace
}  // namespace switchyard::comm
