// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "switchyard/base/check.h"
#include "tests/cases/exchange_case.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/soak.h"

namespace switchyard::comm {
namespace {

using test::expect_all_well;
using test::long_deadlines;
using test::on_thread_ranks;
using test::Outcomes;
using test::PayloadKind;
using test::text_of;
using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr std::int64_t kTokens = 4;

const Strategy* const kBuilt[] = {&all_gather(), &one_sided(), &two_sided(), &expert_major(),
                                  &compact()};

ExchangeShape shape_of_test() { return test::exchange_shape(kRanks, 6, 6, kTokens, 32); }

/// Every token goes to every rank, so that every rank waits for every other.
test::ExchangeInput dense_input(int rank, int round = 0) {
  test::ExchangeInput in(shape_of_test(), rank, kTokens, round, PayloadKind::kBf16, Wire::kBf16);
  for (std::size_t i = 0; i < in.ids.size(); ++i) {
    in.ids[i] = std::int32_t(i % 6);
    in.weights[i] = 0.5F + float(i) / 64;
  }
  return in;
}

void one_exchange(Exchange& exchange, const Strategy& strategy, const test::ExchangeInput& in,
                  int rank) {
  Ticket ticket = exchange.dispatch(in.args());
  test::serve(ticket.received(), in.shape, strategy.contract, in.payload, rank);
  test::SumCollector got(in.tokens, in.shape.hidden);
  exchange.combine(std::move(ticket), got.sink());
  EXPECT_EQ(got.sums, test::expected_sums(in, strategy.contract)) << strategy.name;
}

/// After a provoked error: a new group of the same process exchanges as if nothing had been.
void good_exchange(const Strategy& strategy) {
  expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
    auto exchange = make_exchange(strategy, g, shape_of_test());
    one_exchange(*exchange, strategy, dense_input(g.rank()), g.rank());
  }));
}

/// Thrown by a rank that was dead until the others noticed.
struct RankDies {};

/// Ends its rank at a point of a round.
struct DiesAt {
  FaultPoint point;
  int last_round;
  const Group* group;
  int round = 0;
  FaultHook hook() {
    return {this, [](void* self, FaultPoint at, MessageHeader*) {
              auto& d = *static_cast<DiesAt*>(self);
              if (at != d.point || d.round != d.last_round) return;
              test::play_dead(*d.group);
              throw RankDies{};
            }};
  }
};

/// Rank 1 of three dies; the others go on until they notice.
Outcomes run_until_death(const Strategy& strategy, FaultPoint point, int round,
                         const Deadlines& deadlines) {
  return on_thread_ranks(kRanks, deadlines, [&](Group& g) {
    DiesAt dies{point, round, &g};
    auto exchange = make_exchange(strategy, g, shape_of_test(),
                                  {.hook = g.rank() == 1 ? dies.hook() : FaultHook{}});
    try {
      for (; dies.round < round + 2; ++dies.round)
        one_exchange(*exchange, strategy, dense_input(g.rank(), dies.round), g.rank());
    } catch (const RankDies&) {
      return;
    }
    ADD_FAILURE() << strategy.name << ": rank " << g.rank() << " noticed nothing";
  });
}

/// Where the others stand when a rank dies at `point`. A rank that dies behind its last word of a
/// phase is missed in the next one.
std::string phase_of_death(const Strategy& strategy, FaultPoint point) {
  if (point == FaultPoint::kBeforeShares) return "combine";
  // The rows of two_sided have all moved before this point.
  if (point == FaultPoint::kAfterData && &strategy == &two_sided()) return "combine";
  return "dispatch";
}

