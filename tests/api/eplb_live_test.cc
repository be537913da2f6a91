// SPDX-License-Identifier: Apache-2.0
// A live layer over a trace of loads, as the command drives it.
#include "switchyard/api/eplb_live.h"

#include <gmock/gmock.h>

#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

/// Six experts, of which one is busy and another one after half of the steps.
EplbLiveOptions shifting() {
  EplbLiveOptions o;
  o.slots = 8;
  o.ranks = 2;
  o.tokens = 24;
  for (int step = 0; step < 32; ++step) {
    std::vector<double> loads(6, 1.0);
    loads[step < 16 ? 0 : 5] = 12;
    loads[step < 16 ? 1 : 4] = 6;
    o.trace.layers.push_back(loads);
  }
  return o;
}

TEST(EplbLive, MovesExpertsAfterTheLoadAndChangesNoBit) {
  const EplbLiveResult r = eplb_live(shifting());
  EXPECT_TRUE(r.ok);
  EXPECT_EQ(r.differing_steps, 0);
  ASSERT_EQ(r.steps.size(), 32U);
  EXPECT_GE(r.migrations, 2) << "one for each place where the load stands";
  EXPECT_GT(r.moves, 0);
  EXPECT_GT(r.expert_bytes, 0);
  EXPECT_LT(r.live, r.fixed - 0.05) << "the live layer is better balanced";
  EXPECT_EQ(r.steps.front().live, r.steps.front().fixed) << "both start linear";
}

// Fewer experts than ranks: the layer that never moves has replicas too.
TEST(EplbLive, OneExpertOnTwoRanksServes) {
  EplbLiveOptions o = shifting();
  o.slots = 2;
  for (std::vector<double>& loads : o.trace.layers) loads.resize(1);
  const EplbLiveResult r = eplb_live(o);
  EXPECT_TRUE(r.ok);
  EXPECT_EQ(r.steps.size(), 32U);
  EXPECT_EQ(r.moves, 0) << "there is nothing to move";
}

TEST(EplbLive, RefusesWhatCannotBe) {
  EplbLiveOptions o = shifting();
  o.slots = 5;
  EXPECT_THAT(test::usage_error_of([&] { eplb_live(o); }), HasSubstr("slots = 5"));
  o = shifting();
  o.ranks = 1;
  EXPECT_THAT(test::usage_error_of([&] { eplb_live(o); }), HasSubstr("ranks = 1"));
  o = shifting();
  o.tokens = 0;
  EXPECT_THAT(test::usage_error_of([&] { eplb_live(o); }), HasSubstr("tokens = 0"));
  EXPECT_TRUE(eplb_live(shifting()).ok);
}

}  // namespace
}  // namespace switchyard
