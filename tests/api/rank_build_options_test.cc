// SPDX-License-Identifier: Apache-2.0
// Every field of RankBuildOptions, as it shows in a layer over ranks.
#include <gmock/gmock.h>

#include <algorithm>

#include "switchyard/api/rank_moe_layer.h"
#include "switchyard/layer/rank_layer.h"
#include "tests/cases/rank_case.h"
#include "tests/cases/rank_layers.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using test::alone;
using test::Call;
using test::options_of;
using test::output_of;
using test::usage_error_of;
using testing::HasSubstr;

/// Options of two ranks under dep, and what is to be seen of each field.
using OnRank = std::function<void(Rank&, const MoeLayer& whole)>;

std::vector<std::byte> plain_output(Rank& rank, const MoeLayer& whole) {
  RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", options_of({Parallel::kDep, 1}, 2));
  Call call(whole.impl(), test::kRankTokens, 30 + std::uint64_t(rank.number()));
  return output_of(layer, call);
}

void build_field(Rank& rank, const MoeLayer&) {
  RankBuildOptions o = options_of({Parallel::kDep, 1}, 2);
  o.build.format = "nvfp4";  // whose static scales are calibrated on all ranks
  o.build.routed_scaling_factor = 2.5F;
  RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", o);
  EXPECT_EQ(layer.problem().routed_scaling_factor, 2.5F);
  EXPECT_THAT(layer.notices(), testing::Contains(HasSubstr("calibrated on 256 tokens")));
  EXPECT_THAT(layer.report_json(), HasSubstr("switchyard.cpu.fused_moe.nvfp4"));
  BuildOptions one = alone();
  one.format = o.build.format, one.routed_scaling_factor = 2.5F;
  const MoeLayer quantised = MoeLayer::from_preset("tiny", one);
  Call ours(quantised.impl(), test::kRankTokens, 30),
      theirs(quantised.impl(), test::kRankTokens, 30);
  output_of(layer, ours);
  theirs.run();
  EXPECT_LT(test::rel(ours.values(), theirs.values()), 0x1p-6)
      << "scales of one rank's calibration";
}

void max_tokens_field(Rank& rank, const MoeLayer& whole) {
  RankBuildOptions o = options_of({Parallel::kDep, 1}, 2);
  o.max_tokens = 40;
  RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", o);
  Call call(whole.impl(), 40);
  output_of(layer, call);
}

void chunk_tokens_field(Rank& rank, const MoeLayer& whole) {
  RankBuildOptions o = options_of({Parallel::kDep, 1}, 2);
  o.chunk_tokens = 2;
  RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", o);
  EXPECT_EQ(layer.impl().chunk_tokens(), 2);
  Call call(whole.impl(), test::kRankTokens, 30 + std::uint64_t(rank.number()));
  EXPECT_EQ(output_of(layer, call), plain_output(rank, whole));
}

void ending_field(Rank& rank, const MoeLayer&) {
  RankBuildOptions o = options_of({Parallel::kTtp, 2}, 2);
  o.ending = Ending::kReduce;
  EXPECT_EQ(RankMoeLayer::from_preset(rank, "tiny", o).impl().ending(), Ending::kReduce);
}

void sum_rows(void* calls, const DispatchedRows& r) {
  ++*static_cast<int*>(calls);
  for (std::int64_t t = 0; t < r.tokens; ++t)
    for (std::int64_t h = 0; h < r.width; ++h) {
      float sum = 0;
      for (std::int64_t j = t * r.choices; j < (t + 1) * r.choices; ++j)
        if (r.index[j] >= 0)
          sum += r.weights[j] *
                 bf16_to_float(static_cast<const std::uint16_t*>(r.rows)[r.index[j] * r.width + h]);
      r.sum[t * r.width + h] = sum;
    }
}

void finalize_field(Rank& rank, const MoeLayer& whole) {
  int calls = 0;
  RankBuildOptions o = options_of({Parallel::kDep, 1}, 2);
  o.finalize = {&calls, sum_rows};
  RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", o);
  Call call(whole.impl(), test::kRankTokens, 30), want(whole.impl(), test::kRankTokens, 30);
  output_of(layer, call);
  want.run();
  EXPECT_GT(calls, 0);
  EXPECT_LT(test::rel(call.values(), want.values()), 0x1p-6);
}

void slot_experts_field(Rank& rank, const MoeLayer& whole) {
  RankBuildOptions o = options_of({Parallel::kDep, 1}, 2);
  o.build.comm = "expert_major";
  RankMoeLayer linear = RankMoeLayer::from_preset(rank, "tiny", o);
  o.slot_experts = {7, 6, 5, 4, 3, 2, 1, 0, 7, 6};
  RankMoeLayer turned = RankMoeLayer::from_preset(rank, "tiny", o);
  EXPECT_EQ(turned.slot_experts(), o.slot_experts);
  Call call(whole.impl(), test::kRankTokens, 30);
  const std::vector<std::byte> want = output_of(linear, call);
  EXPECT_EQ(output_of(turned, call), want);
}

void balanced_field(Rank& rank, const MoeLayer&) {
  RankBuildOptions o = options_of({Parallel::kDep, 1}, 2);
  o.balanced = true;
  RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", o);
  EXPECT_THAT(layer.take_counts(), testing::Each(0));
  const std::vector<std::int32_t> before = layer.slot_experts();
  EXPECT_THAT(usage_error_of([&] {
                layer.migrate({0, 0, 0, 0, 0, 0, 0, 0});
              }),
              HasSubstr("expert"));
  EXPECT_EQ(layer.slot_experts(), before);
  layer.migrate({1, 0, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(layer.slot_experts()[0], 1);
}

const std::vector<std::pair<const char*, OnRank>> kFields = {
    {"build", build_field},
    {"max_tokens", max_tokens_field},
    {"chunk_tokens", chunk_tokens_field},
    {"ending", ending_field},
    {"finalize", finalize_field},
    {"slot_experts", slot_experts_field},
    {"balanced", balanced_field},
};

TEST(RankBuildOptions, EachOptionReachesTheLayer) {
  // A field that joins the struct stops here until it has a case above.
  [[maybe_unused]] const auto [a, b, c, d, e, f, g] = RankBuildOptions{};
  EXPECT_EQ(kFields.size(), 7U);
  const MoeLayer whole = MoeLayer::from_preset("tiny", alone());
  for (const auto& field : kFields) {
    SCOPED_TRACE(field.first);
    on_rank_threads(2, [&](Rank& rank) { field.second(rank, whole); });
  }
}

}  // namespace
}  // namespace switchyard
