// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
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
using test::short_deadlines;
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

/// Thrown by a rank that dies: no error of the library's, so nothing is told to the peers.
struct RankDies {};

struct DiesAt {
  FaultPoint point;
  FaultHook hook() {
    return {this, [](void* self, FaultPoint at, MessageHeader*) {
              if (at == static_cast<DiesAt*>(self)->point) throw RankDies{};
            }};
  }
};

TEST(Fault, ARankThatDiesIsNamedWithinTheDeadline) {
  int turn = 0;
  for (const Strategy* strategy : kBuilt)
    for (FaultPoint point : {FaultPoint::kBeforeData, FaultPoint::kAfterData, FaultPoint::kHeader,
                             FaultPoint::kBeforeShares, FaultPoint::kAfterShares}) {
      if (!test::is_soak() && turn++ % 2 != 0) continue;  // each costs a deadline
      const std::string where = cat(strategy->name, " at point ", int(point));
      const auto start = std::chrono::steady_clock::now();
      Outcomes out = on_thread_ranks(kRanks, short_deadlines(), [&](Group& g) {
        DiesAt dies{point};
        auto exchange = make_exchange(*strategy, g, shape_of_test(),
                                      {.hook = g.rank() == 1 ? dies.hook() : FaultHook{}});
        try {
          for (int round = 0; round < 3; ++round)
            one_exchange(*exchange, *strategy, dense_input(g.rank(), round), g.rank());
        } catch (const RankDies&) {
          return;
        }
        ADD_FAILURE() << where << ": rank " << g.rank() << " noticed nothing";
      });
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << where;
      EXPECT_FALSE(out[1]) << where;
      for (std::size_t r : {0U, 2U}) {
        std::string text = text_of<PeerError>(out[r]);
        EXPECT_THAT(text, HasSubstr("for rank 1 in ")) << where;
        EXPECT_THAT(text, testing::AnyOf(HasSubstr("dispatch"), HasSubstr("combine"))) << where;
      }
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

TEST(Fault, ADamagedHeaderIsNoticed) {
  for (const Strategy* strategy : kBuilt) {
    Outcomes out = on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      FaultHook damage{nullptr, [](void*, FaultPoint point, MessageHeader* header) {
                         if (point == FaultPoint::kHeader) header->rows ^= 2;
                       }};
      auto exchange = make_exchange(*strategy, g, shape_of_test(),
                                    {.hook = g.rank() == 1 ? damage : FaultHook{}});
      one_exchange(*exchange, *strategy, dense_input(g.rank()), g.rank());
    });
    for (const std::exception_ptr& o : out)
      EXPECT_THAT(text_of<PeerError>(o), HasSubstr("header of rank 1 in dispatch is damaged"));
    good_exchange(*strategy);
  }
}

TEST(Fault, RanksThatDifferInACallAreToldSo) {
  for (const Strategy* strategy : kBuilt) {
    Outcomes out = on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      auto exchange = make_exchange(*strategy, g, shape_of_test());
      test::ExchangeInput in = dense_input(g.rank());
      if (g.rank() == 2) in.wire = Wire::kFp8;
      one_exchange(*exchange, *strategy, in, g.rank());
    });
    int told = 0;
    for (const std::exception_ptr& o : out) {
      ASSERT_TRUE(o) << strategy->name;
      if (text_of<UsageError>(o).find("has wire form = ") != std::string::npos) ++told;
    }
    EXPECT_GE(told, 1) << strategy->name;  // the rest hear of it through the abort cell, or see it
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

TEST(Fault, CallsOutOfOrderAreRefused) {
  for (const Strategy* strategy : kBuilt) {
    expect_all_well(on_thread_ranks(1, long_deadlines(), [&](Group& g) {
      auto exchange = make_exchange(*strategy, g, test::exchange_shape(1, 6, 6, kTokens, 32));
      test::ExchangeInput in = dense_input(0);
      Ticket first = exchange->dispatch(in.args());
      EXPECT_THROW(exchange->dispatch(in.args()), UsageError);
      test::SumCollector got(kTokens, 32);
      Ticket moved = std::move(first);
      EXPECT_THROW(exchange->combine(std::move(first), got.sink()), UsageError);
      EXPECT_TRUE(g.aborted());
    }));
    good_exchange(*strategy);
  }
}

TEST(Fault, NothingIsLeftOpen) {
  auto descriptors = [] {
    using It = std::filesystem::directory_iterator;
    return std::distance(It("/proc/self/fd"), It());
  };
  const auto before = descriptors();
  for (int i = 0; i < 5; ++i)
    for (const Strategy* strategy : kBuilt) {
      on_thread_ranks(kRanks, short_deadlines(), [&](Group& g) {
        auto exchange = make_exchange(*strategy, g, shape_of_test());
        if (g.rank() == 0) g.abort("test");
        one_exchange(*exchange, *strategy, dense_input(g.rank()), g.rank());
      });
    }
  EXPECT_EQ(descriptors(), before);
}

}  // namespace
}  // namespace switchyard::comm