void expect_death_of_rank_1(const Outcomes& out, const std::string& phase,
                            const std::string& deadline, const std::string& where) {
  EXPECT_FALSE(out[1]) << where;
  for (std::size_t r : {0U, 2U}) {
    ASSERT_TRUE(out[r]) << where;
    try {
      std::rethrow_exception(out[r]);
    } catch (const PeerError& e) {
      EXPECT_THAT(e.what(), HasSubstr(cat("for rank 1 in ", phase, " (deadline ", deadline)))
          << where;
      EXPECT_EQ(e.facts().rank, int(r)) << where;
      EXPECT_EQ(e.facts().phase, phase) << where;
      // The first that loses patience names the dead rank; the other hears it from that one.
      EXPECT_EQ(e.facts().peer,
                std::string(e.what()).starts_with(cat("rank ", r, " waited")) ? 1 : 2 - int(r))
          << where;
    }
  }
}

constexpr FaultPoint kPoints[] = {FaultPoint::kBeforeData, FaultPoint::kAfterData,
                                  FaultPoint::kHeader, FaultPoint::kBeforeShares,
                                  FaultPoint::kAfterShares};

// The first exchange has the long budget, the ones behind it the short one: a rank that dies in the
// second is missed long before the warm-up's budget is over.
TEST(Fault, ARankThatDiesIsNamedWithinTheServingDeadline) {
  int turn = 0;
  for (const Strategy* strategy : kBuilt)
    for (FaultPoint point : kPoints) {
      if (!test::is_soak() && turn++ % 3 != 0) continue;  // each costs a deadline
      const std::string where = cat(strategy->name, " at point ", int(point));
      const auto start = std::chrono::steady_clock::now();
      const Outcomes out = run_until_death(*strategy, point, 1, test::short_serving());
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60)) << where;
      expect_death_of_rank_1(out, phase_of_death(*strategy, point), "3.0 s", where);
    }
  for (const Strategy* strategy : kBuilt) good_exchange(*strategy);
}

// And the other way round.
TEST(Fault, ARankThatDiesInTheFirstExchangeHasTheWarmUpDeadline) {
  for (const Strategy* strategy : {&one_sided(), &two_sided(), &compact()}) {
    const FaultPoint point =
        strategy == &compact() ? FaultPoint::kBeforeShares : FaultPoint::kBeforeData;
    const Outcomes out = run_until_death(
        *strategy, point, 0,
        {.warm_up = std::chrono::milliseconds(3100), .serving = std::chrono::seconds(120)});
    expect_death_of_rank_1(out, phase_of_death(*strategy, point), "3.1 s",
                           std::string(strategy->name));
  }
  for (const Strategy* strategy : kBuilt) good_exchange(*strategy);
}

TEST(Fault, ALateRankWithinTheDeadlineHarmsNobody) {
  for (const Strategy* strategy : kBuilt)
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      FaultHook late{nullptr, [](void*, FaultPoint, MessageHeader*) {
                       std::this_thread::sleep_for(std::chrono::milliseconds(30));
                     }};
      auto exchange = make_exchange(*strategy, g, shape_of_test(),
                                    {.hook = g.rank() == 2 ? late : FaultHook{}});
      for (int round = 0; round < 2; ++round)
        one_exchange(*exchange, *strategy, dense_input(g.rank(), round), g.rank());
    }));
}

/// One field of a header on its way, damaged; the digest is as it was, but for its own turn.
struct Damage {
  const char* name;
  void (*spoil)(MessageHeader& header);
};
constexpr Damage kDamages[] = {{"magic", [](MessageHeader& h) { h.magic ^= 1; }},
                               {"sequence", [](MessageHeader& h) { h.sequence += 2; }},
                               {"rows", [](MessageHeader& h) { h.rows ^= 2; }},
                               {"row_bytes", [](MessageHeader& h) { h.row_bytes ^= 1; }},
                               {"scale_bytes", [](MessageHeader& h) { h.scale_bytes ^= 4; }},
                               {"wire", [](MessageHeader& h) { h.wire ^= 1; }},
                               {"has_stats", [](MessageHeader& h) { h.has_stats = !h.has_stats; }},
                               {"more", [](MessageHeader& h) { h.more = !h.more; }},
                               {"digest", [](MessageHeader& h) { h.digest ^= 0x100; }}};

