// SPDX-License-Identifier: Apache-2.0
// What every leaf of the registry computes, on every instruction tier, against the double oracle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "switchyard/core/eligibility.h"
#include "switchyard/layer/judge.h"
#include "switchyard/layer/oracle.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/probe.h"
#include "tests/cases/moe_case.h"
#include "tests/support/soak.h"

namespace switchyard::leaves {
namespace {

using formats::ActivationQuant;
using layer::Budgets;
using test::build_layer;
using test::Call;
using test::Fault;
using test::GivenRouting;
using test::make_weights;

struct Case {
  Problem problem;
  BuildOptions options;
  std::int64_t tokens = 9;
};

Budgets budgets_of(const MoeLayer& layer) {
  return layer::budgets_of(layer.impl().routed().shape.quant);
}

double rel(const std::vector<double>& y, const std::vector<double>& r) {
  EXPECT_EQ(y.size(), r.size());
  return layer::rel_l2(y.data(), r.data(), r.size());
}

layer::Judgement judge(const MoeLayer& layer, std::int64_t tokens) {
  const Call call(layer.impl(), tokens);
  const bool hashed = layer.impl().weights().router.vocab > 0;
  return layer::judge(layer.impl(),
                      {tokens, call.exact.data(), hashed ? call.token_ids.data() : nullptr, {}});
}

class LeafNumerics : public testing::TestWithParam<const Leaf*> {
 protected:
  const Leaf& leaf() const { return *GetParam(); }
  Case base() const { return {test::small_problem(leaf()), {}, 9}; }
  MoeLayer build(const Case& c, CpuIsa isa) const {
    return build_layer(make_weights(c.problem, leaf()), c.options, isa);
  }
  MoeLayer build(const Case& c) const { return build(c, test::runnable_tiers().back()); }

