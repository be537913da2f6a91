// SPDX-License-Identifier: Apache-2.0
// The four parallel modes on four thread ranks: bit for bit the contract that their fp32 shares
// make, and judged by the ranks' oracle.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "switchyard/api/layer_builder.h"
#include "switchyard/comm/factory.h"
#include "switchyard/core/shard.h"
#include "switchyard/layer/rank_judge.h"
#include "tests/cases/leaf_case.h"
#include "tests/cases/rank_case.h"
#include "tests/cases/share_case.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using comm::Group;
using layer::RankLayer;
using layer::RankOptions;
using test::Call;
using test::EveryLeaf;
using test::expect_all_well;
using test::LeafCase;
using test::long_deadlines;
using test::on_thread_ranks;
using test::text_of;
using testing::HasSubstr;

constexpr int kRanks = 4;
constexpr std::int64_t kCapacity = test::kRankCapacity, kTokens = test::kRankTokens;
using test::expected_of_parts;
using test::Mode;
using test::Parts;

constexpr Mode kModes[] = {{Parallel::kTep, 1}, {Parallel::kTtp, 4}, {Parallel::kDtp, 4},
                           {Parallel::kTep, 2}, {Parallel::kDtp, 2}, {Parallel::kDep, 2}};

RankOptions options_of(const layer::Layer& whole, const Mode& m) {
  RankOptions o = test::rank_options(whole, m);
  o.strategy = m.own_tokens() ? &comm::all_gather() : nullptr;
  return o;
}

Parts parts_of(const layer::Layer& whole, const Mode& m) {
  return test::parts_of(whole, m, kRanks);
}
std::vector<std::byte> expected(const Parts& parts, comm::Wire wire, Call& call,
                                int left_out = -1) {
  return expected_of_parts(parts, wire, call, left_out);
}

class Modes : public EveryLeaf {
 protected:
  LeafCase case_for(const Mode& m) const { return test::mode_case(leaf(), m); }

  void expect_contract(const Mode& m, CombinePrecision combine) {
    expect_contract(m, combine, case_for(m));
  }

  void expect_contract(const Mode& m, CombinePrecision combine, const LeafCase& c) {
    const MoeLayer whole = build(c);
    const Parts parts = parts_of(whole.impl(), m);
    checkpoint::LayerWeights weights = test::with_declared_scales(whole.impl());
    weights.problem.combine = combine;
    const comm::Wire wire = combine == CombinePrecision::kFp8     ? comm::Wire::kFp8
                            : combine == CombinePrecision::kNvfp4 ? comm::Wire::kNvfp4
                                                                  : comm::Wire::kBf16;
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      RankLayer rank(g, weights, options_of(whole.impl(), m));
      HostBuffer workspace(rank.workspace_bytes());
      Call call(whole.impl(), tokens_of(m, g.rank()), seed_of(m, g.rank()));
      EXPECT_EQ(rank.wire(), wire);
      const std::vector<std::byte> want = expected(parts, wire, call);
      if (call.tokens > 0) {
        for (int r = 0; r < kRanks; ++r)
          if (parts[std::size_t(r)]->routed().shape.inter > 0) {
            EXPECT_TRUE(expected(parts, wire, call, r) != want) << "without rank " << r;
          }
      }
      constexpr int kCalls = 3;
      for (int i = 0; i < kCalls; ++i) {
        ForwardArgs args = call.args();
        args.workspace = workspace.bytes();
        std::ranges::fill(workspace.bytes(), std::byte{0xc5});
        std::ranges::fill(call.out, std::byte{0xff});
        rank.forward(args);
        EXPECT_TRUE(call.out == want)
            << to_string(m.parallel) << ", tp " << m.tp << ", rank " << g.rank() << ", call " << i;
      }
    }));
  }
};

/// Two legs of a mode's matrix: each of them meets every other leaf of the registry, in its order.
bool is_leg_of(const leaves::Leaf& leaf, std::size_t leg) {
  const auto all = leaves::all_leaves(Device::kCpu);
  const auto at = std::size_t(std::ranges::find(all, &leaf) - all.begin());
  return test::is_soak() || leg % 2 == at % 2;
}

