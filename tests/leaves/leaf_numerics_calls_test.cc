// SPDX-License-Identifier: Apache-2.0
// Every leaf under every kind of routing, call and output; what a gate admits is built and run.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "switchyard/core/eligibility.h"
#include "switchyard/resolve/probe.h"
#include "tests/cases/leaf_case.h"
#include "tests/support/usage_error.h"

namespace switchyard::leaves {
namespace {

using test::Call;
using test::GivenRouting;
using test::LeafCase;
using test::rel;
using test::shared_case;

using LeafCalls = test::EveryLeaf;

// ---- routing ----

TEST_P(LeafCalls, WeightOnInput) {
  LeafCase llama = base();
  llama.problem.routing = make_routing(RoutingMethodType::kLlama4, 6, 1);
  expect_close(llama, "Llama4");
  LeafCase three = base();
  three.problem.routing.placement = WeightPlacement::kInput;
  expect_close_and_far(three, "weights on the input of three choices");
}

TEST_P(LeafCalls, ZeroExperts) {
  LeafCase c = base();
  c.problem.routing.zero_experts = 4;
  c.tokens = 16;
  const MoeLayer layer = build(c);
  const layer::Judgement j = test::judge(layer, c.tokens);
  EXPECT_THAT(j.ids, testing::Contains(testing::Ge(6))) << "no zero expert was chosen";
  expect_close(c, "zero experts");
  c.problem.routing.placement = WeightPlacement::kInput;
  expect_close(c, "zero experts beside weights on the input");
}

TEST_P(LeafCalls, NoTokenAndOneToken) {
  const MoeLayer layer = build(base());
  ForwardArgs none;  // null pointers, as of empty arrays
  EXPECT_NO_THROW(layer.forward(none));
  Call call(layer.impl(), 3);
  call.run([](ForwardArgs& a) { a.tokens = 0; });
  EXPECT_THAT(call.out, testing::Each(std::byte(0xff))) << "no token writes nothing";
  LeafCase one = base();
  one.tokens = 1;
  expect_close(one, "one token");
}

TEST_P(LeafCalls, AllTokensOnOneExpert) {
  const MoeLayer layer = build(base());
  Call call(layer.impl(), 40);
  GivenRouting r(layer.problem(), 40);
  std::fill(r.ids.begin(), r.ids.end(), 4);
  call.run([&](ForwardArgs& a) { a.routing = {r.ids.data(), r.weights.data(), nullptr}; });
  EXPECT_LE(rel(call.values(), test::ffn_oracle(call, r, 1.75)), test::budgets_of(layer).oracle);
}

TEST_P(LeafCalls, CallersIdsAndWeights) {
  const MoeLayer layer = build(base());
  Call call(layer.impl(), 9);
  const GivenRouting r(layer.problem(), 9);
  const double budget = test::budgets_of(layer).oracle;
  const std::vector<double> want = test::ffn_oracle(call, r, 1.75);
  call.run([&](ForwardArgs& a) { a.routing = {r.ids.data(), r.weights.data(), nullptr}; });
  EXPECT_LE(rel(call.values(), want), budget) << "the factor is finalize's";
  std::vector<float> factored = r.weights;
  for (float& w : factored) w *= 1.75f;
  call.run([&](ForwardArgs& a) { a.routing = {r.ids.data(), nullptr, factored.data()}; });
  EXPECT_LE(rel(call.values(), want), budget) << "the factor is in the weights already";
  call.run([&](ForwardArgs& a) { a.routing = {r.ids.data(), factored.data(), nullptr}; });
  EXPECT_GT(rel(call.values(), want), 2 * budget) << "a factor applied twice shows";
}

TEST_P(LeafCalls, AFactorInWeightsOfTheInputIsRefused) {
  LeafCase c = base();
  c.problem.routing.placement = WeightPlacement::kInput;
  const MoeLayer layer = build(c);
  Call call(layer.impl(), 3);
  GivenRouting r(layer.problem(), 3);
  EXPECT_THAT(
      test::usage_error_of([&] {
        call.run([&](ForwardArgs& a) { a.routing = {r.ids.data(), nullptr, r.weights.data()}; });
      }),
      testing::HasSubstr("1.75"));
  EXPECT_NO_THROW(call.run([&](ForwardArgs& a) {
    a.routing = {r.ids.data(), r.weights.data(), nullptr};
  }));
}

TEST_P(LeafCalls, SkippedIdsContributeExactlyNothing) {
  for (WeightPlacement placement : {WeightPlacement::kOutput, WeightPlacement::kInput}) {
    LeafCase c = base();
    c.problem.routing.placement = placement;
    const MoeLayer layer = build(c);
    Call call(layer.impl(), 9);
    GivenRouting nan(layer.problem(), 9), finite = nan;
    for (std::size_t i = 0; i < nan.ids.size(); ++i) {
      if (i % 4 != 1 && i / 3 != 5) continue;  // all choices of token 5
      nan.ids[i] = finite.ids[i] = -1;
      nan.weights[i] = std::nanf("");
      finite.weights[i] = 3;
    }
    auto run = [&](const GivenRouting& r) {
      return call.run([&](ForwardArgs& a) {
        a.routing = {r.ids.data(), r.weights.data(), nullptr};
      });
    };
    const std::vector<std::byte> skipped = run(nan);
    EXPECT_EQ(skipped, run(finite));
    const std::vector<double> y = call.values();
    EXPECT_LE(rel(y, test::ffn_oracle(call, finite, 1.75)), test::budgets_of(layer).oracle);
    const auto row = y.begin() + 5 * layer.problem().hidden;
    EXPECT_THAT(std::vector(row, row + layer.problem().hidden), testing::Each(0.0));
  }
}

TEST_P(LeafCalls, ExpertCountsAreAddedTo) {
  LeafCase c = base();
  c.problem.routing.zero_experts = 2;
  const MoeLayer layer = build(c);
  Call call(layer.impl(), 21);
  std::vector<std::int64_t> counts(8, 100), want(8, 100);
  std::vector<std::int32_t> ids(63, -7);
  call.run([&](ForwardArgs& a) { a.expert_counts = counts.data(), a.ids_out = ids.data(); });
  for (std::int32_t id : ids) ++want.at(std::size_t(id));
  EXPECT_EQ(counts, want);
}

// ---- unfinalised output ----

struct UnfinalisedBuffers {
  explicit UnfinalisedBuffers(const MoeLayer& l, std::int64_t tokens)
      : rows(std::size_t(tokens * l.problem().top_k() * l.problem().hidden) * 4, std::byte(0xff)),
        shared(std::size_t(tokens * l.problem().hidden) * 4, std::byte(0xff)),
        weights(std::size_t(tokens * l.problem().top_k())),
        index(weights.size()) {}
  Unfinalised view() { return {rows.data(), weights.data(), index.data(), shared.data()}; }
  std::vector<std::byte> rows, shared;
  std::vector<float> weights;
  std::vector<std::int32_t> index;
};

// What a caller does with an unfinalised output: fp32 sum in choice order, factor, shared row.
std::vector<float> finalize(const float* rows, const Unfinalised& u, const float* shared,
                            const Problem& p, std::int64_t tokens) {
  std::vector<float> out;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t c = 0; c < p.hidden; ++c) {
      float sum = 0;
      for (std::int64_t i = t * p.top_k(); i < (t + 1) * p.top_k(); ++i)
        if (u.index[i] >= 0) sum += u.weights[i] * rows[u.index[i] * p.hidden + c];
      sum *= u.pending_factor;
      if (shared != nullptr) sum += shared[t * p.hidden + c];
      out.push_back(sum);
    }
  return out;
}

TEST_P(LeafCalls, UnfinalisedOutputFinalizesToTheSameBits) {
  for (WeightPlacement placement : {WeightPlacement::kOutput, WeightPlacement::kInput}) {
    LeafCase c = shared_case(leaf(), 96);
    c.problem.routing.placement = placement;
    c.problem.routing.zero_experts = 3;
    c.options.dtype = Dtype::kF32;
    const MoeLayer layer = build(c);
    Call call(layer.impl(), 16);
    const std::vector<std::byte> whole = call.run();
    UnfinalisedBuffers b(layer, 16);
    Unfinalised u = b.view();
    call.run([&](ForwardArgs& a) { a.out = nullptr, a.unfinalised = &u; });
    EXPECT_EQ(u.pending_factor, 1.75f);
    const std::vector<float> y =
        finalize(reinterpret_cast<const float*>(b.rows.data()), u,
                 reinterpret_cast<const float*>(b.shared.data()), layer.problem(), 16);
    EXPECT_EQ(std::memcmp(y.data(), whole.data(), whole.size()), 0);
  }
}

TEST_P(LeafCalls, RowsAndOutputRoundOnceFromTheSameFp32Rows) {
  const MoeLayer layer = build(base());
  Call call(layer.impl(), 9);
  GivenRouting r(layer.problem(), 9);
  r.ids[7] = -1;
  UnfinalisedBuffers b(layer, 9);
  Unfinalised u = b.view();
  auto given = [&](ForwardArgs& a) { a.routing = {r.ids.data(), r.weights.data(), nullptr}; };
  call.run([&](ForwardArgs& a) { given(a), a.out = nullptr, a.unfinalised = &u; });
  EXPECT_EQ(b.weights, r.weights);
  EXPECT_EQ(u.index[7], -1);
  const std::vector<float> rows = test::fp32_rows(call, r);
  const auto* rounded = reinterpret_cast<const std::uint16_t*>(b.rows.data());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (std::int64_t(i) / layer.problem().hidden == 7) continue;
    ASSERT_EQ(rounded[i], float_to_bf16(rows[i])) << i;
  }
  const std::vector<float> y = finalize(rows.data(), u, nullptr, layer.problem(), 9);
  call.run(given);
  for (std::size_t i = 0; i < y.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, &call.out[2 * i], 2);
    ASSERT_EQ(bits, float_to_bf16(y[i])) << i;
  }
}