  void expect_close(const Case& c, const std::string& what) const {
    const std::vector<CpuIsa> tiers = test::runnable_tiers();
    for (CpuIsa isa : test::subset_or_full({tiers.back()}, tiers)) expect_close_on(isa, c, what);
  }
  void expect_close_on(CpuIsa isa, const Case& c, const std::string& what) const {
    const MoeLayer layer = build(c, isa);
    const layer::Judgement j = judge(layer, c.tokens);
    EXPECT_TRUE(j.ok(budgets_of(layer)))
        << what << " on " << to_string(isa) << ": rel L2 " << j.rel_l2_oracle << ", "
        << j.ids_differing << " ids and " << j.codes_differing << " of " << j.codes
        << " codes differ";
  }
  // The outputs of both cases are further apart than a budget: what differs between them shows.
  void expect_far(const Case& a, const Case& b, const std::string& what) const {
    const MoeLayer one = build(a), other = build(b);
    Call x(one.impl(), a.tokens), y(other.impl(), a.tokens);
    x.run(), y.run();
    EXPECT_GT(rel(x.values(), y.values()), 2 * budgets_of(one).oracle) << what;
  }
  void expect_close_and_far(const Case& c, const std::string& what) const {
    expect_close(c, what);
    expect_far(c, base(), what);
  }
};

// ---- the capability table: each row on every leaf ----

TEST_P(LeafNumerics, SiTu) {
  Case c = base();
  c.problem.activation = SiTu{1.5f, 2.0f};
  expect_close_and_far(c, "SiTu");
}

TEST_P(LeafNumerics, Relu2) {
  Case c = base();
  c.problem.activation = Relu2{};
  expect_close_and_far(c, "ReLU2");
}

TEST_P(LeafNumerics, DeepSeekV3Routing) {
  Case c = base();
  c.problem.routing = make_routing(RoutingMethodType::kDeepSeekV3, 6, 3);
  c.problem.routing.n_group = 3;
  c.problem.routing.topk_group = 2;
  c.problem.routing.choice_bias = true;
  expect_close_and_far(c, "DeepSeekV3");
}

TEST_P(LeafNumerics, DefaultRouting) {
  Case c = base();
  c.problem.routing = make_routing(RoutingMethodType::kDefault, 6, 3);
  expect_close_and_far(c, "Default");
}

TEST_P(LeafNumerics, ExpertBias) {
  Case c = base();
  c.problem.expert_bias = true;
  expect_close_and_far(c, "biases");
  c.problem.activation = SwigluBias{1.702f, 1.0f, PerExpert(0.8f)};
  expect_close_and_far(c, "biases with gpt-oss' activation");
  c.problem.activation = Relu2{};
  expect_close_and_far(c, "biases of one projection");
}

TEST_P(LeafNumerics, Gemm1ClampLimit) {
  Case before = base(), after = base();
  before.problem.activation = Swiglu{.clamp = PerExpert(0.4f)};
  after.problem.activation = Swiglu{.clamp = PerExpert(0.4f), .clamp_after_silu = true};
  expect_close_and_far(before, "clamp in front of silu");
  expect_close_and_far(after, "clamp behind silu");
  expect_far(before, after, "the place of the clamp");
}

TEST_P(LeafNumerics, ShardsBelow128) {
  for (std::int64_t inter : {32, 96}) {
    Case c = base();
    c.problem.inter = inter;
    expect_close(c, "inter " + std::to_string(inter));
  }
}

Case shared_case(const Leaf& leaf, std::int64_t inter) {
  Case c{test::small_problem(leaf), {}, 9};
  c.problem.inter = inter;
  c.problem.num_shared = 2;
  c.problem.shared_inter = 2 * inter;
  return c;
}

TEST_P(LeafNumerics, SharedExpert) {
  Case c = shared_case(leaf(), 96);
  expect_close_and_far(c, "shared experts");
  c.problem.shared_gate = true;
  expect_close(c, "gated shared experts");
  expect_far(c, shared_case(leaf(), 96), "the gate");
}

bool is_fused(const MoeLayer& layer) {
  Call call(layer.impl(), 2);
  Trace trace;
  call.run([&](ForwardArgs& a) { a.trace = &trace; });
  return trace.fused_shared;
}

TEST_P(LeafNumerics, FusedSharedExperts) {
  std::vector<float> clamps = {0.3f, 0.5f, 0.7f, 0.9f, 1.1f, 1.3f};
  for (const Activation& act : {Activation(Swiglu{}), Activation(Swiglu{PerExpert(clamps)})}) {
    Case apart = shared_case(leaf(), 128);
    apart.problem.activation = act;
    Case fused = apart;
    fused.options.fuse_shared = true;
    const MoeLayer one = build(fused), two = build(apart);
    EXPECT_EQ(is_fused(one), !formats::is_static(leaf().activation));
    EXPECT_FALSE(is_fused(two));
    expect_close(fused, "fused shared experts");
    Call x(one.impl(), 9), y(two.impl(), 9);
    x.run(), y.run();
    // A dynamic scale per slice is not the scale of the joint row, so requantising formats differ.
    EXPECT_LE(rel(x.values(), y.values()), budgets_of(one).output);
  }
}

TEST_P(LeafNumerics, SharedExpertsThatCannotBeFusedRunApart) {
  Case cut = shared_case(leaf(), 96), gated = shared_case(leaf(), 128);
  gated.problem.shared_gate = true;
  for (Case c : {cut, gated}) {
    const bool block_is_cut = leaf().weights.block_rows > 1;
    const bool fusable = !c.problem.shared_gate && !formats::is_static(leaf().activation);
    const MoeLayer plain = build(c);
    c.options.fuse_shared = true;
    const MoeLayer asked = build(c);
    EXPECT_EQ(is_fused(asked), fusable && !block_is_cut);
    if (is_fused(asked)) continue;
    EXPECT_THAT(asked.notices(), testing::Contains(testing::HasSubstr("fused shared experts")));
    Call x(asked.impl(), 9), y(plain.impl(), 9);
    EXPECT_EQ(x.run(), y.run());
  }
}

TEST_P(LeafNumerics, OutputIntoACallersStridedSpan) {
  const MoeLayer layer = build(base());
  Call call(layer.impl(), 9);
  const std::vector<std::byte> dense = call.run();
  const std::int64_t h = layer.problem().hidden, stride = h + 24, lead = 3;
  const std::uint16_t canary = 0x7fa5;
  std::vector<std::uint16_t> span(std::size_t(9 * stride + lead), canary), hidden(span);
  for (std::int64_t t = 0; t < 9; ++t)
    std::memcpy(&hidden[std::size_t(lead + t * stride)], &call.hidden[std::size_t(t * h * 2)],
                std::size_t(h * 2));
  call.run([&](ForwardArgs& a) {
    a.hidden = hidden.data() + lead;
    a.out = span.data() + lead;
    a.hidden_stride = a.out_stride = stride;
  });
  for (std::int64_t i = 0; i < std::int64_t(span.size()); ++i) {
    const std::int64_t t = (i - lead) / stride, c = (i - lead) % stride;
    std::uint16_t want = canary;
    if (i >= lead && c < h) std::memcpy(&want, &dense[std::size_t((t * h + c) * 2)], 2);
    ASSERT_EQ(span[std::size_t(i)], want) << "element " << i;
  }
}

// ---- shapes, types and modes ----

TEST_P(LeafNumerics, RaggedShapes) {
  struct Widths {
    std::int64_t hidden, inter;
  };
  // The last two are the shards of a width of 320 on two ranks that cut a block of 128.
  for (const Widths& w : std::initializer_list<Widths>{
           {2880, 34}, {66, 1408}, {96, 96}, {130, 98}, {320, 192}, {320, 32}}) {
    Case c = base();
    c.problem.hidden = w.hidden, c.problem.inter = w.inter;
    c.problem.routing = make_routing(RoutingMethodType::kRenormalize, 3, 2);
    c.tokens = 5;
    expect_close(c, "H " + std::to_string(w.hidden) + " I " + std::to_string(w.inter));
  }
  Case least = base();
  least.problem.hidden = 2, least.problem.inter = 2;
  least.options.dtype = Dtype::kF32;  // so few values that rounding the output is no average
  expect_close(least, "H 2 I 2");
  if (formats::bits_of(leaf().weights.element) == 4) return;
  Case odd = base();
  odd.problem.hidden = 131, odd.problem.inter = 97;
  expect_close(odd, "odd widths");
}

// One case with everything in it; the twins of the GEMM have a test of their own.
TEST_P(LeafNumerics, ThePortableTier) {
  Case c = shared_case(leaf(), 98);
  c.problem.hidden = 130;
  c.problem.expert_bias = true;
  c.problem.activation = SwigluBias{1.702f, 1.0f, PerExpert(0.8f)};
  expect_close_on(CpuIsa::kPortable, c, "portable");
  c.options.dtype = Dtype::kFp16;
  c.options.activations = ActivationMode::kBf16;
  expect_close_on(CpuIsa::kPortable, c, "portable, fp16");
}

TEST_P(LeafNumerics, HiddenDtypes) {
  for (Dtype dtype : {Dtype::kFp16, Dtype::kF32}) {
    Case c = base();
    c.options.dtype = dtype;
    expect_close(c, std::string(to_string(dtype)));
  }
}

// With fp32 hidden states nothing but the two quantisers rounds, so the whole leaf is this close.
TEST_P(LeafNumerics, OnlyTheQuantisersRound) {
  Case c = base();
  c.options.dtype = Dtype::kF32;
  for (CpuIsa isa : test::runnable_tiers())
    EXPECT_LE(judge(build(c, isa), 9).rel_l2_oracle, 1e-5) << to_string(isa);
}

TEST_P(LeafNumerics, ActivationModes) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
    Case c = base();
    c.options.activations = ActivationMode::kBf16;
    c.options.dtype = dtype;
    expect_close(c, "activations = bf16");
    EXPECT_EQ(build(c).impl().routed().shape.quant, ActivationQuant::kNone);
  }
  Case f32 = base();
  f32.options.activations = ActivationMode::kF32;
  EXPECT_EQ(budgets_of(build(f32)).oracle, 1e-5);
  expect_close(f32, "activations = f32");
}

