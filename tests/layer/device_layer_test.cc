// SPDX-License-Identifier: Apache-2.0
// Every leaf of cuda on the shared cases, against the oracle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "switchyard/base/device_stream.h"
#include "switchyard/base/errors.h"
#include "switchyard/layer/device_rank.h"
#include "tests/cases/device_case.h"
#include "tests/cases/leaf_case.h"
#include "tests/support/device.h"
#include "tests/support/usage_error.h"

namespace switchyard::layer {
namespace {

using test::Call;
using test::DeviceCall;
using test::GivenRouting;
using test::LeafCase;

/// One test, once per leaf of cuda.
class DeviceLayer : public test::NeedsGpu, public testing::WithParamInterface<const leaves::Leaf*> {
 protected:
  const leaves::Leaf& leaf() const { return *GetParam(); }
  bool four_bit() const { return formats::bits_of(leaf().weights.element) == 4; }
  /// Of outputs that no judge compares code by code.
  double budget() const { return requantises(leaf().activation) ? 1e-2 : 5e-3; }
  LeafCase base() const {
    LeafCase c{test::small_problem(leaf()), {}, 9};
    c.options.device = Device::kCuda;
    return c;
  }
  MoeLayer build(const LeafCase& c) const {
    return test::build_layer(test::make_weights(c.problem, leaf()), c.options, CpuIsa::kPortable);
  }
  void expect_close(const LeafCase& c, const std::string& what) const {
    const MoeLayer layer = build(c);
    EXPECT_EQ(layer.leaf(), leaf().id.str());
    const Judgement j = test::judge(layer, c.tokens);
    EXPECT_TRUE(j.ok(test::budgets_of(layer)))
        << what << ": rel L2 " << j.rel_l2_oracle << ", " << j.ids_differing << " ids and "
        << j.codes_differing << " of " << j.codes << " codes differ";
  }
};

TEST_P(DeviceLayer, MatchesOracleAtEveryTokenCount) {
  LeafCase c = base();
  for (std::int64_t tokens : {0, 1, 7, 8, 9, 31, 64, 65, 200, 512, 1500}) {
    c.tokens = tokens;
    expect_close(c, std::to_string(tokens) + " tokens");
  }
}

TEST_P(DeviceLayer, MatchesOracleForEveryActivation) {
  for (const Activation& a :
       {Activation(Swiglu{}), Activation(Swiglu{.clamp = PerExpert(0.5f)}),
        Activation(Swiglu{.clamp = PerExpert(0.5f), .clamp_after_silu = true}),
        Activation(SwigluBias{1.702f, 1.0f, PerExpert(7.0f)}), Activation(SiTu{}),
        Activation(Geglu{GeluForm::kErf}), Activation(Geglu{GeluForm::kTanh}), Activation(Relu2{}),
        Activation(Silu{}), Activation(Gelu{GeluForm::kErf}), Activation(Relu{}),
        Activation(Identity{})})
    for (bool bias : {false, true}) {
      LeafCase c = base();
      c.problem.activation = a;
      c.problem.expert_bias = bias;
      for (std::int64_t tokens : {9, 130}) {
        c.tokens = tokens;
        expect_close(c, describe(a) + (bias ? " with biases" : ""));
      }
    }
}

TEST_P(DeviceLayer, MatchesOracleForRaggedShapes) {
  for (const auto& [hidden, inter] :
       {std::pair{130, 98}, {2, 2}, {96, 32}, {131, 97}, {2880, 64}, {64, 1408}, {256, 768}}) {
    if (four_bit() && (hidden % 2 != 0 || inter % 2 != 0)) continue;
    LeafCase c = base();
    c.problem.hidden = hidden;
    c.problem.inter = inter;
    for (std::int64_t tokens : {5, 150}) {
      c.tokens = tokens;
      expect_close(c, std::to_string(hidden) + " x " + std::to_string(inter));
    }
  }
}

TEST_P(DeviceLayer, MatchesOracleForEveryRecipe) {
  for (int m = 0; m < int(RoutingMethodType::kUnspecified); ++m) {
    const auto method = RoutingMethodType(m);
    if (method == RoutingMethodType::kHash) continue;  // its own table: below
    LeafCase c = base();
    const std::int64_t k = method == RoutingMethodType::kLlama4        ? 1
                           : method == RoutingMethodType::kSparseMixer ? 2
                                                                       : 3;
    c.problem.routing = make_routing(method, 6, k);
    expect_close(c, std::string(to_string(method)));
  }
  LeafCase c = base();
  c.problem.routing = make_routing(RoutingMethodType::kHash, 6, 2);
  expect_close(c, "hash");
}

// fp16 tokens, and activations that nothing quantises, in both dtypes.
TEST_P(DeviceLayer, MatchesOracleInEveryDtypeAndMode) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16})
    for (ActivationMode mode : {ActivationMode::kFormat, ActivationMode::kBf16})
      for (bool on_input : {false, true})
        for (std::int64_t tokens : {1, 30, 300}) {
          LeafCase c = base();
          c.options.dtype = dtype;
          c.options.activations = mode;
          if (on_input) c.problem.routing.placement = WeightPlacement::kInput;
          c.tokens = tokens;
          expect_close(c, std::string(to_string(dtype)) +
                              (on_input ? ", weighted inputs, " : ", ") +
                              (mode == ActivationMode::kBf16 ? "unquantised, " : "") +
                              std::to_string(tokens) + " tokens");
        }
}