TEST(Fault, ADamagedHeaderIsNoticedWhicheverFieldItIs) {
  static_assert(sizeof(MessageHeader) == std::size(kDamages) * 4, "a field has no case");
  for (const Strategy* strategy : kBuilt) {
    for (const Damage& damage : kDamages) {
      Outcomes out = on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
        FaultHook hook{const_cast<Damage*>(&damage),
                       [](void* self, FaultPoint point, MessageHeader* header) {
                         if (point == FaultPoint::kHeader)
                           static_cast<const Damage*>(self)->spoil(*header);
                       }};
        auto exchange = make_exchange(*strategy, g, shape_of_test(),
                                      {.hook = g.rank() == 1 ? hook : FaultHook{}});
        one_exchange(*exchange, *strategy, dense_input(g.rank()), g.rank());
      });
      for (const std::exception_ptr& o : out)
        EXPECT_THAT(text_of<PeerError>(o), HasSubstr("header of rank 1 in dispatch is damaged"))
            << strategy->name << " " << damage.name;
    }
    good_exchange(*strategy);
  }
}

/// One argument in which rank 2 differs from the others.
struct Difference {
  const char* text;
  void (*spoil)(DispatchArgs& args);
};

TEST(Fault, RanksThatDifferInACallAreToldSo) {
  const Difference kDifferences[] = {
      {" has row_bytes = ", [](DispatchArgs& a) { a.row_bytes = 48; }},
      {" has scale_bytes = ", [](DispatchArgs& a) { a.scale_bytes = 1; }},
      {" has wire form = ", [](DispatchArgs& a) { a.wire = Wire::kFp8; }},
      {" has statistics = ", [](DispatchArgs& a) { a.stats = nullptr; }}};
  for (const Strategy* strategy : kBuilt) {
    for (const Difference& difference : kDifferences) {
      Outcomes out = on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
        auto exchange = make_exchange(*strategy, g, shape_of_test());
        const test::ExchangeInput in = dense_input(g.rank());
        DispatchArgs args = in.args();
        if (g.rank() == 2) difference.spoil(args);
        exchange->dispatch(args);
      });
      int told = 0;
      for (const std::exception_ptr& o : out) {
        ASSERT_TRUE(o) << strategy->name << difference.text;
        if (text_of<UsageError>(o).find(difference.text) != std::string::npos) ++told;
      }
      // The rest hear of it through the abort cell, or see it too.
      EXPECT_GE(told, 1) << strategy->name << difference.text;
    }
    good_exchange(*strategy);
  }
}

TEST(Fault, RanksThatDifferAtCreationSeeBothSides) {
  for (const Strategy* strategy : kBuilt) {
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      ExchangeShape shape = shape_of_test();
      if (g.rank() == 2) shape.capacity = 9;
      try {
        make_exchange(*strategy, g, shape);
        ADD_FAILURE() << strategy->name;
      } catch (const UsageError& e) {
        EXPECT_THAT(e.what(), HasSubstr("rank 0 has capacity = '4', rank 2 has capacity = '9'"));
      }
      // The group is still in step.
      auto exchange = make_exchange(*strategy, g, shape_of_test());
      one_exchange(*exchange, *strategy, dense_input(g.rank()), g.rank());
    }));
  }
}

/// What rank 1 does wrong, and what it is told.
struct Misuse {
  const char* text;
  void (*spoil)(test::ExchangeInput& in);
};

