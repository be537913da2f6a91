// SPDX-License-Identifier: Apache-2.0
// A layer whose experts are spread over thread ranks: bit for bit its contract, built from the rows
// that one rank's leaf gives.
#include "switchyard/layer/rank_layer.h"

#include <gmock/gmock.h>

#include <cstring>

#include "switchyard/api/layer_builder.h"
#include "switchyard/base/check.h"
#include "switchyard/core/shard.h"
#include "tests/cases/leaf_case.h"
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

constexpr std::int64_t kCapacity = 9;

const comm::Strategy* const kStrategies[] = {&comm::one_sided(),    &comm::two_sided(),
                                             &comm::all_gather(),   &comm::compact(),
                                             &comm::expert_major(), &comm::fused()};

std::int64_t tokens_of(int rank) { return rank == 1 ? 0 : 3 + rank * 2; }

RankOptions options_of(const layer::Layer& whole, const comm::Strategy& strategy) {
  RankOptions o{.layer = whole.options(), .strategy = &strategy, .capacity = kCapacity};
  o.layer.pool = std::make_shared<ThreadPool>(1);
  return o;
}

/// The weights of `whole` with its calibrated scales declared. One expert alone has FC1's maximum,
/// so a rank that looked at its own experts only would quantise differently.
checkpoint::LayerWeights declared(const layer::Layer& whole) {
  checkpoint::LayerWeights w = whole.weights();
  if (!formats::is_static(whole.routed().shape.quant)) return w;
  w.expert = [inner = w.expert, scales = whole.routed().scales](std::int64_t e) {
    checkpoint::ExpertWeights out = inner(e);
    constexpr std::int64_t kLargest = 4;
    const float fc1 = e == kLargest ? scales.fc1 : scales.fc1 / 2;
    out.up.input_scale = fc1;
    if (out.gate) out.gate->input_scale = fc1;
    out.down.input_scale = scales.fc2[std::size_t(e)];
    return out;
  };
  return w;
}

/// The contract reference: the whole layer's own fp32 rows, weights and shared rows, summed and
/// rounded as `strategy` says.
std::vector<std::byte> expected(const layer::Layer& whole, const comm::Strategy& strategy,
                                comm::Wire wire, Call& call, const test::GivenRouting& routing,
                                int ranks) {
  const Problem& p = whole.problem();
  const std::size_t hidden = std::size_t(p.hidden);
  const std::vector<float> rows = test::fp32_rows(call, routing);
  std::vector<std::byte> out(call.out.size());
  std::vector<std::byte> wire_row(std::size_t(comm::wire_bytes(wire, p.hidden)) + 16);
  auto through_wire = [&](const std::vector<float>& x, float weight, std::vector<float>& sum) {
    comm::encode_row(wire, x.data(), p.hidden, wire_row.data());
    comm::add_row(wire, wire_row.data(), weight, p.hidden, sum.data());
  };
  for (std::int64_t t = 0; t < call.tokens; ++t) {
    std::vector<float> sum(hidden, 0.0F), share(hidden);
    auto row = [&](std::int64_t j) {
      const float* r = rows.data() + std::size_t(t * p.top_k() + j) * hidden;
      return std::vector<float>(r, r + hidden);
    };
    auto id = [&](std::int64_t j) { return routing.ids[std::size_t(t * p.top_k() + j)]; };
    auto weight = [&](std::int64_t j) { return routing.weights[std::size_t(t * p.top_k() + j)]; };
    if (strategy.contract.weights == comm::WeightsBy::kCombine) {
      for (std::int64_t j = 0; j < p.top_k(); ++j) through_wire(row(j), weight(j), sum);
    } else {
      for (int r = 0; r < ranks; ++r) {
        const Shard held = ep_shard(p.num_experts(), ranks, r);
        std::fill(share.begin(), share.end(), 0.0F);
        bool any = false;
        for (std::int64_t j = 0; j < p.top_k(); ++j) {
          if (id(j) < held.begin || id(j) >= held.begin + held.size) continue;
          any = true;
          const std::vector<float> x = row(j);
          for (std::size_t h = 0; h < hidden; ++h) share[h] += weight(j) * x[h];
        }
        if (any) through_wire(share, 1, sum);
      }
    }
    for (std::size_t h = 0; h < hidden; ++h)
      store_element(whole.options().dtype, out.data(), t * p.hidden + std::int64_t(h),
                    sum[h] * p.routed_scaling_factor);
  }
  return out;
}

class Ranks : public EveryLeaf {
 protected:
  void expect_contract(const layer::Layer& whole, const comm::Strategy& strategy, int ranks) {
    expect_all_well(on_thread_ranks(ranks, long_deadlines(), [&](Group& g) {
      RankLayer part(g, declared(whole), options_of(whole, strategy));
      HostBuffer workspace(part.workspace_bytes());
      constexpr int kCalls = 3;  // over poisoned outputs and workspaces
      for (int i = 0; i < kCalls; ++i) {
        Call call(whole, tokens_of(g.rank()), 10 + std::uint64_t(g.rank()));
        const test::GivenRouting routing(whole.problem(), call.tokens);
        ForwardArgs args = call.args();
        args.routing = {.ids = routing.ids.data(), .weights = routing.weights.data()};
        args.workspace = workspace.bytes();
        std::ranges::fill(workspace.bytes(), std::byte{0xc5});
        std::ranges::fill(call.out, std::byte{0xff});
        part.forward(args);
        const std::vector<std::byte> want =
            expected(whole, strategy, part.wire(), call, routing, ranks);
        EXPECT_TRUE(call.out == want)
            << strategy.name << ", " << ranks << " ranks, rank " << g.rank() << ", call " << i;
      }
    }));
  }
};