// Blocks of 128, 32 and 16 columns, whole and partial, in both GEMMs.
TEST_P(DeviceLayer, MatchesOracleWhereBlocksEnd) {
  for (const auto& [hidden, inter] : {std::pair{128, 128}, {384, 256}, {400, 176}, {144, 336}}) {
    LeafCase c = base();
    c.problem.hidden = hidden;
    c.problem.inter = inter;
    for (std::int64_t tokens : {3, 40, 700}) {
      c.tokens = tokens;
      expect_close(c, std::to_string(hidden) + " x " + std::to_string(inter));
    }
  }
}

TEST_P(DeviceLayer, SharedZeroAndFusedExperts) {
  LeafCase shared = test::shared_case(leaf(), 96);
  shared.options.device = Device::kCuda;
  expect_close(shared, "shared");
  shared.problem.shared_gate = true;
  expect_close(shared, "shared behind a gate");
  shared.tokens = 300;
  expect_close(shared, "shared, 300 tokens");
  LeafCase fused = test::shared_case(leaf(), 128);
  fused.options.device = Device::kCuda;
  fused.options.fuse_shared = true;
  EXPECT_EQ(build(fused).impl().shared() == nullptr, !formats::is_static(leaf().activation))
      << "whether the case fuses";
  expect_close(fused, "fused");
  LeafCase zero = base();
  zero.problem.routing.zero_experts = 2;
  expect_close(zero, "zero experts");
}

TEST_P(DeviceLayer, ThreePoisonedCallsAndTwoLayersHaveTheSameBits) {
  for (std::int64_t tokens : {1, 70, 600}) {
    const MoeLayer one = build(base()), other = build(base());
    Call a(one.impl(), tokens), b(other.impl(), tokens);
    const std::vector<std::byte> first = a.run();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(a.run(), first);
    EXPECT_EQ(b.run(), first);
  }
}