TEST_P(LeafNumerics, EveryActivation) {
  for (const Activation& a : std::initializer_list<Activation>{
           Geglu{GeluForm::kTanh}, Geglu{GeluForm::kErf}, Silu{}, Gelu{GeluForm::kTanh},
           Gelu{GeluForm::kErf}, Relu{}, Identity{}, SwigluBias{1.702f, 1.0f, std::nullopt}}) {
    Case c = base();
    c.problem.activation = a;
    expect_close(c, describe(a));
  }
}

TEST_P(LeafNumerics, PerExpertConstants) {
  std::vector<float> up = {0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f}, down(up.rbegin(), up.rend());
  auto with = [&](const std::vector<float>& v) {
    Case c = base();
    c.problem.activation = SwigluBias{PerExpert(v), PerExpert(v), PerExpert(v)};
    return c;
  };
  expect_close(with(up), "constants per expert");
  expect_far(with(up), with(down), "the order of the constants");
}

// ---- routing ----

TEST_P(LeafNumerics, WeightOnInput) {
  Case llama = base();
  llama.problem.routing = make_routing(RoutingMethodType::kLlama4, 6, 1);
  expect_close(llama, "Llama4");
  Case three = base();
  three.problem.routing.placement = WeightPlacement::kInput;
  expect_close_and_far(three, "weights on the input of three choices");
}