// ---- eligible implies constructible and runnable ----

struct Axes {
  std::vector<Activation> activations;
  std::vector<RoutingSpec> routings;
  std::vector<std::pair<std::int64_t, std::int64_t>> shapes;
};

Axes make_axes() {
  const std::vector<float> per_expert = {0.5f, 0.6f, 0.7f, 0.8f, 0.9f, 1.0f};
  Axes a;
  a.activations = {Swiglu{},
                   Swiglu{.clamp = PerExpert(per_expert), .clamp_after_silu = true},
                   SwigluBias{1.702f, 1.0f, PerExpert(7.0f)},
                   SwigluBias{PerExpert(per_expert), 0.5f, std::nullopt},
                   SiTu{},
                   Geglu{GeluForm::kErf},
                   Relu2{},
                   Silu{},
                   Gelu{GeluForm::kTanh},
                   Relu{},
                   Identity{}};
  for (int m = 0; m <= int(RoutingMethodType::kUnspecified); ++m) {
    const RoutingMethodType method{std::uint8_t(m)};
    const std::int64_t k = method == RoutingMethodType::kLlama4        ? 1
                           : method == RoutingMethodType::kSparseMixer ? 2
                                                                       : 3;
    a.routings.push_back(make_routing(method, 6, k));
  }
  a.routings.push_back(make_routing(RoutingMethodType::kDeepSeekV3, 6, 3));
  a.routings.back().n_group = 3, a.routings.back().topk_group = 2;
  a.routings.push_back(make_routing(RoutingMethodType::kSoftmaxBias, 6, 3));
  a.routings.back().zero_experts = 2;
  a.shapes = {{66, 34}, {130, 98}, {34, 130}, {131, 97}, {32, 32}};
  return a;
}