// The tiers differ between these batches; a row's bits do not.
TEST_P(DeviceLayer, ARowHasTheSameBitsInEveryBatch) {
  LeafCase c = base();
  c.problem.hidden = 256;
  c.problem.inter = 320;
  const MoeLayer layer = build(c);
  const std::size_t row = std::size_t(c.problem.hidden) * 2;
  Call most(layer.impl(), 4096);
  const std::vector<std::byte> all = most.run();
  for (std::int64_t batch : {1, 8, 16, 32, 68, 512, 1300})
    for (std::int64_t first : {0, 4096 - 1300}) {
      const std::vector<std::byte> got = most.run([&](ForwardArgs& a) {
        a.tokens = batch;
        a.hidden = most.hidden.data() + std::size_t(first) * row;
      });
      EXPECT_EQ(0, std::memcmp(got.data(), all.data() + std::size_t(first) * row,
                               std::size_t(batch) * row))
          << batch << " tokens from " << first;
    }
}

TEST_P(DeviceLayer, BudgetCatchesEveryFault) {
  const LeafCase c = base();
  const checkpoint::LayerWeights good = test::make_weights(c.problem, leaf());
  const MoeLayer right = build(c);
  Call want(right.impl(), 64);
  want.run();
  int shown = 0;
  for (const auto& [fault, name] : test::kFaults) {
    const auto bad = test::damaged(good, fault);
    if (!bad) continue;
    const MoeLayer wrong = test::build_layer(*bad, c.options, CpuIsa::kPortable);
    Call got(wrong.impl(), 64);
    got.run();
    EXPECT_GT(test::rel(got.values(), want.values()), 2 * test::budgets_of(right).oracle) << name;
    ++shown;
  }
  EXPECT_GE(shown, 4);
}

TEST_P(DeviceLayer, GivenIdsSkipsAndOneExpertForAll) {
  const MoeLayer layer = build(base());
  Call call(layer.impl(), 90);
  GivenRouting routing(layer.problem(), 90);
  for (std::size_t i = 0; i < routing.ids.size(); i += 4) {
    routing.ids[i] = -1;
    routing.weights[i] = NAN;  // a skipped choice contributes nothing, whatever its weight
  }
  for (std::size_t i = 30; i < 60; ++i) routing.ids[i] = -1;  // whole tokens
  const auto run = [&](const GivenRouting& r) {
    call.run([&](ForwardArgs& a) { a.routing = {r.ids.data(), r.weights.data(), nullptr}; });
    return call.values();
  };
  const std::vector<double> got = run(routing);
  EXPECT_LE(test::rel(got, test::ffn_oracle(call, routing, 1.75)), budget());
  for (std::int64_t i = 10 * 160; i < 20 * 160; ++i) EXPECT_EQ(got[std::size_t(i)], 0);
  std::fill(routing.ids.begin(), routing.ids.end(), 4);
  std::fill(routing.weights.begin(), routing.weights.end(), 0.5f);
  EXPECT_LE(test::rel(run(routing), test::ffn_oracle(call, routing, 1.75)), budget());
  std::fill(routing.ids.begin(), routing.ids.end(), -1);
  for (double v : run(routing)) EXPECT_EQ(v, 0);
  std::fill(routing.ids.begin(), routing.ids.end(), 77);  // outside: skipped
  for (double v : run(routing)) EXPECT_EQ(v, 0);
}

// Given choices, some of them skipped, and the router's own.
TEST_P(DeviceLayer, CountsAreByExpertAndAdded) {
  const MoeLayer layer = build(base());
  for (std::int64_t tokens : {20, 400}) {
    Call call(layer.impl(), tokens);
    GivenRouting routing(layer.problem(), tokens);
    for (std::size_t i = 0; i < routing.ids.size(); ++i)  // so that no two neighbours' counts agree
      if (std::int32_t(i / 3 % 7) < routing.ids[i]) routing.ids[i] = -1;
    std::vector<std::int32_t> chosen(routing.ids.size(), -7);
    for (bool given : {true, false}) {
      // Six experts, and a canary on either side.
      std::vector<std::int64_t> counts(8, 40), want(8, 40);
      call.run([&](ForwardArgs& a) {
        if (given) a.routing = {routing.ids.data(), routing.weights.data(), nullptr};
        if (!given) a.ids_out = chosen.data();
        a.expert_counts = counts.data() + 1;
      });
      for (std::int32_t id : given ? routing.ids : chosen) {
        ASSERT_TRUE(id >= -1 && id < 6) << id;
        if (id >= 0) ++want[std::size_t(id) + 1];
      }
      EXPECT_EQ(counts, want) << tokens << " tokens, " << (given ? "given" : "routed");
    }
  }
}