TEST_P(Ranks, EveryStrategyKeepsItsContractBitForBit) {
  const MoeLayer whole = build(base());
  for (const comm::Strategy* strategy : kStrategies)
    for (int ranks : {2, 4}) {  // 3 + 3 experts, and 2 + 2 + 1 + 1
      if (!test::is_soak() && ranks == 4 && strategy != kStrategies[0]) continue;
      expect_contract(whole.impl(), *strategy, ranks);
    }
}

TEST_P(Ranks, LowPrecisionCombines) {
  for (CombinePrecision precision : {CombinePrecision::kFp8, CombinePrecision::kNvfp4}) {
    LeafCase c = base();
    checkpoint::LayerWeights w = test::make_weights(c.problem, leaf());
    const MoeLayer whole = test::build_layer(w, {}, test::runnable_tiers().back());
    checkpoint::LayerWeights low = declared(whole.impl());
    low.problem.combine = precision;
    expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
      RankLayer part(g, low, options_of(whole.impl(), comm::two_sided()));
      EXPECT_EQ(comm::to_string(part.wire()), to_string(precision));
      HostBuffer workspace(part.workspace_bytes());
      Call call(whole.impl(), tokens_of(g.rank()), 10 + std::uint64_t(g.rank()));
      const test::GivenRouting routing(whole.impl().problem(), call.tokens);
      ForwardArgs args = call.args();
      args.routing = {.ids = routing.ids.data(), .weights = routing.weights.data()};
      args.workspace = workspace.bytes();
      part.forward(args);
      EXPECT_TRUE(call.out ==
                  expected(whole.impl(), comm::two_sided(), part.wire(), call, routing, 2));
    }));
  }
}

// The layer's own routing and a shared expert: near one rank's output, and not equal to the output
// without the shared expert.
TEST_P(Ranks, RoutingAndSharedExpertStayNearOneRank) {
  const MoeLayer whole = build(test::shared_case(leaf(), 96));
  const MoeLayer other = build(base());
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    RankLayer part(g, declared(whole.impl()), options_of(whole.impl(), comm::one_sided()));
    HostBuffer workspace(part.workspace_bytes());
    Call call(whole.impl(), 7, 20 + std::uint64_t(g.rank()));
    call.run();
    const std::vector<double> alone = call.values();
    ForwardArgs args = call.args();
    args.workspace = workspace.bytes();
    Trace trace;
    args.trace = &trace;
    std::ranges::fill(call.out, std::byte{0xff});
    part.forward(args);
    EXPECT_LE(test::rel(call.values(), alone), 8e-3);  // two roundings to bf16 more
    EXPECT_EQ(trace.leaf, whole.impl().leaf_id());
    Call without(other.impl(), 7, 20 + std::uint64_t(g.rank()));
    without.run();
    EXPECT_GT(test::rel(without.values(), alone), 8e-2);
  }));
}

TEST_P(Ranks, BadCallsEndOnEveryRankAndAGoodOneFollows) {
  const MoeLayer whole = build(base());
  auto call_with = [&](Group& g, std::int64_t tokens) {
    RankLayer part(g, declared(whole.impl()), options_of(whole.impl(), comm::one_sided()));
    HostBuffer workspace(part.workspace_bytes());
    Call call(whole.impl(), tokens);
    ForwardArgs args = call.args();
    args.workspace = workspace.bytes();
    part.forward(args);
  };
  test::Outcomes out = on_thread_ranks(3, long_deadlines(), [&](Group& g) {
    call_with(g, g.rank() == 2 ? kCapacity + 1 : kCapacity);
  });
  EXPECT_THAT(text_of<UsageError>(out[2]), HasSubstr("10 tokens on rank 2 exceeds the capacity 9"));
  for (std::size_t r : {0U, 1U})
    EXPECT_THAT(text_of<comm::PeerError>(out[r]), HasSubstr("rank 2 gave up"));
  expect_all_well(on_thread_ranks(3, long_deadlines(), [&](Group& g) { call_with(g, kCapacity); }));

  out = on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    RankOptions o = options_of(whole.impl(), comm::one_sided());
    checkpoint::LayerWeights w = declared(whole.impl());
    if (g.rank() == 1) w.problem.routed_scaling_factor = 3;
    RankLayer part(g, std::move(w), o);
  });
  for (const std::exception_ptr& o : out)
    EXPECT_THAT(text_of<UsageError>(o), HasSubstr("rank 1 has factor = '3'"));
}

INSTANTIATE_TEST_SUITE_P(Leaves, Ranks, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard
