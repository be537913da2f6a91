// SPDX-License-Identifier: Apache-2.0
// The fused all-reduce by the installed headers: every family over threads, and one process alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/api/allreduce.h"
#include "switchyard/base/errors.h"
#include "tests/cases/allreduce_case.h"
#include "tests/support/same_bits.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using test::ArData;
using test::ArSpec;
using testing::HasSubstr;

AllReduceSize size_of(const ArSpec& s) { return {s.tokens, s.hidden, s.dtype}; }

TEST(AllReduceApi, EveryPatternOverThreadsMatchesTheOracle) {
  for (int value = 0; value < ops::kNumAllReducePatterns; ++value) {
    const ArSpec spec{.pattern = ops::to_allreduce_pattern(value), .ranks = 3};
    std::vector<ArData> data;
    for (int r = 0; r < 3; ++r) data.emplace_back(spec, r);
    on_rank_threads(3, [&](Rank& rank) {
      EXPECT_EQ(rank.size(), 3);
      FusedAllReduce all(rank, size_of(spec));
      ArData& mine = data[std::size_t(rank.number())];
      mine.poison();
      all.run(mine.call());
    });
    EXPECT_EQ(test::compare_with_oracle(spec, test::calls_of(data), data[0]), "") << spec.str();
    for (const ArData& d : data)
      EXPECT_TRUE(test::same_bits(d.outputs(), data[0].outputs())) << spec.str();
  }
}

TEST(AllReduceApi, TheFamiliesHaveOneName) {
  constexpr std::int64_t kHidden = 4;
  on_rank_threads(2, [](Rank& rank) {
    FusedAllReduce all(rank, {.max_tokens = 1, .hidden = kHidden, .dtype = Dtype::kF32});
    const std::vector<float> x(kHidden, float(rank.number() + 1)), one(kHidden, 1);
    std::vector<float> sum(kHidden), residual(kHidden);
    const ops::CallShape shape{.tokens = 1, .hidden = kHidden, .dtype = Dtype::kF32};
    const ops::NormArgs norm{
        .residual_in = one.data(), .rms_gamma = one.data(), .residual_out = residual.data()};
    const std::int32_t index = 0;
    const float scale = 2;
    allreduce_fusion(all, ops::AllReduceArgs{shape, {x.data()}, sum.data()});
    EXPECT_THAT(sum, testing::Each(3));
    allreduce_fusion(all, ops::ARResidualRMSNormArgs{shape, {x.data()}, norm});
    EXPECT_THAT(residual, testing::Each(4));
    allreduce_fusion(
        all, ops::MoEReductionArgs{
                 shape,
                 {.active_experts_token_input = x.data(), .scale_input = &scale, .num_experts = 1},
                 nullptr,
                 norm});
    EXPECT_THAT(residual, testing::Each(7));
    allreduce_fusion(all, ops::MoEFinalizeArgs{shape,
                                               {.rows = x.data(),
                                                .num_rows = 1,
                                                .expanded_idx_to_permuted_idx = &index,
                                                .top_k = 1,
                                                .routed_scaling_factor = 3.0F},
                                               norm});
    EXPECT_THAT(residual, testing::Each(10));
  });
}

TEST(AllReduceApi, AProcessAloneIsTheOneRank) {
  Processes processes;
  if (processes.size() > 1) GTEST_SKIP() << "under a launcher";
  const ArSpec spec{.ranks = 1};
  std::vector<ArData> data{ArData(spec, 0)};
  Rank rank(processes);
  EXPECT_EQ(rank.size(), 1);
  FusedAllReduce all(rank, size_of(spec));
  all.run(data[0].call());
  EXPECT_EQ(test::compare_with_oracle(spec, test::calls_of(data), data[0]), "");
}

TEST(AllReduceApi, AMistakeOfOneRankEndsAllAndAGoodCallFollows) {
  const ArSpec spec{.ranks = 2};
  auto run = [&](std::int64_t tokens_of_rank_1) {
    std::vector<ArData> data{ArData(spec, 0), ArData(spec, 1)};
    on_rank_threads(2, [&](Rank& rank) {
      FusedAllReduce all(rank, size_of(spec));
      ops::AllReduceCall call = data[std::size_t(rank.number())].call();
      if (rank.number() == 1) call.shape.tokens = tokens_of_rank_1;
      all.run(call);
    });
  };
  EXPECT_THAT(test::usage_error_of([&] { run(spec.tokens + 1); }),
              HasSubstr("the workspace holds"));
  run(spec.tokens);
}

TEST(AllReduceApi, RanksThatCannotBeAreRefused) {
  for (std::int64_t ranks : {std::int64_t(0), std::int64_t(257), std::int64_t(1) << 32})
    EXPECT_THAT(test::usage_error_of([&] { on_rank_threads(ranks, [](Rank&) {}); }),
                HasSubstr("ranks = " + std::to_string(ranks) + " is outside 1..256"));
}

}  // namespace
}  // namespace switchyard
