// SPDX-License-Identifier: Apache-2.0
// What every leaf of the registry computes, against the double oracle; each bound has its controls.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "switchyard/layer/oracle.h"
#include "tests/cases/leaf_case.h"

namespace switchyard::leaves {
namespace {

using formats::ActivationQuant;
using test::build_layer;
using test::Call;
using test::LeafCase;
using test::make_weights;
using test::rel;
using test::shared_case;

using LeafNumerics = test::EveryLeaf;

// ---- the capability table: each row on every leaf ----

TEST_P(LeafNumerics, SiTu) {
  LeafCase c = base();
  c.problem.activation = SiTu{1.5f, 2.0f};
  expect_close_and_far(c, "SiTu");
}

TEST_P(LeafNumerics, Relu2) {
  LeafCase c = base();
  c.problem.activation = Relu2{};
  expect_close_and_far(c, "ReLU2");
}

TEST_P(LeafNumerics, DeepSeekV3Routing) {
  LeafCase c = base();
  c.problem.routing = make_routing(RoutingMethodType::kDeepSeekV3, 6, 3);
  c.problem.routing.n_group = 3;
  c.problem.routing.topk_group = 2;
  c.problem.routing.choice_bias = true;
  expect_close_and_far(c, "DeepSeekV3");
}

TEST_P(LeafNumerics, DefaultRouting) {
  LeafCase c = base();
  c.problem.routing = make_routing(RoutingMethodType::kDefault, 6, 3);
  expect_close_and_far(c, "Default");
}

TEST_P(LeafNumerics, ExpertBias) {
  LeafCase c = base();
  c.problem.expert_bias = true;
  expect_close_and_far(c, "biases");
  c.problem.activation = SwigluBias{1.702f, 1.0f, PerExpert(0.8f)};
  expect_close_and_far(c, "biases with gpt-oss' activation");
  c.problem.activation = Relu2{};
  expect_close_and_far(c, "biases of one projection");
}

TEST_P(LeafNumerics, Gemm1ClampLimit) {
  LeafCase before = base(), after = base();
  before.problem.activation = Swiglu{.clamp = PerExpert(0.4f)};
  after.problem.activation = Swiglu{.clamp = PerExpert(0.4f), .clamp_after_silu = true};
  expect_close_and_far(before, "clamp in front of silu");
  expect_close_and_far(after, "clamp behind silu");
  expect_far(before, after, "the place of the clamp");
}

TEST_P(LeafNumerics, ShardsBelow128) {
  for (std::int64_t inter : {32, 96}) {
    LeafCase c = base();
    c.problem.inter = inter;
    expect_close(c, "inter " + std::to_string(inter));
  }
}

TEST_P(LeafNumerics, SharedExpert) {
  LeafCase c = shared_case(leaf(), 96);
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
    LeafCase apart = shared_case(leaf(), 128);
    apart.problem.activation = act;
    LeafCase fused = apart;
    fused.options.fuse_shared = true;
    const MoeLayer one = build(fused), two = build(apart);
    EXPECT_EQ(is_fused(one), !formats::is_static(leaf().activation));
    EXPECT_FALSE(is_fused(two));
    expect_close(fused, "fused shared experts");
    Call x(one.impl(), 9), y(two.impl(), 9);
    x.run(), y.run();
    // A dynamic scale per slice is not the scale of the joint row, so requantising formats differ.
    EXPECT_LE(rel(x.values(), y.values()), test::budgets_of(one).output);
  }
}

TEST_P(LeafNumerics, SharedExpertsThatCannotBeFusedRunApart) {
  LeafCase cut = shared_case(leaf(), 96), gated = shared_case(leaf(), 128);
  gated.problem.shared_gate = true;
  for (LeafCase c : {cut, gated}) {
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
    LeafCase c = base();
    c.problem.hidden = w.hidden, c.problem.inter = w.inter;
    c.problem.routing = make_routing(RoutingMethodType::kRenormalize, 3, 2);
    c.tokens = 5;
    expect_close(c, "H " + std::to_string(w.hidden) + " I " + std::to_string(w.inter));
  }
  LeafCase least = base();
  least.problem.hidden = 2, least.problem.inter = 2;
  least.options.dtype = Dtype::kF32;  // so few values that rounding the output is no average
  expect_close(least, "H 2 I 2");
  if (formats::bits_of(leaf().weights.element) == 4) return;
  LeafCase odd = base();
  odd.problem.hidden = 131, odd.problem.inter = 97;
  expect_close(odd, "odd widths");
}

// One case with everything in it; the twins of the GEMM have a test of their own.
TEST_P(LeafNumerics, ThePortableTier) {
  LeafCase c = shared_case(leaf(), 98);
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
    LeafCase c = base();
    c.options.dtype = dtype;
    expect_close(c, std::string(to_string(dtype)));
  }
}

// With fp32 hidden states nothing but the two quantisers rounds, so the whole leaf is this close.
TEST_P(LeafNumerics, OnlyTheQuantisersRound) {
  LeafCase c = base();
  c.options.dtype = Dtype::kF32;
  for (CpuIsa isa : test::runnable_tiers())
    EXPECT_LE(test::judge(build(c, isa), 9).rel_l2_oracle, 1e-5) << to_string(isa);
}

TEST_P(LeafNumerics, ActivationModes) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
    LeafCase c = base();
    c.options.activations = ActivationMode::kBf16;
    c.options.dtype = dtype;
    expect_close(c, "activations = bf16");
    EXPECT_EQ(build(c).impl().routed().shape.quant, ActivationQuant::kNone);
  }
  LeafCase f32 = base();
  f32.options.activations = ActivationMode::kF32;
  EXPECT_EQ(test::budgets_of(build(f32)).oracle, 1e-5);
  expect_close(f32, "activations = f32");
}

TEST_P(LeafNumerics, EveryActivation) {
  for (const Activation& a : std::initializer_list<Activation>{
           Geglu{GeluForm::kTanh}, Geglu{GeluForm::kErf}, Silu{}, Gelu{GeluForm::kTanh},
           Gelu{GeluForm::kErf}, Relu{}, Identity{}, SwigluBias{1.702f, 1.0f, std::nullopt}}) {
    LeafCase c = base();
    c.problem.activation = a;
    expect_close(c, describe(a));
  }
}

TEST_P(LeafNumerics, PerExpertConstants) {
  std::vector<float> up = {0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f}, down(up.rbegin(), up.rend());
  auto with = [&](const std::vector<float>& v) {
    LeafCase c = base();
    c.problem.activation = SwigluBias{PerExpert(v), PerExpert(v), PerExpert(v)};
    return c;
  };
  expect_close(with(up), "constants per expert");
  expect_far(with(up), with(down), "the order of the constants");
}

// ---- controls ----

TEST_P(LeafNumerics, EveryFaultExceedsTheBudget) {
  const LeafCase c = base();
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
    EXPECT_GT(rel(call.values(), want), 4 * test::budgets_of(good).oracle) << name;
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

INSTANTIATE_TEST_SUITE_P(Leaves, LeafNumerics, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard::leaves