TEST_P(LeafNumerics, ZeroExperts) {
  Case c = base();
  c.problem.routing.zero_experts = 4;
  c.tokens = 16;
  const MoeLayer layer = build(c);
  const layer::Judgement j = judge(layer, c.tokens);
  EXPECT_THAT(j.ids, testing::Contains(testing::Ge(6))) << "no zero expert was chosen";
  expect_close(c, "zero experts");
  c.problem.routing.placement = WeightPlacement::kInput;
  expect_close(c, "zero experts beside weights on the input");
}

TEST_P(LeafNumerics, NoTokenAndOneToken) {
  const MoeLayer layer = build(base());
  ForwardArgs none;  // null pointers, as of empty arrays
  EXPECT_NO_THROW(layer.forward(none));
  Call call(layer.impl(), 3);
  call.run([](ForwardArgs& a) { a.tokens = 0; });
  EXPECT_THAT(call.out, testing::Each(std::byte(0xff))) << "no token writes nothing";
  Case one = base();
  one.tokens = 1;
  expect_close(one, "one token");
}

TEST_P(LeafNumerics, AllTokensOnOneExpert) {
  const MoeLayer layer = build(base());
  Call call(layer.impl(), 40);
  GivenRouting r(layer.problem(), 40);
  std::fill(r.ids.begin(), r.ids.end(), 4);
  call.run([&](ForwardArgs& a) { a.routing = {r.ids.data(), r.weights.data(), nullptr}; });
  EXPECT_LE(rel(call.values(), test::ffn_oracle(call, r, 1.75)), budgets_of(layer).oracle);
}

