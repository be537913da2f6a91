// SPDX-License-Identifier: Apache-2.0
// Ends that layers share: found on all ranks or on none, whatever one rank alone has seen.
#include "switchyard/layer/shared_ends.h"

#include <gtest/gtest.h>

#include "tests/comm/thread_ranks.h"

namespace switchyard::layer {
namespace {

using test::expect_all_well;
using test::long_deadlines;
using test::on_thread_ranks;

/// An end knows which construction of the group it comes from.
struct End {
  int construction;
};

// Each step asks with a key per rank; `construction` is that of the end which both then get.
TEST(SharedEnds, AreOfOneConstructionOnAllRanks) {
  constexpr struct {
    int key_of_0, key_of_1, construction;
  } kSteps[] = {
      {1, 1, 0},  // new on both
      {1, 1, 0},  // shared
      {2, 2, 1},  // another key
      {1, 1, 0},  // the first one stays
      {3, 1, 2},  // found on rank 1 alone: built anew on both
      {1, 1, 3},  // both have the key, from unlike constructions: built anew
      {1, 1, 3},  // shared again
      {3, 3, 4},  // rank 0 alone has it
      {2, 2, 1},  // and this is as it was
  };
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](comm::Group& g) {
    EndPool<End, int> pool;
    std::vector<std::shared_ptr<End>> got;
    int constructions = 0;
    for (const auto& step : kSteps) {
      const int key = g.rank() == 0 ? step.key_of_0 : step.key_of_1;
      got.push_back(pool.get(g, key, [&] {
        g.barrier("a construction is collective");
        return std::make_shared<End>(End{constructions++});
      }));
      EXPECT_EQ(got.back()->construction, step.construction)
          << "rank " << g.rank() << ", step " << got.size();
    }
    EXPECT_EQ(constructions, 5);
    EXPECT_EQ(got[0], got[1]);
    EXPECT_EQ(got[0]->construction, 0) << "an end that was replaced serves whoever has it";
  }));
}

TEST(SharedEnds, WhatIsNotBuiltIsNotFound) {
  for (int failing : {0, 1})
    expect_all_well(on_thread_ranks(2, long_deadlines(), [&](comm::Group& g) {
      EndPool<End, int> pool;
      int constructions = 0;
      const auto make = [&] {
        const bool fails = constructions++ == 0 && g.rank() == failing;
        if (fails) throw UsageError("no memory");
        return std::make_shared<End>(End{constructions});
      };
      // One rank keeps an end, the other has none: the next one is built on both.
      if (g.rank() == failing) {
        EXPECT_THROW(pool.get(g, 1, make), UsageError);
      } else {
        EXPECT_EQ(pool.get(g, 1, make)->construction, 1);
      }
      EXPECT_EQ(pool.get(g, 1, make)->construction, 2);
      EXPECT_EQ(pool.get(g, 1, make)->construction, 2);
    }));
}

}  // namespace
}  // namespace switchyard::layer