TEST_P(Modes, UnderAutoEachKeepsItsContract) {
  for (const Mode& m : test::kFourModes) {
    const MoeLayer whole = build(case_for(m));
    const Parts parts = test::parts_of(whole.impl(), m.on(kRanks), kRanks);
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      EXPECT_EQ(test::mode_fault(g, whole.impl(), m.on(kRanks), parts), "");
    }));
  }
}

TEST_P(Modes, KeepTheirContractBitForBit) {
  for (std::size_t i = 0; i < std::size(kModes); ++i)
    if (is_leg_of(leaf(), i)) expect_contract(kModes[i], CombinePrecision::kBf16);
}

// Sums and shares of the latent width; norm, up-projection and the whole shared expert behind them.
TEST_P(Modes, LatentLayersSumInLatentSpace) {
  constexpr Mode kOf[] = {
      {Parallel::kDep, 1}, {Parallel::kTep, 1}, {Parallel::kDtp, 4}, {Parallel::kTtp, 4}};
  for (std::size_t i = 0; i < std::size(kOf); ++i) {
    if (!is_leg_of(leaf(), i)) continue;
    LeafCase c = base();
    c.problem.latent = 70;
    c.problem.num_shared = 1, c.problem.shared_inter = 64, c.problem.shared_gate = true;
    if (kOf[i].parallel == Parallel::kDep) c.problem.routed_scaling_factor = 1;
    expect_contract(kOf[i], CombinePrecision::kBf16, c);
  }
}

// The same through the strategies of dep, one of which is the fused leaf, and judged by the oracle.
TEST_P(Modes, LatentLayersAreJudgedOnEveryRank) {
  LeafCase c = base();
  c.problem.latent = 70;
  c.problem.num_shared = 1, c.problem.shared_inter = 64;
  const MoeLayer whole = build(c);
  for (const comm::Strategy* strategy :
       {&comm::fused(), &comm::expert_major(), static_cast<const comm::Strategy*>(nullptr)}) {
    const Mode m{strategy != nullptr ? Parallel::kDep : Parallel::kTep, 1};
    expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
      RankOptions o = options_of(whole.impl(), m);
      o.strategy = strategy;
      RankLayer rank(g, test::with_declared_scales(whole.impl()), o);
      const Call call(whole.impl(), kTokens, seed_of(m, g.rank()));
      const layer::JudgeArgs ask{call.tokens, call.exact.data(), nullptr, {}};
      const layer::Judgement j = judge_ranks(rank, ask);
      EXPECT_TRUE(j.ok(budgets_of(rank)))
          << j.rel_l2_oracle << ", " << j.codes_differing << " of " << j.codes << " codes";
      EXPECT_GT(j.rel_l2_oracle, 0);
    }));
  }
}

// Under ttp every rank holds columns of the fused shared experts, which count behind the factor.
TEST_P(Modes, FusedSharedExpertsAreShardsOfTheirOwn) {
  LeafCase c = test::shared_case(leaf(), 96);
  c.options.fuse_shared = true;
  c.problem.routed_scaling_factor = 2.5F;
  const MoeLayer whole = build(c);
  if (whole.impl().routed().shape.unscaled_choices == 0) GTEST_SKIP() << "not fused";
  expect_contract({Parallel::kTtp, 4}, CombinePrecision::kBf16, c);
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    const Mode m{Parallel::kTtp, 2};
    RankLayer rank(g, test::with_declared_scales(whole.impl()), options_of(whole.impl(), m));
    const Call call(whole.impl(), kTokens, 30);
    const layer::Judgement j = judge_ranks(rank, {kTokens, call.exact.data(), nullptr, {}});
    EXPECT_TRUE(j.ok(budgets_of(rank))) << j.rel_l2_oracle;
  }));
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    RankOptions o = options_of(whole.impl(), {Parallel::kTep, 1});
    EXPECT_THAT(
        test::usage_error_of([&] { RankLayer(g, test::with_declared_scales(whole.impl()), o); }),
        HasSubstr("shared experts are fused on one rank"));
  }));
}

TEST_P(Modes, LowPrecisionCombines) {
  expect_contract(kModes[0], CombinePrecision::kFp8);
  if (test::is_soak()) expect_contract(kModes[2], CombinePrecision::kNvfp4);
}

