// SPDX-License-Identifier: Apache-2.0
// The four parallel modes on four thread ranks: bit for bit the contract that their fp32 shares
// make, and judged by the ranks' oracle.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "switchyard/api/layer_builder.h"
#include "switchyard/core/shard.h"
#include "switchyard/layer/rank_judge.h"
#include "tests/cases/leaf_case.h"
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
constexpr std::int64_t kCapacity = 8, kTokens = 6;

struct Mode {
  Parallel parallel;
  std::int64_t tp;
  bool own_tokens() const { return parallel == Parallel::kDep || parallel == Parallel::kDtp; }
};
constexpr Mode kModes[] = {{Parallel::kTep, 1}, {Parallel::kTtp, 4}, {Parallel::kDtp, 4},
                           {Parallel::kTep, 2}, {Parallel::kDtp, 2}, {Parallel::kDep, 2}};

test::PartOf part_of(const Mode& m, std::int64_t experts, int rank) {
  test::PartOf p;
  p.held = ep_shard(experts, kRanks / m.tp, rank / m.tp);
  p.tp = {rank % m.tp, m.tp};
  if (m.parallel != Parallel::kDep) p.shared_tp = {rank, kRanks};
  return p;
}

RankOptions options_of(const layer::Layer& whole, const Mode& m) {
  RankOptions o;
  o.layer = whole.options();
  o.layer.pool = std::make_shared<ThreadPool>(1);
  o.parallel = m.parallel;
  o.tp = m.tp;
  o.strategy = m.own_tokens() ? &comm::all_gather() : nullptr;
  o.capacity = kCapacity;
  return o;
}

/// Tokens of a rank: unlike where each has its own.
std::int64_t tokens_of(const Mode& m, int rank) {
  return m.own_tokens() ? (rank == 2 ? 0 : kTokens - rank) : kTokens;
}
std::uint64_t seed_of(const Mode& m, int rank) {
  return 30 + (m.own_tokens() ? std::uint64_t(rank) : 0);
}

using Parts = std::vector<std::unique_ptr<layer::Layer>>;

Parts parts_of(const layer::Layer& whole, const Mode& m) {
  Parts out;
  for (int r = 0; r < kRanks; ++r)
    out.push_back(make_part(whole, part_of(m, whole.problem().num_experts(), r)));
  return out;
}

/// Every rank's share rounded once to the wire, added in rank order in fp32, rounded once.
/// `left_out` is a rank whose share is forgotten: a control.
std::vector<std::byte> expected(const Parts& parts, comm::Wire wire, Call& call,
                                int left_out = -1) {
  const std::int64_t h = parts[0]->problem().hidden;
  std::vector<float> sum(std::size_t(call.tokens * h));
  std::vector<std::byte> row(std::size_t(comm::wire_bytes(wire, h)) + 16);
  for (int r = 0; r < int(parts.size()); ++r) {
    if (r == left_out) continue;
    const test::Share share = test::share_of(*parts[std::size_t(r)], call);
    for (std::int64_t t = 0; t < call.tokens; ++t) {
      comm::encode_row(wire, share.out.data() + t * h, h, row.data());
      comm::add_row(wire, row.data(), 1, h, sum.data() + t * h);
    }
  }
  std::vector<std::byte> out(call.out.size());
  for (std::size_t i = 0; i < sum.size(); ++i)
    store_element(parts[0]->options().dtype, out.data(), std::int64_t(i), sum[i]);
  return out;
}

class Modes : public EveryLeaf {
 protected:
  /// A shared expert and a factor, where the ranks' shares hold them.
  LeafCase case_for(const Mode& m) const {
    LeafCase c = m.parallel == Parallel::kDep ? base() : test::shared_case(leaf(), 96);
    if (m.parallel != Parallel::kDep) c.problem.routed_scaling_factor = 2.5F;
    if (m.parallel == Parallel::kDep) c.problem.routed_scaling_factor = 1;
    return c;
  }