// Strides without a common factor: 11 x 19 steps meet every pair of activation and routing.
LeafCase walk_case(const Leaf& leaf, const Axes& axes, std::size_t i) {
  LeafCase c{test::small_problem(leaf), {}, 3};
  Problem& p = c.problem;
  p.activation = axes.activations[i % axes.activations.size()];
  p.routing = axes.routings[i % axes.routings.size()];
  std::tie(p.hidden, p.inter) = axes.shapes[i % axes.shapes.size()];
  p.expert_bias = i / 2 % 2 == 1;
  p.num_shared = std::int64_t(i / 3 % 3);
  p.shared_inter = p.num_shared * p.inter;
  p.shared_gate = p.num_shared == 2;
  c.options.fuse_shared = i % 2 == 0;
  c.options.activations = ActivationMode(i / 2 % 3);
  c.options.dtype = Dtype(i / 4 % 3);
  p.activations = c.options.activations;
  p.dtype = *c.options.dtype;
  return c;
}

void expect_runs(const MoeLayer& layer, const LeafCase& c, const std::string& what) {
  if (c.problem.routing.choice != ChoiceRule::kCaller) {
    const layer::Judgement j = test::judge(layer, c.tokens);
    layer::Budgets budgets = test::budgets_of(layer);
    // A 16-bit output is rounded once, which f32's own budget does not hold.
    if (c.problem.dtype != Dtype::kF32) budgets.oracle = std::max(budgets.oracle, 5e-3);
    EXPECT_TRUE(j.ok(budgets)) << what << " rel L2 " << j.rel_l2_oracle << ", " << j.ids_differing
                               << " ids, " << j.codes_differing << " codes";
    return;
  }
  Call call(layer.impl(), c.tokens);
  const GivenRouting r(layer.problem(), c.tokens);
  call.run([&](ForwardArgs& a) { a.routing = {r.ids.data(), r.weights.data(), nullptr}; });
  for (double v : call.values()) ASSERT_TRUE(std::isfinite(v)) << what;
}

TEST_P(LeafCalls, EligibleImpliesConstructibleAndRunnable) {
  const Axes axes = make_axes();
  const std::size_t steps = test::subset_or_full<std::size_t>(57, 11 * 19 * 5 * 3);
  std::size_t ran = 0;
  Deployment d;
  d.env = resolve::environment();
  for (std::size_t i = 0; i < steps; ++i) {
    const LeafCase c = walk_case(leaf(), axes, i);
    const std::string what = "step " + std::to_string(i) + ", " + describe(c.problem.activation) +
                             ", " + describe(c.problem.routing);
    const Eligibility verdict = leaf().can_implement(c.problem, d);
    if (!verdict.eligible()) {
      EXPECT_EQ(verdict.reason(), Reject::kShapeUnaligned) << what;
      EXPECT_EQ(c.problem.hidden, 131) << what;
      continue;
    }
    ASSERT_NO_THROW({
      const MoeLayer layer = build(c);
      EXPECT_EQ(layer.leaf(), leaf().id.str());
      expect_runs(layer, c, what);
    }) << what;
    ++ran;
  }
  EXPECT_GE(ran, steps * 3 / 4) << "a gate that refuses everything would pass the loop";
}

INSTANTIATE_TEST_SUITE_P(Leaves, LeafCalls, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard::leaves