/// The weights that a layer's oracle reads; `api` and ranks hand them out const.
checkpoint::LayerWeights& read_by_oracle(RankLayer& rank) {
  return const_cast<checkpoint::LayerWeights&>(rank.part().weights());
}

// Each rank has a part of the layer whose oracle, once told to, reads each expert's neighbour, or
// another shared expert: the judgement says no on all ranks.
TEST_P(Modes, TheRanksOracleAcceptsThemAndNotOthersWeights) {
  std::vector<Mode> modes;
  for (const Mode& m : test::kFourModes) modes.push_back(m.on(kRanks));
  if (test::is_soak() || leaf().id.quant == "none") modes.push_back({Parallel::kDtp, 2});
  for (const Mode& m : modes) {
    const LeafCase c = test::shared_case(leaf(), 96);
    const MoeLayer whole = build(c);
    std::atomic<int> changed = 0;
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      SCOPED_TRACE(cat(to_string(m.parallel), ", tp ", m.tp, ", rank ", g.rank()));
      RankOptions o = options_of(whole.impl(), m);
      if (m.parallel == Parallel::kDep) o.strategy = &comm::one_sided();
      auto neighbours = std::make_shared<std::atomic<bool>>(false);
      checkpoint::LayerWeights w = test::with_declared_scales(whole.impl());
      w.expert = [inner = w.expert, neighbours](std::int64_t e) {
        return inner(*neighbours ? e ^ 1 : e);
      };
      RankLayer rank(g, std::move(w), o);
      const layer::Budgets budgets = budgets_of(rank);
      const Call call(whole.impl(), tokens_of(m, g.rank()), seed_of(m, g.rank()));
      auto verdict = [&] {
        return judge_ranks(rank, {call.tokens, call.exact.data(), nullptr, {}});
      };
      const layer::Judgement j = verdict();
      EXPECT_TRUE(j.ok(budgets)) << "rel L2 " << j.rel_l2_oracle << ", codes " << j.codes_differing
                                 << " of " << j.codes;
      auto refused = [&](const char* what) {
        const layer::Judgement no = verdict();
        EXPECT_FALSE(no.ok(budgets)) << what;
        EXPECT_GT(no.rel_l2_oracle, 2 * budgets.oracle) << what;
        EXPECT_EQ(no.out, j.out) << what << ": the layer itself is as it was";
      };
      *neighbours = true;
      refused("neighbours");
      *neighbours = false;
      checkpoint::ExpertWeights& shared = read_by_oracle(rank).shared->weights;
      checkpoint::ExpertWeights another = test::make_weights(c.problem, leaf(), 7).shared->weights;
      std::swap(shared, another);
      refused("another shared expert");
      std::swap(shared, another);
      // A lawful replacement: the output changes, and the oracle follows.
      rank.update_expert(0, whole.impl().weights().expert(1));
      const layer::Judgement after = verdict();
      EXPECT_TRUE(after.ok(budgets)) << "after an update: " << after.rel_l2_oracle;
      if (!std::ranges::count(after.ids, 0)) return;
      EXPECT_GT(test::rel(after.out, j.out), 2 * budgets.oracle) << "nothing was updated";
      ++changed;
    }));
    EXPECT_GT(changed, 0);
  }
}

TEST_P(Modes, CalibrationSeesTheTokensOfAllRanks) {
  if (!formats::is_static(leaf().activation)) GTEST_SKIP() << "no static scales";
  const LeafCase c = base();
  const checkpoint::LayerWeights w = test::make_weights(c.problem, leaf());
  const MoeLayer whole = test::build_layer(w, {}, test::runnable_tiers().back());
  constexpr std::int64_t kAll = 12;
  const Call all(whole.impl(), kAll, 50);
  layer::Layer alone(w, whole.impl().options());
  ASSERT_TRUE(alone.needs_calibration());
  alone.calibrate(kAll, all.exact.data(), nullptr);
  expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
    for (const Mode& m : {Mode{Parallel::kDep, 1}, Mode{Parallel::kTep, 2}}) {
      RankOptions o = options_of(whole.impl(), m);
      if (m.parallel == Parallel::kDep) o.strategy = &comm::one_sided();
      RankLayer rank(g, w, o);
      const std::int64_t each = kAll / kRanks;
      rank.calibrate(each, all.exact.data() + g.rank() * each * c.problem.hidden, nullptr);
      const layer::StaticScales& got = rank.part().routed().scales;
      const Shard held = rank.held_by(g.rank());
      EXPECT_EQ(got.fc1, alone.routed().scales.fc1);
      for (std::int64_t e = 0; e < held.size; ++e)
        EXPECT_FLOAT_EQ(got.fc2[std::size_t(e)],
                        alone.routed().scales.fc2[std::size_t(held.begin + e)]);
    }
  }));
}