TEST_P(LeafNumerics, CallersIdsAndWeights) {
  const MoeLayer layer = build(base());
  Call call(layer.impl(), 9);
  const GivenRouting r(layer.problem(), 9);
  const double budget = budgets_of(layer).oracle;
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

TEST_P(LeafNumerics, SkippedIdsContributeExactlyNothing) {
  for (WeightPlacement placement : {WeightPlacement::kOutput, WeightPlacement::kInput}) {
    Case c = base();
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
    EXPECT_LE(rel(y, test::ffn_oracle(call, finite, 1.75)), budgets_of(layer).oracle);
    const auto row = y.begin() + 5 * layer.problem().hidden;
    EXPECT_THAT(std::vector(row, row + layer.problem().hidden), testing::Each(0.0));
  }
}

TEST_P(LeafNumerics, ExpertCountsAreAddedTo) {
  Case c = base();
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

TEST_P(LeafNumerics, UnfinalisedOutputFinalizesToTheSameBits) {
  for (WeightPlacement placement : {WeightPlacement::kOutput, WeightPlacement::kInput}) {
    Case c = shared_case(leaf(), 96);
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

TEST_P(LeafNumerics, RowsAndOutputRoundOnceFromTheSameFp32Rows) {
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

// ---- controls ----

TEST_P(LeafNumerics, EveryFaultExceedsTheBudget) {
  const Case c = base();
  const checkpoint::LayerWeights weights = make_weights(c.problem, leaf());
  const MoeLayer good = build_layer(weights, c.options, test::runnable_tiers().back());
  const Call tokens(good.impl(), 24);
  const std::vector<double> want =
      layer::run_oracle(good.impl(), {.tokens = 24, .hidden = tokens.exact.data(), .logits = {}})
          .out;
  int shown = 0;
  for (const auto& [fault, name] : test::kFaults) {
    const std::optional<checkpoint::LayerWeights> bad = test::damaged(weights, fault);
    if (!bad) continue;
    const MoeLayer layer = build_layer(*bad, c.options, test::runnable_tiers().back());
    Call call(layer.impl(), 24);
    call.run();
    EXPECT_GT(rel(call.values(), want), 4 * budgets_of(good).oracle) << name;
    ++shown;
  }
  EXPECT_GE(shown, 5);
}

// Weights whose quantised scale would not be a number are refused, never turned into numbers.
TEST_P(LeafNumerics, ANaNWeightIsNeverLost) {
  const Leaf& plain = *find_leaf("none", Device::kCpu).leaf;
  Problem p = test::small_problem(plain);
  checkpoint::LayerWeights w = make_weights(p, plain);
  w.expert = [source = w.expert](std::int64_t e) {
    checkpoint::ExpertWeights expert = source(e);
    std::vector<float> values = test::weight_values(expert.up.rows, expert.up.cols, 3);
    values[5] = std::nanf("");
    expert.up = formats::quantize_matrix(values, expert.up.rows, expert.up.cols, expert.up.layout);
    return expert;
  };
  BuildOptions options;
  options.format = std::string(leaf().id.quant);
  for (CpuIsa isa : test::runnable_tiers()) try {
      const MoeLayer layer = build_layer(w, options, isa);
      Call call(layer.impl(), 4);
      call.run();
      EXPECT_TRUE(std::isnan(call.values()[0])) << to_string(isa);
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr("up projection"));
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
Case walk_case(const Leaf& leaf, const Axes& axes, std::size_t i) {
  Case c{test::small_problem(leaf), {}, 3};
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

void expect_runs(const MoeLayer& layer, const Case& c, const std::string& what) {
  if (c.problem.routing.choice != ChoiceRule::kCaller) {
    const layer::Judgement j = judge(layer, c.tokens);
    Budgets budgets = budgets_of(layer);
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

TEST_P(LeafNumerics, EligibleImpliesConstructibleAndRunnable) {
  const Axes axes = make_axes();
  const std::size_t steps = test::subset_or_full<std::size_t>(57, 11 * 19 * 5 * 3);
  std::size_t ran = 0;
  Deployment d;
  d.env = resolve::environment();
  for (std::size_t i = 0; i < steps; ++i) {
    const Case c = walk_case(leaf(), axes, i);
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

INSTANTIATE_TEST_SUITE_P(Leaves, LeafNumerics, testing::ValuesIn(all_leaves(Device::kCpu)),
                         [](const auto& info) { return std::string(info.param->id.quant); });

}  // namespace
}  // namespace switchyard::leaves