TEST_P(DeviceLayer, StridesAndUnfinalisedRows) {
  const MoeLayer layer = build(base());
  constexpr std::int64_t kTokens = 20, kHidden = 160, kStride = 171;
  Call call(layer.impl(), kTokens);
  const std::vector<std::byte> dense = call.run();
  std::vector<std::uint16_t> wide(kTokens * kStride, 0x7fc0), out(kTokens * kStride, 0x1234);
  for (std::int64_t t = 0; t < kTokens; ++t)
    std::memcpy(&wide[std::size_t(t * kStride)], call.hidden.data() + t * kHidden * 2, kHidden * 2);
  call.run([&](ForwardArgs& a) {
    a.hidden = wide.data(), a.hidden_stride = kStride;
    a.out = out.data(), a.out_stride = kStride;
  });
  for (std::int64_t t = 0; t < kTokens; ++t) {
    EXPECT_EQ(0, std::memcmp(&out[std::size_t(t * kStride)], dense.data() + t * kHidden * 2,
                             kHidden * 2));
    EXPECT_EQ(out[std::size_t(t * kStride + kHidden)], 0x1234) << "the padding behind a row";
  }
  std::vector<std::uint16_t> rows(kTokens * 3 * kHidden, 0x7fc0);
  std::vector<float> weights(kTokens * 3, NAN);
  std::vector<std::int32_t> index(kTokens * 3, -7);
  Unfinalised u{rows.data(), weights.data(), index.data(), nullptr, 0};
  call.run([&](ForwardArgs& a) { a.out = nullptr, a.unfinalised = &u; });
  EXPECT_EQ(u.pending_factor, 1.75f);
  std::vector<double> sum(kTokens * kHidden), want;
  for (std::size_t i = 0; i < index.size(); ++i)
    for (std::int64_t c = 0; c < kHidden; ++c)
      sum[i / 3 * kHidden + std::size_t(c)] +=
          1.75 * double(weights[i]) *
          double(bf16_to_float(rows[std::size_t(index[i]) * kHidden + std::size_t(c)]));
  call.run();
  EXPECT_LE(test::rel(sum, call.values()), 5e-3);
}

// What finalize makes of rows, weights and shared rows is the output, but for the roundings of rows
// and shared rows; without the shared rows it is not.
TEST_P(DeviceLayer, UnfinalisedRowsBesideASharedExpert) {
  LeafCase c = test::shared_case(leaf(), 96);
  c.options.device = Device::kCuda;
  const MoeLayer layer = build(c);
  const std::int64_t hidden = c.problem.hidden, k = c.problem.top_k();
  for (const std::int64_t tokens : {1, 33}) {
    Call call(layer.impl(), tokens);
    call.run();
    const std::vector<double> want = call.values();
    std::vector<std::uint16_t> rows(std::size_t(tokens * k * hidden), 0x7fc0);
    std::vector<std::uint16_t> shared(std::size_t(tokens * hidden), 0x7fc0);
    std::vector<float> weights(std::size_t(tokens * k), NAN);
    std::vector<std::int32_t> index(weights.size(), -7);
    Unfinalised u{rows.data(), weights.data(), index.data(), shared.data(), 0};
    call.run([&](ForwardArgs& a) { a.out = nullptr, a.unfinalised = &u; });
    std::vector<double> sum(want.size()), without;
    for (std::size_t i = 0; i < index.size(); ++i)
      for (std::size_t h = 0; h < std::size_t(hidden); ++h)
        sum[i / std::size_t(k) * std::size_t(hidden) + h] +=
            double(u.pending_factor) * double(weights[i]) *
            double(bf16_to_float(rows[std::size_t(index[i]) * std::size_t(hidden) + h]));
    without = sum;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += double(bf16_to_float(shared[i]));
    EXPECT_LE(test::rel(sum, want), 5e-3) << tokens;
    EXPECT_GT(test::rel(without, want), 1e-2) << tokens;
  }
  Call call(layer.impl(), 1);
  std::vector<std::uint16_t> rows(std::size_t(k * hidden));
  std::vector<float> weights(static_cast<std::size_t>(k));
  std::vector<std::int32_t> index(static_cast<std::size_t>(k));
  Unfinalised bare{rows.data(), weights.data(), index.data(), nullptr, 0};
  EXPECT_THAT(test::usage_error_of([&] {
                call.run([&](ForwardArgs& a) { a.out = nullptr, a.unfinalised = &bare; });
              }),
              testing::HasSubstr("shared expert"));
}

