// SPDX-License-Identifier: Apache-2.0
// What `run` measures of ranks on GPUs, or on one that they share, and how it judges them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/api/rank_run.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/synthetic.h"
#include "switchyard/resolve/probe.h"
#include "tests/comm/device_allreduce_ranks.h"

namespace switchyard {
namespace {

class DeviceRankRun : public test::NeedsGpu {};

/// A run of ranks that may share GPU 0, which the command never asks for.
Measurement measured(RunOptions o, Parallel parallel, std::int64_t ranks) {
  Environment env = resolve::environment();
  const bool shared = test::share_a_gpu(int(ranks));
  env.num_gpus = std::max(env.num_gpus, int(ranks));
  const resolve::ScopedEnvironment scope(env);
  o.build.device = Device::kCuda;
  o.build.parallel = parallel;
  (parallel == Parallel::kTtp ? o.build.tp : o.build.ep) = ranks;
  PreparedLayer prepared =
      LayerBuilder::prepare(layer::make_synthetic(make_preset(o.preset), o.build.seed), o.build);
  prepared.shared_gpu = shared;
  RankTeam team(nullptr, ranks);
  return team.run([&](comm::Group& g) { return measure_rank(g, prepared, o, team.carriers()); });
}

TEST_F(DeviceRankRun, EveryEndingIsTimedAndJudged) {
  struct Case {
    const char *ending, *format;
    Parallel parallel;
    std::int64_t ranks;
  };
  for (const Case& c : {Case{"plain", "bf16", Parallel::kTtp, 2},
                        {"fused", "bf16", Parallel::kTep, 4},
                        {"reduce", "bf16", Parallel::kTep, 2},
                        {"fused", "nvfp4", Parallel::kTtp, 2},
                        {"plain", "w4a16_mxfp4", Parallel::kTtp, 4},
                        {"reduce", "fp8", Parallel::kTep, 2}}) {
    SCOPED_TRACE(testing::Message() << c.ending << " " << c.format << " on " << c.ranks);
    RunOptions o;
    o.preset = "tiny";
    o.tokens = 5;
    o.finalize = c.ending;
    o.build.format = c.format;
    o.build.routed_scaling_factor = 2.5F;
    const Measurement m = measured(o, c.parallel, c.ranks);
    EXPECT_TRUE(m.ok) << m.rel_l2 << (m.notices.empty() ? "" : m.notices.back());
    EXPECT_EQ(m.ranks, c.ranks);
    EXPECT_EQ(m.strategy, "all_reduce");
    EXPECT_EQ(m.finalize, c.ending);
    EXPECT_THAT(m.leaf, testing::HasSubstr("switchyard.cuda."));
    EXPECT_GT(m.rel_l2, 0);
    EXPECT_GT(m.time_p50, 0);
    EXPECT_GT(m.distinct_experts, 0);
    EXPECT_GT(m.roof_gbps, 0);
    EXPECT_EQ(m.checked_tokens, 5);
  }
}

}  // namespace
}  // namespace switchyard
