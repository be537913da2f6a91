// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, over the memory that MPI's groups use, and one of them is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>
#include <fstream>

#include "tests/cases/exchange_case.h"
#include "tests/comm/process_ranks.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"

namespace switchyard::comm {
namespace {

using testing::HasSubstr;

const Strategy* const kBuilt[] = {&all_gather(), &one_sided(), &two_sided(), &expert_major(),
                                  &compact()};
constexpr int kRanks = 3;
constexpr int kDeadRanks[] = {1, 0, 2};
constexpr std::int64_t kTokens = 6;

ExchangeShape shape_of_test() { return test::exchange_shape(kRanks, 6, 6, kTokens, 32); }

/// Every token has a choice at every rank.
test::ExchangeInput dense_input(int rank, int round) {
  test::ExchangeInput in(shape_of_test(), rank, kTokens, round, test::PayloadKind::kBf16,
                         Wire::kBf16);
  for (std::size_t i = 0; i < in.ids.size(); ++i) {
    in.ids[i] = std::int32_t(i % 6);
    in.weights[i] = 0.5F + float(i) / 64;
  }
  return in;
}

bool one_exchange(Exchange& exchange, const Strategy& strategy, int rank, int round) {
  const test::ExchangeInput in = dense_input(rank, round);
  Ticket ticket = exchange.dispatch(in.args());
  test::serve(ticket.received(), in.shape, strategy.contract, in.payload, rank);
  test::SumCollector got(in.tokens, in.shape.hidden);
  exchange.combine(std::move(ticket), got.sink());
  return test::same_bits(got.sums, test::expected_sums(in, strategy.contract));
}

/// Whether a mapping of shared memory of ours is left in this process.
bool maps_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("/switchyard.") != std::string::npos) return true;
  return false;
}

TEST(Processes, ANameThatIsLeftIsSeen) {
  EXPECT_FALSE(test::left_in_dev_shm({}));
  {
    const PosixMemory mine = PosixMemory::create(4096);
    EXPECT_TRUE(test::left_in_dev_shm({}));
    EXPECT_TRUE(maps_shared_memory());
  }
  // One that a process leaves behind when it is killed.
  const auto out = test::on_process_ranks(2, test::long_deadlines(), [&](Group& g) {
    g.barrier("both");
    if (g.rank() == 1) {
      const PosixMemory mine = PosixMemory::create(4096);
      g.all_gather(mine.name(), "name");
      raise(SIGKILL);
    }
    return g.all_gather("", "name")[1];
  });
  EXPECT_EQ(out[1].signal, SIGKILL);
  EXPECT_TRUE(test::left_in_dev_shm(out));
  ASSERT_EQ(shm_unlink(out[0].text.c_str()), 0) << out[0].text;
  EXPECT_FALSE(test::left_in_dev_shm(out));
}

TEST(Processes, GiveTheSameBitsAndLeaveNothing) {
  for (const Strategy* strategy : kBuilt) {
    const auto out = test::on_process_ranks(kRanks, test::long_deadlines(), [&](Group& g) {
      bool right = true;
      {
        auto exchange = make_exchange(*strategy, g, shape_of_test());
        for (int round = 0; round < 5; ++round)
          right = right && one_exchange(*exchange, *strategy, g.rank(), round);
        right = right && maps_shared_memory();
      }
      g.barrier("end");
      return std::string(right ? "right" : "wrong");
    });
    for (const test::ProcessOutcome& o : out) EXPECT_EQ(o.text, "right") << strategy->name;
    EXPECT_FALSE(test::left_in_dev_shm(out)) << strategy->name;
  }
  EXPECT_FALSE(maps_shared_memory());
}

/// Kills its process in the second exchange.
struct KilledAt {
  FaultPoint point;
  int round = 0;
  FaultHook hook() {
    return {this, [](void* self, FaultPoint at, MessageHeader*) {
              const auto& k = *static_cast<KilledAt*>(self);
              if (at == k.point && k.round == 1) raise(SIGKILL);
            }};
  }
};

// The survivors end within the serving deadline and name the dead rank; the process that watched
// them can form a group of threads as if nothing had been.
TEST(Processes, AKilledOneIsNamedByItsPeers) {
  constexpr FaultPoint kPoints[] = {FaultPoint::kAfterData, FaultPoint::kBeforeShares};
  int turn = 0;
  for (const Strategy* strategy : kBuilt) {
    const FaultPoint point = kPoints[turn % 2];
    const int dead = kDeadRanks[turn++ % 3];
    const auto start = std::chrono::steady_clock::now();
    const auto out = test::on_process_ranks(kRanks, test::short_serving(), [&](Group& g) {
      KilledAt killed{point};
      auto exchange = make_exchange(*strategy, g, shape_of_test(),
                                    {.hook = g.rank() == dead ? killed.hook() : FaultHook{}});
      for (; killed.round < 3; ++killed.round)
        one_exchange(*exchange, *strategy, g.rank(), killed.round);
      return std::string("noticed nothing");
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    for (int r = 0; r < kRanks; ++r) {
      const test::ProcessOutcome& o = out[std::size_t(r)];
      EXPECT_EQ(o.signal, r == dead ? SIGKILL : 0) << strategy->name;
      if (r == dead) continue;
      EXPECT_THAT(o.text, testing::AllOf(HasSubstr("error: rank "),
                                         HasSubstr(cat(" for rank ", dead, " in ")),
                                         HasSubstr("deadline 3.0 s")))
          << strategy->name;
    }
    EXPECT_FALSE(test::left_in_dev_shm(out)) << strategy->name;
    test::expect_all_well(test::on_thread_ranks(kRanks, test::long_deadlines(), [&](Group& g) {
      auto exchange = make_exchange(*strategy, g, shape_of_test());
      EXPECT_TRUE(one_exchange(*exchange, *strategy, g.rank(), 0)) << strategy->name;
    }));
  }
  EXPECT_FALSE(maps_shared_memory());
}

}  // namespace
}  // namespace switchyard::comm