TEST_P(Modes, ZeroExpertsAreAddedOnce) {
  LeafCase c = base();
  c.problem.routing.zero_experts = 2;
  if (!leaf().can_implement(c.problem, Deployment{}).eligible()) GTEST_SKIP() << "no zero experts";
  const MoeLayer whole = build(c);
  for (const Mode& m : {Mode{Parallel::kDep, 1}, Mode{Parallel::kTep, 1}, Mode{Parallel::kDtp, 4}})
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      RankOptions o = options_of(whole.impl(), m);
      if (m.parallel == Parallel::kDep) o.strategy = &comm::one_sided();
      RankLayer rank(g, test::with_declared_scales(whole.impl()), o);
      Call call(whole.impl(), kTokens, seed_of(m, g.rank()));
      HostBuffer workspace(rank.workspace_bytes());
      std::vector<std::int32_t> ids(std::size_t(kTokens * c.problem.top_k()));
      ForwardArgs args = call.args();
      args.workspace = workspace.bytes();
      args.ids_out = ids.data();
      rank.forward(args);
      const std::vector<double> got = call.values();
      EXPECT_TRUE(std::ranges::any_of(ids, [&](auto id) { return id >= c.problem.num_experts(); }));
      call.run();
      const double budget = formats::is_static(leaf().activation) || m.tp == 1 ? 1.2e-2 : 8e-2;
      EXPECT_LE(test::rel(got, call.values()), budget) << to_string(m.parallel);
      const layer::Judgement j = judge_ranks(rank, {call.tokens, call.exact.data(), nullptr, {}});
      EXPECT_TRUE(j.ok(budgets_of(rank))) << to_string(m.parallel) << " " << j.rel_l2_oracle;
    }));
}

/// Gates that stand for a machine where ranks cannot do what these strategies need.
constexpr comm::Strategy kMasked[] = {
    {.name = "one_sided",
     .can_implement =
         [](const Problem&, const Deployment&) {
           return Eligibility::no(Reject::kTopologyUnsupported, "masked by a test");
         }},
    {.name = "two_sided", .can_implement = [](const Problem&, const Deployment&) {
       return Eligibility::no(Reject::kTopologyUnsupported, "masked by a test");
     }}};

/// What auto chooses for 10 slots when the first `masked` strategies cannot serve.
const comm::Strategy* next_choice(const Problem& p, std::size_t masked) {
  std::vector<const comm::Strategy*> table(comm::strategies().begin(), comm::strategies().end());
  for (std::size_t i = 0; i < masked; ++i) table[i] = &kMasked[i];
  Deployment d;
  d.parallel = Parallel::kDep;
  d.ep = 2;
  d.slots = 10;
  return comm::choose(p, d, "auto", table).strategy;
}

