// SPDX-License-Identifier: Apache-2.0
// What every leaf's layer promises beside its numbers: bits, workspace, no allocation, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "switchyard/base/float_env.h"
#include "switchyard/base/random.h"
#include "switchyard/leaves/registry.h"
#include "tests/cases/moe_case.h"
#include "tests/meter/allocation_meter.h"
#include "tests/support/selection_cases.h"

namespace switchyard {
namespace {

using test::Call;
using test::GivenRouting;
using test::usage_error_of;
using testing::HasSubstr;

// A gated shared expert and a factor, so that every stage takes part.
Problem full_problem(const leaves::Leaf& leaf) {
  Problem p = test::small_problem(leaf);
  p.num_shared = 1;
  p.shared_inter = 64;
  p.shared_gate = true;
  return p;
}

MoeLayer build(const Problem& p, const leaves::Leaf& leaf, BuildOptions options = {},
               CpuIsa isa = test::runnable_tiers().back()) {
  return test::build_layer(test::make_weights(p, leaf), options, isa);
}

class MoeLayerOf : public testing::TestWithParam<const leaves::Leaf*> {
 protected:
  const leaves::Leaf& leaf() const { return *GetParam(); }
};

// ---- bits ----

// Runs `batch` rows of which row `place` is `row`, a neighbour is NaN, and returns that row's bits.
std::vector<std::byte> row_among(Call& call, const std::vector<float>& row, std::int64_t place) {
  const std::size_t h = row.size(), at = std::size_t(place);
  std::vector<float> x(std::size_t(call.tokens) * h);
  const Random random(17, std::uint64_t(call.tokens));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = random.normal(i);
  if (call.tokens > 1)
    std::fill_n(x.begin() + std::int64_t((at == 0 ? 1 : at - 1) * h), h, std::nanf(""));
  std::copy(row.begin(), row.end(), x.begin() + std::int64_t(at * h));
  call.set_hidden(x);
  const std::vector<std::byte> out = call.run();
  const std::size_t bytes = out.size() / std::size_t(call.tokens);
  return {out.begin() + std::int64_t(at * bytes), out.begin() + std::int64_t((at + 1) * bytes)};
}

void expect_invariant(const MoeLayer& layer, std::initializer_list<std::int64_t> batches) {
  const Random random(23, 1);
  std::vector<float> row;
  for (std::int64_t i = 0; i < layer.problem().hidden; ++i)
    row.push_back(random.normal(std::uint64_t(i)));
  Call one(layer.impl(), 1);
  const std::vector<std::byte> alone = row_among(one, row, 0);
  for (std::int64_t batch : batches) {
    Call call(layer.impl(), batch);
    for (std::int64_t place : {std::int64_t{0}, batch * 5 / 8, batch - 1})
      EXPECT_EQ(row_among(call, row, place), alone) << "row " << place << " of " << batch;
  }
}

TEST_P(MoeLayerOf, ARowAloneEqualsTheSameRowInAnyBatch) {
  Problem p = full_problem(leaf());
  p.hidden = 98, p.inter = 66;
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {  // fp32 shows what rounding would hide
    BuildOptions options;
    options.dtype = dtype;
    if (dtype == Dtype::kF32) {
      expect_invariant(build(p, leaf(), options), {8, 68, 512});
    } else {
      expect_invariant(build(p, leaf(), options), {8, 68, 512, 4096});
    }
    expect_invariant(build(p, leaf(), options, CpuIsa::kPortable), {8, 68});
  }
  BuildOptions bf16;
  bf16.activations = ActivationMode::kBf16;
  expect_invariant(build(p, leaf(), bf16), {8, 68, 512});
}

TEST_P(MoeLayerOf, FortyRunsGiveOneResult) {
  const MoeLayer layer = build(full_problem(leaf()), leaf());
  Call call(layer.impl(), 33);
  const std::vector<std::byte> first = call.run();
  for (int i = 1; i < 40; ++i) ASSERT_EQ(call.run(), first) << "run " << i;
  const MoeLayer again = build(full_problem(leaf()), leaf());
  EXPECT_EQ(Call(again.impl(), 33).run(), first) << "a layer built anew";
  call.set_hidden(std::vector<float>(call.exact.rbegin(), call.exact.rend()));
  EXPECT_NE(call.run(), first) << "other tokens give another result";
}

TEST_P(MoeLayerOf, EveryThreadCountGivesTheSameBits) {
  for (std::int64_t tokens : {1, 33}) {
    std::vector<std::byte> one;
    for (int threads : {1, 2, 3, 4}) {
      BuildOptions options;
      options.threads = threads;
      const MoeLayer layer = build(full_problem(leaf()), leaf(), options);
      EXPECT_EQ(layer.threads(), threads);
      Call call(layer.impl(), tokens);
      if (threads == 1) one = call.run();
      EXPECT_EQ(call.run(), one) << threads << " threads, " << tokens << " tokens";
    }
  }
}

TEST_P(MoeLayerOf, TheCallersFloatEnvironmentChangesNoBit) {
  Problem p = full_problem(leaf());
  BuildOptions options;
  options.dtype = Dtype::kF32;
  const MoeLayer layer = build(p, leaf(), options);
  Call call(layer.impl(), 5);
  std::vector<float> x = call.exact;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (i / std::size_t(p.hidden) % 2 == 1) x[i] *= 0x1p-128f;  // every other token: subnormals
  call.set_hidden(x);
  const std::vector<std::byte> plain = call.run();
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040 | 0x6000);  // flush to zero, denormals are zero, round towards zero
  const std::vector<std::byte> flushed = call.run();
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(after & 0xe040u, 0xe040u) << "the caller's environment came back";
  EXPECT_EQ(flushed, plain);
}

// ---- workspace ----

TEST_P(MoeLayerOf, ExactlyTheWorkspaceAskedForSuffices) {
  const MoeLayer layer = build(full_problem(leaf()), leaf());
  constexpr std::size_t kGuard = 256;
  for (std::int64_t tokens : {1, 3, 64, 65}) {
    Call call(layer.impl(), tokens);
    const std::size_t bytes = layer.workspace_bytes(tokens);
    HostBuffer memory(bytes + kGuard);
    std::ranges::fill(memory.bytes().subspan(bytes), std::byte(0xc5));
    std::vector<std::vector<std::byte>> outs;
    for (int pattern : {0xff, 0x00, 0x7f}) {  // what an earlier call may have left there
      outs.push_back(call.run([&](ForwardArgs& a) {
        a.workspace = memory.bytes().first(bytes);
        std::ranges::fill(a.workspace, std::byte(pattern));
      }));
      EXPECT_THAT(memory.bytes().subspan(bytes), testing::Each(std::byte(0xc5)));
    }
    EXPECT_EQ(outs[1], outs[0]);
    EXPECT_EQ(outs[2], outs[0]);
    EXPECT_THAT(usage_error_of([&] {
                  call.run([&](ForwardArgs& a) { a.workspace = memory.bytes().first(bytes - 1); });
                }),
                HasSubstr("workspace_bytes()"));
    EXPECT_EQ(call.run(), outs[0]) << "a good call after the refused one";
  }
}

// One thread has every task, one expert every row, and more than one tile each way: each part of
// the workspace is filled to its end, behind which the canary lies (and, under the address
// sanitizer, a guard of its own).
TEST_P(MoeLayerOf, PartsFilledToTheirEndsKeepTheirBounds) {
  Problem p = full_problem(leaf());
  p.inter = 162, p.shared_inter = 162;
  BuildOptions options;
  options.threads = 1;
  for (ActivationMode mode :
       {ActivationMode::kFormat, ActivationMode::kBf16, ActivationMode::kF32}) {
    options.activations = mode;
    const MoeLayer layer = build(p, leaf(), options);
    Call call(layer.impl(), 66);
    GivenRouting r(layer.problem(), 66);
    std::ranges::fill(r.ids, 4);
    const std::size_t bytes = layer.workspace_bytes(66);
    HostBuffer memory(bytes + 4096);
    std::ranges::fill(memory.bytes(), std::byte(0xc5));
    auto exact = [&](ForwardArgs& a) {
      a.routing = {r.ids.data(), r.weights.data(), nullptr};
      a.workspace = memory.bytes().first(bytes);
    };
    const std::vector<std::byte> first = call.run(exact);
    EXPECT_THAT(memory.bytes().subspan(bytes), testing::Each(std::byte(0xc5)));
    EXPECT_EQ(call.run(exact), first);
  }
}

TEST_P(MoeLayerOf, WorkspaceGrowsWithTokensAcrossTheChunkSwitch) {
  Problem p = full_problem(leaf());
  p.hidden = 32, p.inter = 32, p.shared_inter = 32;
  const MoeLayer layer = build(p, leaf());
  std::size_t before = 0;
  for (std::int64_t t = 0; t<17'000; t += t> 5'450 && t < 5'470 ? 1 : t > 16'380 ? 1 : 7) {
    const std::size_t bytes = layer.workspace_bytes(t);
    ASSERT_GE(bytes, before) << t << " tokens";
    before = bytes;
    if (t > 16'390) break;
  }
  // 16384 rows are 5461 tokens: a chunk narrows behind them, and no bit with it.
  Call below(layer.impl(), 5'461), above(layer.impl(), 5'462);
  std::vector<float> x = above.exact;
  x.resize(below.exact.size());
  below.set_hidden(x);
  const std::vector<std::byte> few = below.run(), many = above.run([&](ForwardArgs&a) {
    a.workspace = a.workspace.first(layer.workspace_bytes(5'462));
  });
  EXPECT_EQ(std::memcmp(few.data(), many.data(), few.size()), 0);
}

TEST_P(MoeLayerOf, AForwardAllocatesNothing) {
  Problem p = full_problem(leaf());
  p.routing.zero_experts = 1;
  const MoeLayer layer = build(p, leaf());
  Call call(layer.impl(), 33);
  const GivenRouting given(layer.problem(), 33);
  std::vector<std::byte> rows(std::size_t(33 * 3 * p.hidden) * 2), shared(call.hidden.size());
  std::vector<float> weights(99);
  std::vector<std::int32_t> index(99);
  std::vector<std::int64_t> counts(7);
  std::vector<float> logits(std::size_t(33 * 7), 0.5f);
  Unfinalised u{rows.data(), weights.data(), index.data(), shared.data()};
  ForwardArgs plain = call.args(), logit = plain, caller = plain, open = plain, none = plain;
  logit.logits = {logits.data(), 33, 7, 7};
  caller.routing = {given.ids.data(), given.weights.data(), nullptr};
  caller.expert_counts = counts.data();
  caller.weights_out = weights.data();
  open.out = nullptr, open.unfinalised = &u;
  none.tokens = 0;
  for (const ForwardArgs* a : {&plain, &logit, &caller, &open, &none}) {
    const std::int64_t before = test::allocation_count();
    layer.forward(*a);
    EXPECT_EQ(test::allocation_count() - before, 0);
  }
  const std::int64_t before = test::allocation_count();
  std::vector<int> control(3);
  EXPECT_EQ(test::allocation_count() - before, 1) << "the counter counts";
}

TEST_P(MoeLayerOf, ALatentForwardAllocatesNothing) {
  Problem p = full_problem(leaf());
  p.latent = 64;
  const MoeLayer layer = build(p, leaf());
  Call call(layer.impl(), 33);
  const ForwardArgs args = call.args();
  const std::int64_t before = test::allocation_count();
  layer.forward(args);
  EXPECT_EQ(test::allocation_count() - before, 0);
}

TEST_P(MoeLayerOf, TheTraceSaysWhatThePlanSaid) {
  const MoeLayer layer = build(full_problem(leaf()), leaf());
  Call call(layer.impl(), 2);
  Trace trace;
  call.run([&](ForwardArgs& a) { a.trace = &trace; });
  EXPECT_EQ(trace.leaf, layer.leaf());
  EXPECT_EQ(trace.leaf, leaf().id.str());
  EXPECT_EQ(trace.shared_leaf, leaf().id.str());
  EXPECT_EQ(trace.isa, test::runnable_tiers().back());
  EXPECT_TRUE(trace.routed_here);
  EXPECT_FALSE(trace.fused_shared);
  EXPECT_THAT(layer.report_json(), HasSubstr("\"winner\":\"" + leaf().id.str() + "\""));
  const GivenRouting given(layer.problem(), 2);
  call.run([&](ForwardArgs& a) {
    a.trace = &trace;
    a.routing = {given.ids.data(), given.weights.data(), nullptr};
  });
  EXPECT_FALSE(trace.routed_here);
}

INSTANTIATE_TEST_SUITE_P(Leaves, MoeLayerOf, testing::ValuesIn(leaves::all_leaves(Device::kCpu)),
                         [](const auto& info) { return std::string(info.param->id.quant); });

// ---- errors ----

struct Mistake {
  std::string text;
  std::function<void(ForwardArgs&)> make;
};

TEST(MoeLayer, EveryMistakeIsOneLineAndAGoodCallFollows) {
  const leaves::Leaf& leaf = *leaves::find_leaf("nvfp4", Device::kCpu).leaf;
  const MoeLayer layer = build(full_problem(leaf), leaf);
  Call call(layer.impl(), 4);
  const std::vector<std::byte> good = call.run();
  GivenRouting given(layer.problem(), 4), high = given, low = given;
  high.ids[7] = 6;
  low.ids[7] = -2;
  const std::vector<float> logits(24, 0.25f);
  std::vector<std::byte> rows(std::size_t(12 * 160 * 2));
  std::vector<float> weights(12);
  std::vector<std::int32_t> index(12);
  Unfinalised no_shared{rows.data(), weights.data(), index.data(), nullptr};
  Unfinalised no_rows{nullptr, weights.data(), index.data(), rows.data()};
  const std::vector<Mistake> mistakes = {
      {"tokens = -1", [](ForwardArgs& a) { a.tokens = -1; }},
      {"stride is 159", [](ForwardArgs& a) { a.hidden_stride = 159; }},
      {"output stride 159", [](ForwardArgs& a) { a.out_stride = 159; }},
      {"hidden states need", [](ForwardArgs& a) { a.hidden = nullptr; }},
      {"exactly one", [](ForwardArgs& a) { a.out = nullptr; }},
      {"exactly one", [&](ForwardArgs& a) { a.unfinalised = &no_rows; }},
      {"rows, weights and index",
       [&](ForwardArgs& a) { a.out = nullptr, a.unfinalised = &no_rows; }},
      {"shared expert", [&](ForwardArgs& a) { a.out = nullptr, a.unfinalised = &no_shared; }},
      {"exactly one kind",
       [&](ForwardArgs& a) {
         a.routing = {given.ids.data(), nullptr, nullptr};
       }},
      {"exactly one kind",
       [&](ForwardArgs& a) {
         a.routing = {given.ids.data(), given.weights.data(), given.weights.data()};
       }},
      {"without the expert ids",
       [&](ForwardArgs& a) {
         a.routing = {nullptr, given.weights.data(), nullptr};
       }},
      {"without the expert ids",
       [&](ForwardArgs& a) {
         a.routing = {nullptr, nullptr, given.weights.data()};
       }},
      {"meaningless",
       [&](ForwardArgs& a) {
         a.routing = {given.ids.data(), given.weights.data(), nullptr};
         a.logits = {logits.data(), 4, 6, 6};
       }},
      {"expert id 6 of token 2, choice 1",
       [&](ForwardArgs& a) {
         a.routing = {high.ids.data(), high.weights.data(), nullptr};
       }},
      {"expert id -2",
       [&](ForwardArgs& a) {
         a.routing = {low.ids.data(), low.weights.data(), nullptr};
       }},
      {"logits",
       [&](ForwardArgs& a) {
         a.logits = {logits.data(), 4, 5, 6};
       }},
      {"multiple of 64", [](ForwardArgs& a) { a.workspace = a.workspace.subspan(8); }},
      {"workspace_bytes()", [](ForwardArgs& a) { a.workspace = {}; }},
      {"split the call", [](ForwardArgs& a) { a.tokens = std::int64_t{1} << 61; }},
  };
  for (const Mistake& m : mistakes) {
    EXPECT_THAT(usage_error_of([&] { call.run(m.make); }), HasSubstr(m.text)) << m.text;
    EXPECT_EQ(call.run(), good) << "after: " << m.text;
  }
}

TEST(MoeLayer, TokenIdsAreCheckedWhereRoutingReadsThem) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  Problem p = test::small_problem(leaf);
  p.routing = make_routing(RoutingMethodType::kHash, 6, 3);
  const MoeLayer layer = build(p, leaf);
  Call call(layer.impl(), 4);
  const std::vector<std::byte> good = call.run();
  EXPECT_THAT(usage_error_of([&] { call.run([](ForwardArgs& a) { a.token_ids = nullptr; }); }),
              HasSubstr("token"));
  call.token_ids[2] = 1 << 20;
  EXPECT_THAT(usage_error_of([&] { call.run(); }), HasSubstr("1048576"));
  call.token_ids[2] = 14;
  EXPECT_EQ(call.run(), good);
}

TEST(MoeLayer, AStaticFormatWithoutScalesAsksForCalibration) {
  const leaves::Leaf& leaf = *leaves::find_leaf("w4a8_mxfp4_fp8", Device::kCpu).leaf;
  layer::LayerOptions options;
  options.leaf = &leaf;
  options.pool = std::make_shared<ThreadPool>(2);
  layer::Layer layer(test::make_weights(test::small_problem(leaf), leaf), options);
  ASSERT_TRUE(layer.needs_calibration());
  Call call(layer, 8);
  EXPECT_THAT(usage_error_of([&] { call.run(); }), HasSubstr("calibrate"));
  layer.calibrate(8, call.exact.data(), nullptr);
  EXPECT_NO_THROW(call.run());
}

// Loading holds one canonical expert per 16 of the layer beside the packed ones, whatever the
// threads.
TEST(MoeLayer, PackingBoundsTheExpertsInFlight) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  std::atomic<int> alive{0}, peak{0};
  checkpoint::LayerWeights weights = test::make_weights(test::small_problem(leaf), leaf);
  weights.expert = [&, source = weights.expert](std::int64_t e) {
    checkpoint::ExpertWeights w = source(e);
    peak = std::max<int>(peak, ++alive);
    w.up.storage = {w.up.storage.get(), [&alive, kept = w.up.storage](const void*) { --alive; }};
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return w;
  };
  layer::LayerOptions options;
  options.leaf = &leaf;
  options.pool = std::make_shared<ThreadPool>(4);
  layer::Layer layer(std::move(weights), options);
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(peak, 1);
}

// Distinct workspaces, one layer, several callers.
TEST(MoeLayer, CallersTakeTurns) {
  const leaves::Leaf& leaf = *leaves::find_leaf("fp8", Device::kCpu).leaf;
  const MoeLayer layer = build(full_problem(leaf), leaf);
  std::vector<std::vector<std::byte>> alone, together(4);
  for (std::uint64_t i = 0; i < 4; ++i) alone.push_back(Call(layer.impl(), 9, i).run());
  std::vector<std::thread> callers;
  for (std::uint64_t i = 0; i < 4; ++i)
    callers.emplace_back([&, i] {
      Call call(layer.impl(), 9, i);
      for (int round = 0; round < 10; ++round) together[i] = call.run();
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(together, alone);
  EXPECT_NE(alone[0], alone[1]);
}

}  // namespace
}  // namespace switchyard
