// SPDX-License-Identifier: Apache-2.0
// The acceptance matrix of the exchange: any two levels of its axes meet in a change's tests, all
// combinations in the soak.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string_view>

#include "switchyard/base/check.h"
#include "tests/cases/exchange_case.h"
#include "tests/cases/pairwise.h"
#include "tests/cases/received_check.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"
#include "tests/support/soak.h"

namespace switchyard::comm {
namespace {

const Strategy* const kStrategies[] = {&all_gather(), &one_sided(), &two_sided(), &expert_major(),
                                       &compact()};
constexpr std::int64_t kEps[] = {1, 2, 3, 4, 8}, kTopKs[] = {1, 2, 3, 5, 8, 22},
                       kHiddens[] = {8, 96, 264, 7168};
constexpr Wire kCombines[] = {Wire::kBf16, Wire::kFp8, Wire::kNvfp4};
enum class Fill { kNone, kOne, kUneven, kAlmostFull, kFull, kMany };
constexpr int kNumFills = 6;
constexpr std::int64_t kManyTokens = 4097, kWidestOfMany = 264;

/// One combination.
struct Case {
  explicit Case(const std::vector<int>& row)
      : strategy(kStrategies[row[0]]),
        ep(kEps[row[1]]),
        top_k(kTopKs[row[2]]),
        hidden(kHiddens[row[3]]),
        fill(Fill(row[4])),
        payload(test::kPayloadKinds[row[5]]),
        wire(kCombines[row[6]]) {
    if (fill == Fill::kMany && hidden > kWidestOfMany) fill = Fill::kFull;
  }
  ExchangeShape shape() const {
    constexpr std::int64_t kCapacity = 13, kFewerSlots = 3, kMoreSlots = 11;
    const bool many = fill == Fill::kMany;
    return test::exchange_shape(ep, std::max(top_k + (many ? kFewerSlots : kMoreSlots), ep), top_k,
                                many ? kManyTokens : kCapacity, hidden, payload, wire);
  }
  std::int64_t tokens(const ExchangeShape& s, int rank, int round) const {
    switch (fill) {
      case Fill::kNone:
        return 0;
      case Fill::kOne:
        return 1;
      case Fill::kUneven:
        return (rank * 5 + 3 + round) % (s.capacity + 1);
      case Fill::kAlmostFull:
        return s.capacity - 1;
      case Fill::kFull:
      case Fill::kMany:
        return s.capacity;
    }
    return 0;
  }
  std::string text() const {
    return cat(strategy->name, " ep ", ep, " k ", top_k, " H ", hidden, " fill ", int(fill),
               " payload ", int(payload), " ", to_string(wire));
  }
  const Strategy* strategy;
  std::int64_t ep, top_k, hidden;
  Fill fill;
  test::PayloadKind payload;
  Wire wire;
};

void run_rank(const Case& c, const ExchangeShape& shape, Exchange& exchange, int rank, int round) {
  std::vector<test::ExchangeInput> inputs;
  for (int r = 0; r < shape.ranks(); ++r)
    inputs.emplace_back(shape, r, c.tokens(shape, r, round), round, c.payload, c.wire);
  const test::ExchangeInput& own = inputs[std::size_t(rank)];
  Ticket ticket = exchange.dispatch(own.args());
  ASSERT_EQ(test::received_fault(ticket.received(), *c.strategy, inputs, rank), "") << c.text();
  test::serve(ticket.received(), shape, c.strategy->contract, own.payload, rank);
  test::SumCollector got(own.tokens, shape.hidden);
  exchange.combine(std::move(ticket), got.sink());
  ASSERT_EQ(got.rows, own.tokens) << c.text();
  ASSERT_TRUE(test::same_bits(got.sums, test::expected_sums(own, c.strategy->contract)))
      << c.text();
  ASSERT_TRUE(exchange.canaries_intact()) << c.text();
}

TEST(Matrix, EveryRankGetsAndGivesWhatTheContractSays) {
  constexpr std::array<int, 7> kLevels = {5, 5, 6, 4, kNumFills, 5, 3};
  for (const std::vector<int>& row :
       test::is_soak() ? test::all_combinations(kLevels) : test::pairwise(kLevels)) {
    const Case c(row);
    const ExchangeShape shape = c.shape();
    test::expect_all_well(test::on_thread_ranks(int(c.ep), test::long_deadlines(), [&](Group& g) {
      auto exchange = make_exchange(*c.strategy, g, shape);
      for (int round = 0; round < (c.fill == Fill::kMany ? 1 : 2); ++round) {
        run_rank(c, shape, *exchange, g.rank(), round);
        if (testing::Test::HasFatalFailure()) {
          g.abort("a test failed");
          return;
        }
      }
    }));
    if (HasFatalFailure()) return;
  }
}

// The subset is one: every pair of levels is in it, and it is far smaller than the matrix.
TEST(Matrix, PairwiseHoldsEveryPair) {
  constexpr std::array<int, 4> kLevels = {2, 3, 1, 4};
  const auto rows = test::pairwise(kLevels);
  for (std::size_t f = 0; f < kLevels.size(); ++f)
    for (std::size_t g = f + 1; g < kLevels.size(); ++g) {
      std::set<std::pair<int, int>> met;
      for (const auto& row : rows) met.insert({row[f], row[g]});
      EXPECT_EQ(met.size(), std::size_t(kLevels[f] * kLevels[g])) << f << " " << g;
    }
  EXPECT_LT(rows.size(), test::all_combinations(kLevels).size());
  EXPECT_EQ(test::all_combinations(kLevels).size(), 24U);
}

}  // namespace
}  // namespace switchyard::comm
