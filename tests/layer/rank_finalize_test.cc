// SPDX-License-Identifier: Apache-2.0
// Layers of ranks that end in the fused all-reduce: bit for bit the contract that the leaf's own
// fp32 rows, weights and shared shards make.
#include <gmock/gmock.h>

#include <algorithm>

#include "switchyard/api/judge.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/core/shard.h"
#include "switchyard/layer/judge.h"
#include "switchyard/layer/rank_judge.h"
#include "switchyard/layer/rank_layer.h"
#include "tests/cases/finalize_case.h"
#include "tests/cases/leaf_case.h"
#include "tests/cases/share_case.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"
#include "tests/support/soak.h"

namespace switchyard {
namespace {

using comm::Group;
using layer::RankLayer;
using test::Behind;
using test::Call;
using test::EveryLeaf;
using test::LeafCase;
using testing::HasSubstr;

constexpr int kRanks = 2;
constexpr std::int64_t kTokens = 5;
using Bytes = std::vector<std::byte>;
using Parts = std::vector<std::unique_ptr<layer::Layer>>;

struct Mode {
  Parallel parallel;
  std::int64_t tp;
};

class Finalize : public EveryLeaf {
 protected:
  static Parts parts_of(const MoeLayer& whole, const Mode& mode) {
    Parts parts;
    for (int r = 0; r < kRanks; ++r) {
      const std::int64_t ep = kRanks / mode.tp;
      Shard held;  // of fused shared experts every rank holds all
      if (whole.impl().routed().shape.unscaled_choices == 0)
        held = ep_shard(whole.impl().problem().num_experts(), ep, r / int(mode.tp));
      parts.push_back(test::make_part(whole.impl(), {held, {r % mode.tp, mode.tp}, {r, kRanks}}));
    }
    return parts;
  }

  static layer::RankOptions options_of(const MoeLayer& whole, const Mode& mode, Ending ending,
                                       std::int64_t capacity) {
    layer::RankOptions o;
    o.layer = whole.impl().options();
    o.layer.pool = std::make_shared<ThreadPool>(1);
    o.parallel = mode.parallel;
    o.tp = mode.tp;
    o.capacity = capacity;
    o.ending = ending;
    return o;
  }

  void expect_sum(const Mode& mode, Ending ending, const LeafCase& c) {
    const MoeLayer whole = build(c);
    const Parts parts = parts_of(whole, mode);
    test::expect_all_well(test::on_thread_ranks(kRanks, test::long_deadlines(), [&](Group& g) {
      const layer::RankOptions o = options_of(whole, mode, ending, kTokens);
      RankLayer rank(g, test::with_declared_scales(whole.impl()), o);
      HostBuffer workspace(rank.workspace_bytes());
      Call call(whole.impl(), kTokens, 30);
      std::vector<test::Share> shares;
      for (const auto& part : parts) shares.push_back(test::share_of(*part, call));
      ForwardArgs args = call.args();
      args.workspace = workspace.bytes();
      rank.forward(args);
      EXPECT_TRUE(test::same_bits(call.out, test::EndOf{parts, shares, ending, call}.output()))
          << to_string(mode.parallel) << " " << to_string(ending);
      EXPECT_FALSE(test::same_bits(call.out, test::EndOf{parts, shares, ending, call, 1}.output()));
    }));
  }

  void expect_contract(const Mode& mode, Ending ending, const LeafCase& c) {
    const MoeLayer whole = build(c);
    const Parts parts = parts_of(whole, mode);
    test::expect_all_well(test::on_thread_ranks(kRanks, test::long_deadlines(), [&](Group& g) {
      const layer::RankOptions o = options_of(whole, mode, ending, kTokens + 2);
      RankLayer rank(g, test::with_declared_scales(whole.impl()), o);
      HostBuffer workspace(rank.workspace_bytes());
      Call call(whole.impl(), kTokens, 30);
      std::vector<test::Share> shares;
      for (const auto& part : parts) shares.push_back(test::share_of(*part, call));
      const Dtype t = o.layer.dtype;
      const std::int64_t hidden = c.problem.hidden;
      Behind want(t, kTokens, hidden), got(t, kTokens, hidden), control(t, kTokens, hidden);
      test::EndOf{parts, shares, ending, call}.write(want);
      test::EndOf{parts, shares, ending, call, 1}.write(control);
      for (int i = 0; i < 2; ++i) {
        ForwardArgs args = call.args();
        args.workspace = workspace.bytes();
        std::ranges::fill(workspace.bytes(), std::byte{0xc5});
        rank.forward(args, got.args());
        EXPECT_TRUE(test::same_bits(got.residual_out, want.residual_out))
            << to_string(ending) << ", factor " << c.problem.routed_scaling_factor << ", rank "
            << g.rank();
        EXPECT_TRUE(test::same_bits(got.norm_out, want.norm_out)) << to_string(ending);
        EXPECT_FALSE(test::same_bits(got.residual_out, control.residual_out));
      }
    }));
  }

