// SPDX-License-Identifier: Apache-2.0
// What ranks on GPUs decide on the host: a rank's numbers of the experts, and what is refused by
// name before anything is packed or allocated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "switchyard/api/judge.h"
#include "switchyard/api/rank_moe_layer.h"
#include "switchyard/core/shard.h"
#include "switchyard/layer/rank_layer.h"
#include "switchyard/resolve/probe.h"
#include "tests/cases/leaf_case.h"
#include "tests/cases/rank_case.h"
#include "tests/comm/thread_ranks.h"

namespace switchyard {
namespace {

using comm::Group;
using layer::RankLayer;
using test::LeafCase;
using test::Mode;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

using Numbers = std::vector<std::int32_t>;

const leaves::Leaf& leaf(Device device) { return *leaves::find_leaf("bf16", device).leaf; }

MoeLayer build(const LeafCase& c) {
  return test::build_layer(test::make_weights(c.problem, leaf(Device::kCpu)), c.options,
                           test::runnable_tiers().back());
}

/// Every rank's numbers of a layer's ids.
std::vector<Numbers> numbers_of(const LeafCase& c, const Mode& m, int ranks,
                                const std::vector<std::int32_t>& slot_experts = {}) {
  const MoeLayer whole = build(c);
  std::vector<Numbers> out{std::size_t(ranks)};
  test::expect_all_well(test::on_thread_ranks(ranks, test::long_deadlines(), [&](Group& g) {
    layer::RankOptions o = test::rank_options(whole.impl(), m.on(ranks));
    o.slot_experts = slot_experts;
    const RankLayer rank(g, test::make_weights(c.problem, leaf(Device::kCpu)), o);
    out[std::size_t(g.rank())] = rank.local_numbers();
  }));
  return out;
}

LeafCase base() { return {test::small_problem(leaf(Device::kCpu)), {}, 9}; }  // 6 experts

TEST(LocalNumbers, AreThoseOfTheHeldExperts) {
  const std::vector<Numbers> uneven = numbers_of(base(), {Parallel::kTep, 1}, 4);
  EXPECT_THAT(uneven[0], ElementsAre(0, 1, -1, -1, -1, -1));
  EXPECT_THAT(uneven[1], ElementsAre(-1, -1, 0, 1, -1, -1));
  EXPECT_THAT(uneven[2], ElementsAre(-1, -1, -1, -1, 0, -1));
  EXPECT_THAT(uneven[3], ElementsAre(-1, -1, -1, -1, -1, 0));
  const std::vector<Numbers> moved = numbers_of(base(), {Parallel::kTep, 1}, 2, {5, 1, 3, 0, 2, 4});
  EXPECT_THAT(moved[0], ElementsAre(-1, 1, -1, 2, -1, 0));
  EXPECT_THAT(moved[1], ElementsAre(0, -1, 1, -1, 2, -1));
  for (const Numbers& all : numbers_of(base(), {Parallel::kTtp, 2}, 2))
    EXPECT_THAT(all, ElementsAre(0, 1, 2, 3, 4, 5));
}

// A zero expert is the first rank's, behind those that it holds.
TEST(LocalNumbers, ZeroExpertsAreAddedOnce) {
  LeafCase c = base();
  c.problem.routing.zero_experts = 2;
  const std::vector<Numbers> tep = numbers_of(c, {Parallel::kTep, 1}, 2);
  EXPECT_THAT(tep[0], ElementsAre(0, 1, 2, -1, -1, -1, 3, 4));
  EXPECT_THAT(tep[1], ElementsAre(-1, -1, -1, 0, 1, 2, -1, -1));
  const std::vector<Numbers> ttp = numbers_of(c, {Parallel::kTtp, 2}, 2);
  EXPECT_THAT(ttp[0], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(ttp[1], ElementsAre(0, 1, 2, 3, 4, 5, -1, -1));
}

// 96 columns over 4 ranks: 32 each, and none for the last.
TEST(LocalNumbers, ARankWithoutColumnsSkipsTheExperts) {
  const std::vector<Numbers> ttp = numbers_of(base(), {Parallel::kTtp, 0}, 4);
  for (std::size_t r = 0; r < 3; ++r) EXPECT_THAT(ttp[r], ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(ttp[3], Each(-1));
  LeafCase fused = test::shared_case(leaf(Device::kCpu), 96);
  fused.options.fuse_shared = true;
  EXPECT_THAT(numbers_of(fused, {Parallel::kTtp, 0}, 2)[1], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

/// What creation says of a layer on GPUs; "" where it goes well, which no machine without them
/// sees.
std::string refusal(const std::function<void(layer::RankOptions&, Problem&)>& change,
                    int ranks = 2) {
  const LeafCase c = base();
  checkpoint::LayerWeights weights = test::make_weights(c.problem, leaf(Device::kCuda));
  return test::text_of<UsageError>(
      test::on_thread_ranks(ranks, test::long_deadlines(), [&](Group& g) {
        layer::RankOptions o;
        o.layer.leaf = &leaf(Device::kCuda);
        o.layer.pool = std::make_shared<ThreadPool>(1);
        o.parallel = Parallel::kTep;
        o.capacity = 8;
        checkpoint::LayerWeights mine = weights;
        change(o, mine.problem);
        const RankLayer rank(g, std::move(mine), o);
      })[0]);
}

TEST(GpuRanks, WhatTheyDoNotServeIsRefusedByName) {
  const auto in = [](Parallel p) {
    return [p](layer::RankOptions& o, Problem&) {
      o.parallel = p;
      if (p == Parallel::kDtp) o.tp = 2;
      o.strategy = &comm::all_gather();
    };
  };
  EXPECT_THAT(refusal(in(Parallel::kDep)), HasSubstr("parallel is dep on cuda"));
  EXPECT_THAT(refusal(in(Parallel::kDtp)), HasSubstr("parallel is dtp on cuda"));
  EXPECT_THAT(refusal([](layer::RankOptions& o, Problem&) { o.balanced = true; }),
              HasSubstr("6 experts that may migrate"));
  EXPECT_THAT(
      refusal([](layer::RankOptions& o, Problem&) { o.slot_experts = {0, 1, 2, 3, 4, 5, 0, 1}; }),
      HasSubstr("8 slots for 6 experts"));
  EXPECT_THAT(refusal([](layer::RankOptions& o, Problem&) {
                o.finalize.run = [](void*, const DispatchedRows&) {};
              }),
              HasSubstr("reads rows on the host"));
  EXPECT_THAT(refusal([](layer::RankOptions&, Problem& p) { p.combine = CombinePrecision::kFp8; }),
              HasSubstr("the combine is fp8"));
}

/// What a run on GPUs says, in a machine that has `gpus` of them.
std::string run_refusal(int gpus, Parallel parallel, std::int64_t ranks,
                        const std::string& format = "bf16") {
  const resolve::ScopedEnvironment scope(resolve::with_gpu(resolve::environment(), 90, gpus));
  RunOptions o;
  o.preset = "qwen3-30b-a3b";
  o.tokens = 4;
  o.build.device = Device::kCuda;
  o.build.format = format;
  o.build.parallel = parallel;
  const bool cut = parallel == Parallel::kTtp || parallel == Parallel::kDtp;
  (cut ? o.build.tp : o.build.ep) = ranks;
  try {
    run(o);
  } catch (const CannotServe& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string("another type: ") + e.what();
  }
  return "";
}

TEST(GpuRanks, ARunNamesRanksAndGpus) {
  if (resolve::environment().num_gpus > 1) GTEST_SKIP() << "more than one GPU here";
  EXPECT_THAT(run_refusal(1, Parallel::kTep, 4), HasSubstr("4 ranks take a GPU each, 1 is here"));
  EXPECT_THAT(run_refusal(2, Parallel::kTtp, 8), HasSubstr("8 ranks take a GPU each, 2 are here"));
  EXPECT_THAT(run_refusal(8, Parallel::kDep, 2), HasSubstr("parallel is dep on cuda"));
  EXPECT_THAT(run_refusal(8, Parallel::kDtp, 2), HasSubstr("parallel is dtp on cuda"));
  EXPECT_THAT(run_refusal(8, Parallel::kTtp, 4, "fp8_block_scales"),
              HasSubstr("inter = 768 over tp = 4"));
}

/// What a layer on ranks says by the installed headers, in a machine that has `gpus` GPUs.
std::string layer_refusal(int gpus, Parallel parallel) {
  const resolve::ScopedEnvironment scope(resolve::with_gpu(resolve::environment(), 90, gpus));
  std::string text;
  std::mutex lock;
  on_rank_threads(2, [&](Rank& rank) {
    RankBuildOptions o;
    o.build.device = Device::kCuda;
    o.build.parallel = parallel;
    o.build.ep = 2;
    o.max_tokens = 4;
    try {
      RankMoeLayer::from_preset(rank, "tiny", o);
    } catch (const CannotServe& e) {
      const std::lock_guard hold(lock);
      text = e.what();
    }
  });
  return text;
}

TEST(GpuRanks, ALayerOnRanksNamesModeAndGpus) {
  if (resolve::environment().num_gpus > 1) GTEST_SKIP() << "more than one GPU here";
  EXPECT_THAT(layer_refusal(1, Parallel::kTep), HasSubstr("2 ranks take a GPU each, 1 is here"));
  EXPECT_THAT(layer_refusal(8, Parallel::kDep), HasSubstr("parallel is dep on cuda"));
}

}  // namespace
}  // namespace switchyard