TEST_P(DeviceLayer, AGraphReplaysWithTheTokensThatAreThereThen) {
  const MoeLayer layer = build(base());
  for (const int tokens : {1, 8, 40}) {  // few and many: FC1 ends in other ways
    SCOPED_TRACE(tokens);
    Call call(layer.impl(), tokens), later(layer.impl(), tokens, 2);
    const std::vector<std::byte> first = call.run(), second = later.run();
    EXPECT_NE(first, second);
    DeviceCall device(call);
    DeviceGraph graph(device.stream, [&] { layer.forward(device.args); });
    graph.run();
    EXPECT_EQ(device.out.get(), first);
    device.hidden.memory.upload(later.hidden.data());
    graph.run();
    EXPECT_EQ(device.out.get(), second);
  }
}

TEST_P(DeviceLayer, AGoodCallFollowsEachRefusedOne) {
  const MoeLayer layer = build(base());
  Call call(layer.impl(), 12);
  const std::vector<std::byte> want = call.run();
  DeviceCall device(call);
  struct Refused {
    const char* text;
    std::function<void(ForwardArgs&)> spoil;
  };
  StageCapture capture;
  float up = 0;
  capture.up = &up;  // what FC1 gave is the CPU's to show
  const Refused cases[] = {
      {"stream", [](ForwardArgs& a) { a.stream = {}; }},
      {"workspace", [](ForwardArgs& a) { a.workspace = a.workspace.first(64); }},
      {"capture", [&](ForwardArgs& a) { a.capture = &capture; }},
      {"stride", [](ForwardArgs& a) { a.hidden_stride = 3; }},
  };
  for (const Refused& r : cases) {
    ForwardArgs bad = device.args;
    r.spoil(bad);
    EXPECT_THAT(test::usage_error_of([&] { layer.forward(bad); }), testing::HasSubstr(r.text));
    device.out.memory.upload(std::vector<std::byte>(call.out.size(), std::byte(0xff)).data());
    layer.forward(device.args);
    device.stream.wait();
    EXPECT_EQ(device.out.get(), want);
  }
  EXPECT_THROW(DeviceMemory(std::size_t(1) << 50), DeviceError);
  layer.forward(device.args);
  device.stream.wait();
  EXPECT_EQ(device.out.get(), want);
}

TEST_P(DeviceLayer, TheTraceSaysWhatRan) {
  const MoeLayer layer = build(base());
  Trace trace;
  Call(layer.impl(), 3).run([&](ForwardArgs& a) { a.trace = &trace; });
  EXPECT_EQ(trace.leaf, leaf().id.str());
  EXPECT_TRUE(trace.routed_here);
}

INSTANTIATE_TEST_SUITE_P(Leaves, DeviceLayer, testing::ValuesIn(leaves::all_leaves(Device::kCuda)),
                         test::leaf_name);

}  // namespace
}  // namespace switchyard::layer