TEST(Fault, BadArgumentsOfOneRankEndTheCallOnAll) {
  const Misuse kMisuses[] = {
      {"5 tokens on rank 1 exceeds the capacity 4",
       [](test::ExchangeInput& in) {
         in = test::ExchangeInput(in.shape, 1, kTokens + 1, 0, PayloadKind::kBf16, Wire::kBf16);
       }},
      {"has id 6; legal are 0..5 and -1", [](test::ExchangeInput& in) { in.ids[3] = 6; }},
      {"has id -2; legal are 0..5 and -1", [](test::ExchangeInput& in) { in.ids[0] = -2; }},
      {"rows of 65 bytes", [](test::ExchangeInput& in) { in.payload.row_bytes = 65; }}};
  for (const Strategy* strategy : kBuilt) {
    for (const Misuse& misuse : kMisuses) {
      Outcomes out = on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
        auto exchange = make_exchange(*strategy, g, shape_of_test());
        test::ExchangeInput in = dense_input(g.rank());
        if (g.rank() == 1) misuse.spoil(in);
        one_exchange(*exchange, *strategy, in, g.rank());
      });
      EXPECT_THAT(text_of<UsageError>(out[1]), HasSubstr(misuse.text)) << strategy->name;
      for (std::size_t r : {0U, 2U})
        EXPECT_THAT(text_of<PeerError>(out[r]),
                    testing::AllOf(HasSubstr("rank 1 gave up ("), HasSubstr(misuse.text)));
    }
    good_exchange(*strategy);
  }
}

TEST(Fault, RepeatedIdsDoNotOverrunExpertMajorBlocks) {
  Outcomes out = on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
    auto exchange = make_exchange(expert_major(), g, shape_of_test());
    test::ExchangeInput in = dense_input(g.rank());
    if (g.rank() == 1) std::fill(in.ids.begin(), in.ids.end(), 5);
    one_exchange(*exchange, expert_major(), in, g.rank());
  });
  EXPECT_THAT(text_of<UsageError>(out[1]), HasSubstr("slot 5 is chosen 5 times"));
  good_exchange(expert_major());
}

/// Bytes of this process's writable mappings, and its open descriptors.
struct Holdings {
  std::int64_t bytes = 0, descriptors = 0;
};

Holdings holdings() {
  using It = std::filesystem::directory_iterator;
  Holdings out;
  out.descriptors = std::distance(It("/proc/self/fd"), It());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uint64_t begin = 0, end = 0;
    char mode[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, mode) == 3 && mode[1] == 'w')
      out.bytes += std::int64_t(end - begin);
  }
  return out;
}

// Created, aborted in the middle, destroyed: nothing of it stays. Rows are wide, so that what any
// strategy shares or holds by itself would exceed the tolerance if it stayed behind each pass (the
// tolerance is for the heap of new threads).
TEST(Fault, NothingIsLeftMappedOrOpen) {
  constexpr std::int64_t kTolerance = std::int64_t(24) << 20;
  constexpr int kPasses = 12;
  const ExchangeShape shape = test::exchange_shape(kRanks, 6, 6, 250, 4096);
  auto pass = [&] {
    for (const Strategy* strategy : kBuilt)
      on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
        auto exchange = make_exchange(*strategy, g, shape);
        if (g.rank() == 0) {
          g.abort("test");
          return;
        }
        // One token: a sanitizer keeps what the heap gave back.
        const test::ExchangeInput in(shape, g.rank(), 1, 0, PayloadKind::kBf16, Wire::kBf16);
        exchange->dispatch(in.args());
      });
  };
  pass();  // what the first threads of a process keep
  const Holdings before = holdings();
  for (const Strategy* strategy : kBuilt)  // the control
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      auto exchange = make_exchange(*strategy, g, shape);
      g.barrier("test");
      if (g.rank() == 0) {
        const auto shared = std::int64_t(exchange->memory_bytes().first);
        EXPECT_GE(holdings().bytes - before.bytes, shared) << strategy->name << " is seen";
        EXPECT_GT(kPasses * shared, 2 * kTolerance) << strategy->name << " would be missed";
      }
      g.barrier("test");
    }));
  for (int i = 0; i < kPasses; ++i) pass();
  EXPECT_LT(holdings().bytes - before.bytes, kTolerance);
  EXPECT_EQ(holdings().descriptors, before.descriptors);
}

}  // namespace
}  // namespace switchyard::comm