// 6 experts in 10 slots on 2 ranks: four stand twice. A token's own bytes choose. No strategy has a
// rule of fours: auto goes on in its order, and the next one keeps its contract.
TEST_P(Modes, ReplicatedSlotsKeepTheirContract) {
  const std::vector<std::int32_t> kSlots = {0, 1, 2, 3, 3, 4, 5, 0, 2, 1};
  const eplb::SlotMap map(kSlots, 6);
  const MoeLayer whole = build(base());
  const Problem& p = whole.impl().problem();
  ASSERT_EQ(p.num_experts(), 6);
  EXPECT_EQ(next_choice(p, 0), &comm::one_sided());
  EXPECT_EQ(next_choice(p, 1), &comm::two_sided());
  EXPECT_EQ(next_choice(p, 2), &comm::compact());
  for (std::size_t masked : {1U, 2U}) {
    std::atomic<int> second = 0;  // choices that the second replica of an expert served
    expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
      RankOptions o = options_of(whole.impl(), {Parallel::kDep, 1});
      o.strategy = next_choice(p, masked);
      o.slot_experts = kSlots;
      RankLayer rank(g, test::with_declared_scales(whole.impl()), o);
      Call call(whole.impl(), kCapacity, 70 + std::uint64_t(g.rank()));
      const test::GivenRouting routing(p, call.tokens);
      HostBuffer workspace(rank.workspace_bytes());
      std::vector<std::int64_t> counts(6);
      ForwardArgs args = call.args();
      args.routing = {.ids = routing.ids.data(), .weights = routing.weights.data()};
      args.expert_counts = counts.data();
      args.workspace = workspace.bytes();
      rank.forward(args);
      std::vector<std::int64_t> logical(6);
      for (std::int32_t id : routing.ids)
        if (id >= 0) ++logical[std::size_t(id)];
      EXPECT_EQ(counts, logical) << "counted by expert, not by slot";

      const std::vector<float> rows = test::fp32_rows(call, routing);
      std::vector<std::byte> want(call.out.size()), wire(std::size_t(p.hidden) * 4 + 16);
      for (std::int64_t t = 0; t < call.tokens; ++t) {
        const std::uint64_t key = eplb::token_key(
            {call.hidden.data() + std::size_t(t * p.hidden) * size_of(o.layer.dtype),
             std::min<std::size_t>(64, std::size_t(p.hidden) * size_of(o.layer.dtype))});
        std::vector<float> sum(std::size_t(p.hidden)), share(sum.size());
        for (int r = 0; r < 2; ++r) {
          std::ranges::fill(share, 0.0F);
          bool any = false;
          for (std::int64_t j = 0; j < p.top_k(); ++j) {
            const std::size_t i = std::size_t(t * p.top_k() + j);
            if (routing.ids[i] < 0) continue;
            const std::int32_t slot = map.slot_of(routing.ids[i], key);
            if (slot / 5 != r) continue;
            any = true;
            second += slot == 4 || slot >= 7;
            for (std::size_t h = 0; h < sum.size(); ++h)
              share[h] += routing.weights[i] * rows[i * sum.size() + h];
          }
          if (!any) continue;
          comm::encode_row(rank.wire(), share.data(), p.hidden, wire.data());
          comm::add_row(rank.wire(), wire.data(), 1, p.hidden, sum.data());
        }
        for (std::size_t h = 0; h < sum.size(); ++h)
          store_element(o.layer.dtype, want.data(), t * p.hidden + std::int64_t(h),
                        sum[h] * p.routed_scaling_factor);
      }
      EXPECT_TRUE(call.out == want) << "rank " << g.rank();
      const layer::Judgement j = judge_ranks(rank, {call.tokens, call.exact.data(), nullptr, {}});
      EXPECT_TRUE(j.ok(budgets_of(rank))) << j.rel_l2_oracle;
    }));
    EXPECT_GT(second, 0);
  }
}

TEST_P(Modes, AttentionTpRefusesUnlikeTokens) {
  const MoeLayer whole = build(base());
  const Mode m{Parallel::kTep, 1};
  auto call_with = [&](Group& g, std::int64_t tokens) {
    RankLayer rank(g, test::with_declared_scales(whole.impl()), options_of(whole.impl(), m));
    HostBuffer workspace(rank.workspace_bytes());
    Call call(whole.impl(), tokens, 60);
    ForwardArgs args = call.args();
    args.workspace = workspace.bytes();
    rank.forward(args);
  };
  const test::Outcomes out =
      on_thread_ranks(2, long_deadlines(), [&](Group& g) { call_with(g, 3 + g.rank()); });
  EXPECT_TRUE(out[0] && out[1]);
  const std::string text = text_of<UsageError>(out[0]) + text_of<UsageError>(out[1]);
  EXPECT_THAT(text, HasSubstr("all ranks hold the same tokens"));
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) { call_with(g, 3); }));
}

INSTANTIATE_TEST_SUITE_P(Leaves, Modes, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard
