// SPDX-License-Identifier: Apache-2.0
// The acceptance matrix of the exchange: any two levels of its axes meet in a change's tests, all
// combinations in the soak.
#include "tests/cases/exchange_matrix.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "tests/cases/pairwise.h"
#include "tests/comm/thread_ranks.h"

namespace switchyard::comm {
namespace {

TEST(Matrix, EveryRankGetsAndGivesWhatTheContractSays) {
  test::MatrixControls controls;
  for (const test::MatrixCase& c : test::matrix_cases()) {
    std::vector<test::MatrixRound> rounds;
    for (int round = 0; round < c.rounds(); ++round) rounds.emplace_back(c, round);
    test::expect_all_well(test::on_thread_ranks(int(c.ep), test::long_deadlines(), [&](Group& g) {
      test::MatrixRank rank(g, c);
      for (const test::MatrixRound& round : rounds) {
        const std::string fault = rank.run(round, controls);
        EXPECT_EQ(fault, "");
        if (!fault.empty()) return g.abort("a test failed");
      }
    }));
    if (HasFailure()) return;
  }
  EXPECT_GT(controls.unrounded, 0);
  EXPECT_GT(controls.reversed, 0);
  EXPECT_GT(controls.other_weigher, 0);
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