  void expect_contract(const Mode& m, CombinePrecision combine) {
    const MoeLayer whole = build(case_for(m));
    const Parts parts = parts_of(whole.impl(), m);
    checkpoint::LayerWeights weights = test::with_declared_scales(whole.impl());
    weights.problem.combine = combine;
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      RankLayer rank(g, weights, options_of(whole.impl(), m));
      HostBuffer workspace(rank.workspace_bytes());
      Call call(whole.impl(), tokens_of(m, g.rank()), seed_of(m, g.rank()));
      const std::vector<std::byte> want = expected(parts, rank.wire(), call);
      if (call.tokens > 0) {
        for (int r = 0; r < kRanks; ++r)
          if (parts[std::size_t(r)]->routed().shape.inter > 0) {
            EXPECT_TRUE(expected(parts, rank.wire(), call, r) != want) << "without rank " << r;
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

TEST_P(Modes, KeepTheirContractBitForBit) {
  for (std::size_t i = 0; i < std::size(kModes); ++i)
    if (test::is_soak() || i % 2 == leaf().id.quant.size() % 2)
      expect_contract(kModes[i], CombinePrecision::kBf16);
}

TEST_P(Modes, LowPrecisionCombines) {
  expect_contract(kModes[0], CombinePrecision::kFp8);
  if (test::is_soak()) expect_contract(kModes[2], CombinePrecision::kNvfp4);
}

TEST_P(Modes, TheRanksOracleAcceptsThemAndNotOthersWeights) {
  for (const Mode& m :
       {Mode{Parallel::kDep, 1}, Mode{Parallel::kDtp, 2}, Mode{Parallel::kTep, 1}}) {
    if (!test::is_soak() && m.parallel == Parallel::kDtp && leaf().id.quant != "none") continue;
    const MoeLayer whole = build(test::shared_case(leaf(), 96));
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      RankOptions o = options_of(whole.impl(), m);
      if (m.parallel == Parallel::kDep) o.strategy = &comm::one_sided();
      RankLayer rank(g, test::with_declared_scales(whole.impl()), o);
      const Call call(whole.impl(), tokens_of(m, g.rank()), seed_of(m, g.rank()));
      const layer::JudgeArgs ask{call.tokens, call.exact.data(), nullptr, {}};
      const layer::Judgement j = judge_ranks(rank, ask);
      const layer::Budgets budgets = budgets_of(rank);
      EXPECT_TRUE(j.ok(budgets)) << to_string(m.parallel) << ": rel L2 " << j.rel_l2_oracle
                                 << ", codes " << j.codes_differing << " of " << j.codes;
      // Control: an expert that was replaced behind the oracle's back must be noticed.
      checkpoint::ExpertWeights other = whole.impl().weights().expert(1);
      rank.update_expert(0, std::move(other));
      EXPECT_TRUE(judge_ranks(rank, ask).ok(budgets)) << "the oracle follows an update";
    }));
  }
}

// A rank that gives other weights than the others' oracle reads: the judgement says no on all.
TEST_P(Modes, TheRanksOracleSeesAnExchangedExpert) {
  const MoeLayer whole = build(base());
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    checkpoint::LayerWeights w = test::with_declared_scales(whole.impl());
    auto calls = std::make_shared<std::atomic<int>>(0);
    // Packing reads each expert once; the oracle, which reads later, gets the neighbour.
    w.expert = [inner = w.expert, calls, n = w.problem.num_experts() / 2](std::int64_t e) {
      return inner(calls->fetch_add(1) < n ? e : e ^ 1);
    };
    RankOptions o = options_of(whole.impl(), {Parallel::kDep, 1});
    o.strategy = &comm::two_sided();
    RankLayer rank(g, std::move(w), o);
    const Call call(whole.impl(), 5, 40 + std::uint64_t(g.rank()));
    const layer::Judgement j = judge_ranks(rank, {call.tokens, call.exact.data(), nullptr, {}});
    EXPECT_FALSE(j.ok(budgets_of(rank)));
    EXPECT_GT(j.rel_l2_oracle, 2 * budgets_of(rank).oracle);
  }));
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

// 6 experts in 8 slots on 2 ranks: experts 0 and 3 stand twice. A token's own bytes choose.
TEST_P(Modes, ReplicatedSlotsKeepTheirContract) {
  const std::vector<std::int32_t> kSlots = {0, 1, 2, 3, 3, 4, 5, 0};
  const eplb::SlotMap map(kSlots, 6);
  const MoeLayer whole = build(base());
  const Problem& p = whole.impl().problem();
  ASSERT_EQ(p.num_experts(), 6);
  std::atomic<int> second = 0;  // choices that the second replica of an expert served
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    RankOptions o = options_of(whole.impl(), {Parallel::kDep, 1});
    o.strategy = &comm::two_sided();
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
          if (slot / 4 != r) continue;
          any = true;
          second += slot == 4 || slot == 7;
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
