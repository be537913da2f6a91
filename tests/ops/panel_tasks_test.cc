// SPDX-License-Identifier: Apache-2.0
// The cut of expert matrices into the tasks of a thread pool.
#include <gtest/gtest.h>

#include <vector>

#include "switchyard/ops/grouped_ffn/ffn_plan.h"

namespace switchyard::ops {
namespace {

TEST(PanelTasks, CoverEachPanelOnceInOrder) {
  for (std::int64_t panels : {1, 2, 7, 48, 128})
    for (std::int64_t chunk : {1, 4, 8, 16})
      for (std::int64_t matrices : {1, 3, 8})
        for (std::int64_t threads : {1, 2, 5, 64}) {
          const PanelTasks tasks{panels, chunk, matrices, threads};
          std::int64_t next = 0;
          for (std::int64_t i = 0; i < tasks.count(); ++i) {
            const PanelTasks::Range r = tasks.range(i);
            ASSERT_LE(r.end - r.begin, chunk);
            if (r.begin == r.end) continue;
            ASSERT_EQ(r.matrix * panels + r.begin, next);
            ASSERT_LE(r.end, panels);
            next += r.end - r.begin;
          }
          ASSERT_EQ(next, matrices * panels) << panels << " panels by " << chunk;
        }
}

TEST(PanelTasks, TheLastChunkOfEachThreadIsCutInFour) {
  const PanelTasks tasks{48, 16, 8, 2};
  EXPECT_EQ(tasks.chunks(), 3);
  EXPECT_EQ(tasks.whole(), 22);
  EXPECT_EQ(tasks.count(), 30);
  EXPECT_EQ(tasks.range(21).end - tasks.range(21).begin, 16);
  for (std::int64_t i = 22; i < 30; ++i) {
    EXPECT_EQ(tasks.range(i).matrix, 7);
    EXPECT_EQ(tasks.range(i).end - tasks.range(i).begin, 4) << i;
  }
  EXPECT_EQ((PanelTasks{48, 16, 0, 2}).count(), 0) << "no expert has a row";
}

}  // namespace
}  // namespace switchyard::ops