  void expect_roundings(const LeafCase& c) {
    constexpr double kHalfUlp = 0x1p-9;  // of bf16
    const MoeLayer whole = build(c);
    test::expect_all_well(test::on_thread_ranks(kRanks, test::long_deadlines(), [&](Group& g) {
      const Call call(whole.impl(), kTokens, 30);
      auto judged = [&](Ending ending) {
        RankLayer rank(g, test::with_declared_scales(whole.impl()),
                       options_of(whole, {Parallel::kTep, 1}, ending, kTokens));
        const layer::Judgement j = judge_ranks(rank, {kTokens, call.exact.data(), nullptr, {}});
        EXPECT_TRUE(j.ok(budgets_of(rank))) << to_string(ending) << " " << j.rel_l2_oracle;
        EXPECT_LT(j.rel_l2_oracle, kHalfUlp) << to_string(ending);
        return j.out;
      };
      const std::vector<double> plain = judged(Ending::kPlain);
      for (Ending ending : {Ending::kFused, Ending::kReduce}) {
        const std::vector<double> out = judged(ending);
        EXPECT_GT(layer::rel_l2(out.data(), plain.data(), out.size()), kHalfUlp);
      }
    }));
  }
};

TEST_P(Finalize, EndsKeepTheirContractBitForBit) {
  constexpr Mode kModes[] = {{Parallel::kTtp, 2}, {Parallel::kTep, 1}};
  int turn = int(leaf().id.quant.size());
  for (const Mode& mode : kModes)
    for (Ending ending : {Ending::kFused, Ending::kReduce})
      for (float factor : {1.0F, 2.5F})
        for (bool shared : {false, true})
          if (test::is_soak() || ++turn % 3 == 0) {
            LeafCase c = shared ? test::shared_case(leaf(), 96) : base();
            c.problem.routed_scaling_factor = factor;
            expect_contract(mode, ending, c);
          }
}

// With nothing behind it a layer gives the sum, whatever its ending; zero experts, fused shared
// ones and a plain ending's unrounded rows included.
TEST_P(Finalize, TheSumAloneKeepsTheContract) {
  LeafCase shared = test::shared_case(leaf(), 96), zeros = base(), fused = shared;
  shared.problem.routed_scaling_factor = zeros.problem.routed_scaling_factor = 2.5F;
  zeros.problem.routing.zero_experts = 2;
  fused.options.fuse_shared = true;
  for (const LeafCase* c : {&shared, &zeros, &fused})
    for (const Mode& mode : {Mode{Parallel::kTtp, 2}, Mode{Parallel::kTep, 1}})
      for (const Ending ending : {Ending::kPlain, Ending::kFused, Ending::kReduce}) {
        const bool plain = ending == Ending::kPlain;
        if (c == &zeros && ending == Ending::kReduce) continue;                    // refused
        if (c == &fused && (!plain || mode.parallel == Parallel::kTep)) continue;  // refused
        expect_sum(mode, ending, *c);
      }
}

// Weights that stand in the experts' inputs weigh no row again, but those of zero experts, which
// one rank adds.
TEST_P(Finalize, WeightsOnTheInputAndZeroExpertsKeepTheContract) {
  for (const auto placement : {WeightPlacement::kInput, WeightPlacement::kOutput})
    for (const int zeros : {0, 2})
      for (Ending ending : {Ending::kFused, Ending::kReduce}) {
        if (placement == WeightPlacement::kOutput && zeros == 0) continue;  // the test above
        if (zeros > 0 && ending == Ending::kReduce) continue;               // refused
        LeafCase c = base();
        c.problem.routing.placement = placement;
        c.problem.routing.zero_experts = zeros;
        c.problem.routed_scaling_factor = 2.5F;
        if (!leaf().can_implement(c.problem, Deployment{}).eligible()) continue;
        SCOPED_TRACE(cat(zeros, " zero experts, weights on the ",
                         placement == WeightPlacement::kInput ? "input" : "output"));
        expect_contract({Parallel::kTep, 1}, ending, c);
        if (test::is_soak()) expect_contract({Parallel::kTtp, 2}, ending, c);
      }
}

// An output whose rows lie further apart than they are wide: the same rows, and nothing between.
TEST_P(Finalize, AWiderOutputStrideLeavesTheGapsAlone) {
  constexpr std::int64_t kGap = 3;
  const LeafCase c = base();
  const MoeLayer whole = build(c);
  test::expect_all_well(test::on_thread_ranks(kRanks, test::long_deadlines(), [&](Group& g) {
    for (Ending ending : {Ending::kFused, Ending::kReduce}) {
      layer::RankOptions o;
      o.layer = whole.impl().options();
      o.layer.pool = std::make_shared<ThreadPool>(1);
      o.parallel = Parallel::kTep;
      o.capacity = kTokens;
      o.ending = ending;
      RankLayer rank(g, test::with_declared_scales(whole.impl()), o);
      HostBuffer workspace(rank.workspace_bytes());
      Call call(whole.impl(), kTokens, 30);
      ForwardArgs args = call.args();
      args.workspace = workspace.bytes();
      rank.forward(args);
      const std::size_t row = call.out.size() / kTokens,
                        gap = kGap * size_of(whole.impl().options().dtype);
      Bytes want, got(kTokens * (row + gap), std::byte(0xc5));
      for (std::size_t t = 0; t < kTokens; ++t) {
        const auto from = call.out.begin() + std::ptrdiff_t(t * row);
        want.insert(want.end(), from, from + std::ptrdiff_t(row));
        want.insert(want.end(), gap, std::byte(0xc5));
      }
      args.out = got.data();
      args.out_stride = c.problem.hidden + kGap;
      rank.forward(args);
      EXPECT_TRUE(test::same_bits(got, want)) << to_string(ending);
    }
  }));
}

// The ranks' oracle rounds rows and shared shard where the ending does: what is left is the
// output's own rounding. A plain ending rounds elsewhere, and is further away than that.
TEST_P(Finalize, TheOracleRoundsWhatTheEndingRounds) {
  LeafCase c = test::shared_case(leaf(), 96);
  c.options.dtype = Dtype::kBf16;
  c.problem.routed_scaling_factor = 2.5F;
  expect_roundings(c);
  c.problem.routing.placement = WeightPlacement::kInput;
  if (leaf().can_implement(c.problem, Deployment{}).eligible()) expect_roundings(c);
}

INSTANTIATE_TEST_SUITE_P(Leaves, Finalize, test::every_cpu_leaf(), test::leaf_name);

// The run judges every output, and says how the layer ended.
TEST(FinalizeRun, EveryEndingIsJudged) {
  struct Case {
    const char *ending, *format;
    Parallel parallel;
  };
  for (const Case& c : {Case{"plain", "bf16", Parallel::kTtp},
                        {"fused", "bf16", Parallel::kTtp},
                        {"fused", "nvfp4", Parallel::kTep},
                        {"reduce", "bf16", Parallel::kTep},
                        {"reduce", "fp8_block_scales", Parallel::kTtp}}) {
    RunOptions o;
    o.tokens = 5;
    o.finalize = c.ending;
    o.build.format = c.format;
    o.build.parallel = c.parallel;
    o.build.routed_scaling_factor = 2.5F;
    (c.parallel == Parallel::kTtp ? o.build.tp : o.build.ep) = kRanks;
    const RunResult result = run(o);
    ASSERT_EQ(result.measurements.size(), 1U);
    EXPECT_TRUE(result.ok) << c.ending << " " << c.format;
    EXPECT_EQ(result.measurements[0].finalize, c.ending);
    EXPECT_GT(result.measurements[0].rel_l2, 0) << c.ending;
  }
  RunOptions alone;
  alone.finalize = "fused";
  EXPECT_THROW(run(alone), UsageError);
}

/// What creation or a forward says of such a layer on its ranks; "" where both go well.
std::string refusal(const LeafCase& c, Parallel parallel, Ending ending,
                    bool own_finalize = false) {
  const leaves::Leaf& leaf = *leaves::all_leaves(Device::kCpu)[0];
  const MoeLayer whole = test::build_layer(test::make_weights(c.problem, leaf), c.options,
                                           test::runnable_tiers().back());
  return test::text_of<UsageError>(
      test::on_thread_ranks(kRanks, test::long_deadlines(), [&](Group& g) {
        layer::RankOptions o;
        o.layer = whole.impl().options();
        o.layer.pool = std::make_shared<ThreadPool>(1);
        o.parallel = parallel;
        o.tp = kRanks;
        o.capacity = kTokens;
        o.ending = ending;
        if (own_finalize) o.finalize.run = [](void*, const DispatchedRows&) {};
        RankLayer rank(g, test::with_declared_scales(whole.impl()), o);
        HostBuffer workspace(rank.workspace_bytes());
        Call call(whole.impl(), kTokens, 30);
        ForwardArgs args = call.args();
        args.workspace = workspace.bytes();
        Behind behind(o.layer.dtype, kTokens, whole.impl().problem().hidden);
        rank.forward(args, behind.args());
      })[0]);
}

// Ranks with tokens of their own cannot end so, and a plain layer has nothing behind it; nor can
// sums that are not of experts' rows of the hidden width. A good call follows.
TEST(FinalizeFaults, WhatCannotEndSoIsRefusedByName) {
  const LeafCase c = test::shared_case(*leaves::all_leaves(Device::kCpu)[0], 96);
  LeafCase latent = c, fuses = c;
  latent.problem.latent = 70;
  fuses.options.fuse_shared = true;
  EXPECT_THAT(refusal(c, Parallel::kDtp, Ending::kFused), HasSubstr("not dtp"));
  EXPECT_THAT(refusal(c, Parallel::kTtp, Ending::kPlain), HasSubstr("ends plainly"));
  EXPECT_THAT(refusal(latent, Parallel::kTtp, Ending::kFused), HasSubstr("latent space"));
  EXPECT_THAT(refusal(fuses, Parallel::kTtp, Ending::kReduce), HasSubstr("fused shared experts"));
  EXPECT_THAT(refusal(c, Parallel::kTtp, Ending::kFused, true), HasSubstr("one of its own"));
  EXPECT_EQ(refusal(c, Parallel::kTtp, Ending::kFused), "");
}

}  // namespace
}  // namespace switchyard
