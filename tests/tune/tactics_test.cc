// SPDX-License-Identifier: Apache-2.0
// The tactics of the CPU's leaves: what the planner says, what is tried, and that no choice changes
// a bit.
#include <gmock/gmock.h>

#include <set>

#include "switchyard/core/preset.h"
#include "switchyard/ops/grouped_ffn/ffn_plan.h"
#include "switchyard/ops/grouped_ffn/ffn_work.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"
#include "tests/cases/tactic_case.h"
#include "tests/support/usage_error.h"

namespace switchyard::tune {
namespace {

using test::Call;
using test::LeafCase;
using testing::HasSubstr;

// ---- values ----

TEST(Tactic, TextReadsBack) {
  for (const Tactic& t : {Tactic(PanelTactic{16, 2, 1, 32}), Tactic(TileTactic{64, 256}),
                          Tactic(PanelTactic{}), Tactic(TileTactic{})})
    EXPECT_EQ(to_tactic(to_string(t)), t);
  EXPECT_EQ(to_string(TacticUse{TileTactic{8, 64}, TacticOrigin::kShipped}),
            "fc1_tile=8 fc2_tile=64 routing=0 (shipped table)");
}

TEST(Tactic, OtherTextsAreRefused) {
  const auto error = [](const char* text) {
    return test::usage_error_of([&] { to_tactic(text); });
  };
  EXPECT_THAT(error("fc1_tile=8"), HasSubstr("a GPU's fc1_tile, fc2_tile, routing"));
  EXPECT_THAT(error("fc1_tile=8 fc2_tile=8 routing=0 cuts=4"),
              HasSubstr("not the fields of a tactic"));
  EXPECT_THAT(error("fc1_tile=8 fc1_tile=8"), HasSubstr("twice"));
  EXPECT_THAT(error("fc1_tile=-8 fc2_tile=8"), HasSubstr("negative"));
  EXPECT_THAT(error("fc1_tile=x fc2_tile=8"), HasSubstr("NAME=NUMBER"));
  EXPECT_THAT(error("fc1_tile fc2_tile"), HasSubstr("NAME=NUMBER"));
  EXPECT_THAT(error(""), HasSubstr("not the fields"));
}

TEST(TacticList, KeepsChoicesByBucketAndNothingBeside) {
  EXPECT_EQ(token_bucket(0), 0);
  EXPECT_EQ(token_bucket(1), 1);
  EXPECT_EQ(token_bucket(3), 4);
  EXPECT_EQ(token_bucket(4), 4);
  EXPECT_EQ(token_bucket(513), 1024);
  const TacticUse first{TileTactic{8, 8}, TacticOrigin::kFile};
  TacticList list;
  for (std::int64_t bucket : {1, 2, 4, 8}) list.add(bucket, first);
  list.add(8, {TileTactic{64, 64}, TacticOrigin::kShipped});
  EXPECT_EQ(*list.find(5), first) << "the first one stays";
  EXPECT_EQ(list.find(9), nullptr);
  EXPECT_EQ(list.find(2048), nullptr) << "a choice for few tokens is none for many";
}

// ---- planners ----

ops::FfnShape shape_of(const char* format, const Problem& p) {
  const leaves::Leaf& leaf = *leaves::find_leaf(format, Device::kCpu).leaf;
  return {.hidden = p.hidden,
          .inter = p.inter,
          .experts = p.num_experts(),
          .top_k = p.top_k(),
          .weights = leaf.weights,
          .quant = leaf.activation};
}

TEST(PanelPlanner, ListsItsPlanFirstAndOnlyWhatRuns) {
  const ops::FfnShape shapes[] = {shape_of("none", make_preset("qwen3-30b-a3b")),
                                  shape_of("nvfp4", make_preset("deepseek-v3")),
                                  shape_of("fp8", make_preset("tiny"))};
  for (const ops::FfnShape& s : shapes)
    for (std::int64_t tokens : {1, 8, 64, 512, 4096, 40000})
      for (int threads : {1, 2, 64})
        for (CpuIsa isa : {CpuIsa::kPortable, CpuIsa::kAvx512, CpuIsa::kAmx}) {
          const ops::FfnCall call{&s, tokens, threads, isa};
          const std::vector<Tactic> list = ops::panel_candidates(call);
          EXPECT_EQ(list.front(), ops::plan_panels(call));
          std::set<std::string> texts;
          for (const Tactic& t : list) {
            ops::check_panel_tactic(call, t);
            texts.insert(to_string(t));
          }
          EXPECT_EQ(texts.size(), list.size()) << "each once";
          EXPECT_GT(list.size(), 2u);
          EXPECT_EQ(ops::panel_candidates(call), list) << "a pure function";
        }
}

TEST(PanelPlanner, RefusesWhatACallCannotRun) {
  const ops::FfnShape s = shape_of("none", make_preset("qwen3-30b-a3b"));
  const auto error = [&](const Tactic& t, std::int64_t tokens) {
    return test::usage_error_of([&] {
      ops::check_panel_tactic({&s, tokens, 2, CpuIsa::kAvx512}, t);
    });
  };
  EXPECT_THAT(error(TileTactic{}, 1), HasSubstr("GPU's tiles"));
  EXPECT_THAT(error(PanelTactic{.fc1_panels = 17}, 1), HasSubstr("fc1_panels is outside 1..16"));
  EXPECT_THAT(error(PanelTactic{.fc1_panels = 0}, 1), HasSubstr("fc1_panels"));
  EXPECT_THAT(error(PanelTactic{.fc2_panels = 8}, 4096),
              HasSubstr("fc2_panels is outside 1..2, the limit for 32768 rows"));
  EXPECT_THAT(error(PanelTactic{.cuts = 17}, 1), HasSubstr("cuts"));
  EXPECT_THAT(error(PanelTactic{.row_block = 256}, 1), HasSubstr("row_block is outside 1..128"));
  for (std::int64_t rows : {std::int64_t(1) << 60, INT64_MAX})  // times 16 panels: 0, or less
    EXPECT_THAT(error(PanelTactic{.fc1_panels = 16, .row_block = rows}, 1),
                HasSubstr("row_block is outside 1..64"));
}

// Tiles gather their rows once a call: long calls, for many rows as well.
TEST(PanelPlanner, TilesTakeManyPanelsACall) {
  const ops::FfnShape s = shape_of("w4a16_mxfp4", make_preset("qwen3-30b-a3b"));
  const auto plan = [&](std::int64_t tokens, CpuIsa isa) {
    return std::get<PanelTactic>(ops::plan_panels({&s, tokens, 2, isa}));
  };
  EXPECT_EQ(plan(512, CpuIsa::kAmx).fc1_panels, 16);
  EXPECT_EQ(plan(512, CpuIsa::kAmx).fc2_panels, 8);
  EXPECT_EQ(plan(8192, CpuIsa::kAmx).fc2_panels, 1) << "so many rows want their sums near";
  EXPECT_EQ(plan(512, CpuIsa::kAvx512).fc1_panels, 8);
  EXPECT_EQ(plan(512, CpuIsa::kAvx512).fc2_panels, 4);
}

TEST(TilePlanner, ListsItsPlanFirstAndOnlyWhatRuns) {
  for (const char* format : {"none", "nvfp4", "fp8_block_scales", "w4a16_mxfp4"}) {
    const ops::FfnShape s = shape_of(format, make_preset("qwen3-30b-a3b"));
    for (std::int64_t tokens : {1, 8, 64, 512, 8192}) {
      const ops::FfnCall call{&s, tokens};
      const std::vector<Tactic> list = ops::tile_candidates(call);
      EXPECT_EQ(list.front(), ops::plan_tiles(call));
      EXPECT_GT(list.size(), 1u) << format << ", " << tokens;
      for (const Tactic& t : list) ops::check_tile_tactic(call, t);
    }
  }
}

TEST(TilePlanner, LeavesOutTilesThatAreFarFromTheBest) {
  const ops::FfnShape s = shape_of("none", make_preset("qwen3-30b-a3b"));
  const auto tries = [&](std::int64_t tokens, std::int64_t tile) {
    const std::vector<Tactic> list = ops::tile_candidates({&s, tokens});
    return std::find(list.begin(), list.end(), Tactic(TileTactic{tile, tile})) != list.end();
  };
  EXPECT_TRUE(tries(1, 8));
  EXPECT_FALSE(tries(8192, 8)) << "512 rows an expert in tiles of 8";
  EXPECT_TRUE(tries(8192, 128));
  EXPECT_TRUE(tries(8192, 256));
  EXPECT_FALSE(tries(1, 256));
}

TEST(TilePlanner, OffersALaunchOfItsOwnWhereFewTokensAreRouted) {
  const auto offers = [](const ops::FfnShape& s, std::int64_t tokens) {
    const std::vector<Tactic> list = ops::tile_candidates({&s, tokens});
    const Tactic asked = TileTactic{0, 0, std::int64_t(TileRouting::kApart)};
    return std::find(list.begin(), list.end(), asked) != list.end();
  };
  const ops::FfnShape s = shape_of("none", make_preset("qwen3-30b-a3b"));
  ops::FfnShape shared = s;
  shared.experts = 1;
  EXPECT_TRUE(offers(s, 1));
  EXPECT_TRUE(offers(s, 8));
  EXPECT_FALSE(offers(s, 16));
  EXPECT_FALSE(offers(shared, 1)) << "one expert needs no routing";
}

TEST(TilePlanner, OffersWholeTilesWhereTheyAreDecoded) {
  const auto tries = [](const char* format, std::int64_t tokens) {
    const ops::FfnShape s = shape_of(format, make_preset("gpt-oss-120b"));
    const std::vector<Tactic> list = ops::tile_candidates({&s, tokens});
    const Tactic whole = TileTactic{ops::kWholeTile, ops::kWholeTile};
    return std::find(list.begin(), list.end(), whole) != list.end();
  };
  EXPECT_TRUE(tries("w4a16_mxfp4", 1));
  EXPECT_TRUE(tries("nvfp4", 1));
  EXPECT_FALSE(tries("none", 1)) << "bf16 is not decoded";
  EXPECT_FALSE(tries("fp8_block_scales", 1)) << "nor are E4M3 operands";
  EXPECT_FALSE(tries("w4a16_mxfp4", 8192)) << "it is the tier of eight tokens";
}

TEST(TilePlanner, RefusesATierThatIsNotBuilt) {
  const ops::FfnShape s = shape_of("nvfp4", make_preset("qwen3-30b-a3b"));
  const auto error = [&](const Tactic& t) {
    return test::usage_error_of([&] { ops::check_tile_tactic({&s, 64}, t); });
  };
  EXPECT_THAT(error(TileTactic{17, 8}), HasSubstr("no tier of 17 tokens"));
  EXPECT_THAT(error(TileTactic{8, 3}), HasSubstr("no tier of 3 tokens"));
  EXPECT_THAT(error(TileTactic{8, 8, 2}), HasSubstr("no way 2 to route"));
  EXPECT_THAT(error(PanelTactic{}), HasSubstr("CPU's panels"));
}

TEST(FfnWork, ExpectsDistinctExperts) {
  const ops::FfnShape s = shape_of("none", make_preset("qwen3-30b-a3b"));
  EXPECT_DOUBLE_EQ(ops::FfnWork(s, 1).experts, 8);
  EXPECT_DOUBLE_EQ(ops::FfnWork(s, 1).rows_each, 1);
  EXPECT_NEAR(ops::FfnWork(s, 4096).experts, 128, 1e-9);
  EXPECT_NEAR(ops::FfnWork(s, 4096).rows_each, 256, 1e-9);
}

TEST(FfnWork, EstimatesMemoryFlopsAndWaves) {
  const ops::FfnShape s = shape_of("none", make_preset("qwen3-30b-a3b"));
  const ops::GemmWork gemm{1536, 2048, 16};
  const ops::FfnWork one(s, 1), many(s, 8192);
  EXPECT_GE(ops::estimated_us(one, gemm, 8), 8 * 1536 * 2048 * 2 / 4.3e6) << "memory";
  EXPECT_GE(ops::estimated_us(many, gemm, 128), 2.0 * 65536 * 1536 * 2048 / 7e8) << "flops";
  EXPECT_GT(ops::estimated_us(many, gemm, 8), 4 * ops::estimated_us(many, gemm, 128));
}

// Values by hand: 64 rows of 1000 columns for each of 132 experts are 8448000 weights, and one tile
// of an expert fills the 132 multiprocessors once.
TEST(FfnWork, EachTermOfTheEstimateCountsWhereItIsTheLargest) {
  const ops::FfnShape s = shape_of("none", make_preset("qwen3-30b-a3b"));
  const auto us = [&](double experts, double rows_each, const ops::GemmWork& gemm,
                      std::int64_t tile) {
    ops::FfnWork work(s, 1);
    work.experts = experts, work.rows_each = rows_each;
    return ops::estimated_us(work, gemm, tile);
  };
  const ops::GemmWork wide{64, 1000, 16}, four{64, 1000, 4};
  EXPECT_NEAR(us(132, 8, wide, 8), 16.896 / 4.3, 1e-9) << "memory: each weight once";
  EXPECT_NEAR(us(132, 16, wide, 8), 2 * 16.896 / 5.5, 1e-9) << "cache: once for each tile";
  EXPECT_NEAR(us(132, 64, four, 64), 1081.344 / 700, 1e-9) << "flops";
  EXPECT_NEAR(us(132, 8, four, 8), 1081.344 / 700, 1e-9) << "narrow tiles at the rate of 64";
  EXPECT_NEAR(us(132, 100, four, 128), 2162.688 / 700, 1e-9) << "flops of a padded tile";
  EXPECT_NEAR(us(264, 12, four, 8), 4 * 1081.344 / 700, 1e-9) << "12 rows are two tiles of 8";
  EXPECT_NEAR(us(66, 8, wide, 8), 16.896 / 4.3, 1e-9) << "half a wave takes a whole one's time";
  EXPECT_NEAR(us(198, 8, wide, 8), 2 * 16.896 / 4.3, 1e-9) << "so do one and a half";
  EXPECT_NEAR(us(132, 8, {32, 1000, 16}, 8), 8.448 / 4.3, 1e-9) << "a half row tile is a tile";
}

// ---- kernels ----

using CpuTactics = test::EveryLeaf;

TEST_P(CpuTactics, EveryCandidateGivesTheSameBitsOnEveryTier) {
  for (CpuIsa isa : test::runnable_tiers()) {
    const MoeLayer layer = build(base(), isa);
    EXPECT_GT(test::expect_same_bits_for_every_tactic(layer, 9), 4);
  }
}

TEST_P(CpuTactics, EveryCandidateGivesTheSameBitsForManyRows) {
  LeafCase c = base();
  c.problem.hidden = 352;
  const MoeLayer layer = build(c);
  for (std::int64_t tokens : test::subset_or_full<std::vector<std::int64_t>>({130}, {1, 130, 700}))
    EXPECT_GT(test::expect_same_bits_for_every_tactic(layer, tokens), 4);
}

TEST_P(CpuTactics, TheProductOfTwoCallsGivesTheSameBits) {
  const MoeLayer layer = build(test::shared_case(leaf(), 96));
  Call call(layer.impl(), 3);
  const std::vector<TunableCall> calls = test::recorded_calls(call);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].name, "shared expert");
  EXPECT_EQ(calls[1].name, "experts");
  EXPECT_EQ(num_combinations(calls),
            std::int64_t(calls[0].candidates.size() * calls[1].candidates.size()));
  EXPECT_GT(test::expect_same_bits_for_every_tactic(layer, 3), 16);
}

INSTANTIATE_TEST_SUITE_P(Leaves, CpuTactics, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard::tune
