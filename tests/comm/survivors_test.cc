// SPDX-License-Identifier: Apache-2.0
// A rank dies; the others form a new group and go on without its slots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

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
constexpr int kRanks = 4, kDead = 1;
constexpr std::int64_t kTokens = 9;
const std::vector<int> kLive = {0, 2, 3};

// The first exchange has the long budget; the death comes in the second.
Deadlines deadlines() {
  return {.warm_up = std::chrono::seconds(120), .serving = std::chrono::milliseconds(900)};
}

ExchangeShape shape_of_test() { return test::exchange_shape(kRanks, 10, 4, kTokens, 48); }

test::ExchangeInput input_of(int rank, int round) {
  return {shape_of_test(), rank, kTokens, round, test::PayloadKind::kFp8Block, Wire::kBf16};
}

std::int64_t skip_dead(test::ExchangeInput& in) {
  const Shard lost = ep_shard(in.shape.slots, in.shape.ep, kDead);
  std::int64_t out = 0;
  for (std::int32_t& id : in.ids)
    if (id >= lost.begin && id < lost.begin + lost.size) {
      id = -1;
      ++out;
    }
  return out;
}

/// One exchange; with `survivors` the dead rank's choices must count as skipped. `rank` is that of
/// the whole group. Returns what is wrong.
std::string exchange_once(Exchange& exchange, const Strategy& strategy, int rank, int round,
                          bool survivors) {
  const test::ExchangeInput in = input_of(rank, round);
  Ticket ticket = exchange.dispatch(in.args());
  const std::int64_t reported = ticket.received().skipped_choices;
  test::serve(ticket.received(), in.shape, strategy.contract, in.payload, rank);
  test::SumCollector got(in.tokens, in.shape.hidden);
  exchange.combine(std::move(ticket), got.sink());
  test::ExchangeInput judged = in;
  const std::int64_t lost = survivors ? skip_dead(judged) : 0;
  if (survivors && lost == 0) return "the case has no choice of the dead rank";
  if (reported != lost) return cat(reported, " choices are reported, ", lost, " were lost");
  if (!test::same_bits(got.sums, test::expected_sums(judged, strategy.contract)))
    return cat("rank ", rank, " round ", round, ": sums differ");
  if (survivors && test::same_bits(got.sums, test::expected_sums(in, strategy.contract)))
    return "the control: the whole group's sums are the same";
  return exchange.canaries_intact() ? "" : "a guard is damaged";
}

struct DiesInRoundOne {
  bool by_signal;
  int round = 0;
  FaultHook hook() {
    return {this, [](void* self, FaultPoint at, MessageHeader*) {
              const auto& d = *static_cast<DiesInRoundOne*>(self);
              if (at != FaultPoint::kAfterData || d.round != 1) return;
              if (d.by_signal) raise(SIGKILL);
              throw std::string("dead");
            }};
  }
};

/// A rank's life: exchanges, the death of rank 1, and the life of the survivors.
std::string live_on(Group& g, const Strategy& strategy, bool by_signal) {
  const int rank = g.rank();
  DiesInRoundOne dies{by_signal};
  try {
    auto exchange = make_exchange(strategy, g, shape_of_test(),
                                  {.hook = rank == kDead ? dies.hook() : FaultHook{}});
    for (; dies.round < 3; ++dies.round) {
      std::string wrong = exchange_once(*exchange, strategy, rank, dies.round, false);
      if (!wrong.empty()) return wrong;
    }
    return "nobody noticed";
  } catch (const PeerError& e) {
    if (std::string(e.what()).find("for rank 1 in ") == std::string::npos) return e.what();
  } catch (const std::string&) {
    return "dead";
  }
  Group left = g.survivors(kLive);
  if (left.size() != 3 || left.rank() != (rank == 0 ? 0 : rank - 1) || left.aborted())
    return cat("rank ", rank, " is ", left.rank(), " of ", left.size());
  auto exchange = make_exchange(strategy, left, shape_of_test(), {.live = kLive});
  for (int round = 5; round < 9; ++round) {
    std::string wrong = exchange_once(*exchange, strategy, rank, round, true);
    if (!wrong.empty()) return wrong;
  }
  left.barrier("end");
  return "went on";
}

TEST(Survivors, ThreadsGoOnWithEveryStrategy) {
  for (const Strategy* strategy : kBuilt) {
    std::vector<std::string> texts(kRanks);
    test::expect_all_well(on_thread_ranks(kRanks, deadlines(), [&](Group& g) {
      texts[std::size_t(g.rank())] = live_on(g, *strategy, false);
    }));
    for (int r = 0; r < kRanks; ++r)
      EXPECT_EQ(texts[std::size_t(r)], r == kDead ? "dead" : "went on") << strategy->name;
  }
}

TEST(Survivors, ProcessesGoOnAfterOneIsKilled) {
  for (const Strategy* strategy : {&one_sided(), &two_sided()}) {
    const auto out = test::on_process_ranks(kRanks, deadlines(),
                                            [&](Group& g) { return live_on(g, *strategy, true); });
    for (std::size_t r = 0; r < out.size(); ++r) {
      EXPECT_EQ(out[r].signal, int(r) == kDead ? SIGKILL : 0);
      EXPECT_EQ(out[r].text, int(r) == kDead ? "" : "went on") << strategy->name;
    }
  }
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
}

TEST(Survivors, OneThatDoesNotComeIsNamedAndAGroupIsFollowedOnce) {
  const Deadlines brief{.warm_up = std::chrono::milliseconds(900),
                        .serving = std::chrono::milliseconds(900)};
  const auto out = on_thread_ranks(3, brief, [](Group& g) {
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
