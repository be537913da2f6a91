// SPDX-License-Identifier: Apache-2.0
// What `run` measures of ranks on GPUs, or on one that they share, and how it judges them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/api/rank_moe_layer.h"
#include "switchyard/api/rank_run.h"
#include "switchyard/api/rank_state.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/rank_judge.h"
#include "switchyard/layer/synthetic.h"
#include "switchyard/resolve/probe.h"
#include "tests/cases/rank_case.h"
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

/// The output of a call on copies of the tokens. Collective.
std::vector<std::byte> output_of(RankMoeLayer& layer, const test::Call& call) {
  std::vector<std::byte> out(call.out.size(), std::byte(0xff));
  ForwardArgs a;
  a.tokens = call.tokens;
  a.hidden = call.hidden.data();
  a.hidden_stride = a.out_stride = call.layer.problem().hidden;
  a.out = out.data();
  layer::forward_from_host(layer.impl(), a);
  return out;
}

// By the installed headers: two layers on each rank, in turns.
TEST_F(DeviceRankRun, LayersOfOneRankTakeTurns) {
  constexpr int kRanks = 2;
  Environment env = resolve::environment();
  const bool shared = test::share_a_gpu(kRanks);
  env.num_gpus = std::max(env.num_gpus, kRanks);
  const resolve::ScopedEnvironment scope(env);
  for (const Parallel parallel : {Parallel::kTep, Parallel::kTtp})
    for (const Ending ending : {Ending::kPlain, Ending::kFused})
      on_rank_threads(kRanks, [&](Rank& rank) {
        SCOPED_TRACE(cat(to_string(parallel), " ", to_string(ending)));
        rank.state().shared_gpu = shared;
        test::take_seat(rank.state().group);
        RankBuildOptions o;
        o.build.device = Device::kCuda;
        o.build.parallel = parallel;
        (parallel == Parallel::kTtp ? o.build.tp : o.build.ep) = kRanks;
        o.build.threads = 1;
        o.max_tokens = 16;
        o.ending = ending;
        RankMoeLayer first = RankMoeLayer::from_preset(rank, "tiny", o);
        o.build.seed = 7;
        RankMoeLayer second = RankMoeLayer::from_preset(rank, "tiny", o);
        EXPECT_THAT(first.leaf(), testing::HasSubstr("switchyard.cuda."));
        const test::Call call(first.impl().part(), 9, 30);
        const std::vector<std::byte> one = output_of(first, call), other = output_of(second, call);
        EXPECT_NE(one, other);
        EXPECT_EQ(output_of(first, call), one);
        const layer::JudgeArgs ask{9, call.exact.data(), nullptr, {}};
        for (RankMoeLayer* layer : {&first, &second}) {
          const layer::Judgement j = judge_ranks(layer->impl(), ask);
          EXPECT_TRUE(j.ok(budgets_of(layer->impl()))) << j.rel_l2_oracle;
        }
        first.check();
        rank.barrier();
      });
}

}  // namespace
}  // namespace switchyard
