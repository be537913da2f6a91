// SPDX-License-Identifier: Apache-2.0
// What may happen to a layer between forwards: an expert's weights are replaced, its load is read.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <thread>

#include "switchyard/api/layer_builder.h"
#include "switchyard/resolve/probe.h"
#include "tests/cases/leaf_case.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using checkpoint::ExpertWeights;
using checkpoint::LayerWeights;
using test::Call;
using test::EveryLeaf;
using test::usage_error_of;
using testing::HasSubstr;

constexpr std::int64_t kReplaced = 2;

MoeLayer make_layer(LayerWeights w, BuildOptions o = {}) {
  return test::build_layer(std::move(w), std::move(o), test::runnable_tiers().back());
}

// The layer that updates go into. `api` hands out a layer::Layer that is const.
layer::Layer& live(const MoeLayer& layer) { return const_cast<layer::Layer&>(layer.impl()); }

// Experts that declare their static scales, each its own; FC1's largest belongs to expert 0.
LayerWeights declared(LayerWeights w) {
  if (!formats::is_static(w.activation_quant)) return w;
  w.expert = [source = std::move(w.expert)](std::int64_t e) {
    ExpertWeights x = source(e);
    if (x.gate) x.gate->input_scale = 0.01f / float(1 + e);
    x.up.input_scale = 0.005f / float(1 + e);
    x.down.input_scale = 0.02f + 0.001f * float(e);
    return x;
  };
  return w;
}

LayerWeights weights_of(const leaves::Leaf& leaf, std::uint64_t seed, bool bias = false) {
  Problem p = test::small_problem(leaf);
  p.expert_bias = bias;
  return declared(test::make_weights(p, leaf, seed));
}

// `base` with expert kReplaced of `from`.
LayerWeights with_replaced(LayerWeights base, const LayerWeights& from) {
  base.expert = [old = base.expert, fresh = from.expert](std::int64_t e) {
    return e == kReplaced ? fresh(e) : old(e);
  };
  return base;
}

std::vector<std::byte> output(const MoeLayer& layer) { return Call(layer.impl(), 33).run(); }

class Update : public EveryLeaf {
 protected:
  // Formats with static scales are built from declared ones only: a calibration would see the new
  // weights in one layer and not in the other.
  LayerWeights base() const { return weights_of(leaf(), 1, true); }
  LayerWeights other() const { return weights_of(leaf(), 7, true); }
};

TEST_P(Update, TheBitsAreThoseOfALayerBuiltAnew) {
  const MoeLayer layer = make_layer(base()), fresh = make_layer(with_replaced(base(), other()));
  const std::vector<std::byte> before = output(layer);
  live(layer).update_expert(kReplaced, other().expert(kReplaced));
  EXPECT_NE(output(layer), before);
  EXPECT_EQ(output(layer), output(fresh));
  EXPECT_TRUE(test::judge(layer, 33).ok(test::budgets_of(layer))) << "the oracle reads them too";
  const layer::ExpertBank &a = layer.impl().routed(), &b = fresh.impl().routed();
  EXPECT_TRUE(std::ranges::equal(a.packed.bytes(), b.packed.bytes()));
  EXPECT_EQ(a.scales.fc2, b.scales.fc2);
  live(layer).update_expert(kReplaced, base().expert(kReplaced));
  EXPECT_EQ(output(layer), before) << "and back";
}

TEST_P(Update, ACopyHasTheBitsAndLivesByItself) {
  const MoeLayer layer = make_layer(base());
  live(layer).update_expert(kReplaced, other().expert(kReplaced));
  const MoeLayer copy = LayerBuilder::copy(layer);
  const std::vector<std::byte> replaced = output(layer);
  EXPECT_NE(copy.impl().routed().packed.data(), layer.impl().routed().packed.data());
  EXPECT_EQ(output(copy), replaced);
  EXPECT_EQ(copy.leaf(), layer.leaf());
  EXPECT_EQ(copy.report_json(), layer.report_json());
  EXPECT_EQ(copy.expert_load().forwards, 1) << "counted apart from the first layer's";
  live(layer).update_expert(kReplaced, base().expert(kReplaced));
  EXPECT_NE(output(layer), replaced);
  EXPECT_EQ(output(copy), replaced);
  EXPECT_TRUE(test::judge(copy, 33).ok(test::budgets_of(copy))) << "its oracle stays too";
  EXPECT_TRUE(test::judge(layer, 33).ok(test::budgets_of(layer)));
}

// Beside the plain layer: what else may hold routed experts.
struct Kind {
  std::string name;
  std::function<void(Problem&)> change;
  bool fused = false;
};
const Kind kKinds[] = {
    {"latent", [](Problem& p) { p.latent = 70; }},
    {"zero experts", [](Problem& p) { p.routing.zero_experts = 2; }},
    {"a shared expert of its own", [](Problem& p) { p.num_shared = 1, p.shared_inter = 64; }},
    {"a fused shared expert", [](Problem& p) { p.num_shared = 1, p.shared_inter = p.inter; }, true},
};

TEST_P(Update, EveryKindOfLayerTakesIt) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    Problem p = test::small_problem(leaf());
    kind.change(p);
    BuildOptions o;
    o.fuse_shared = kind.fused;
    auto weights = [&](std::uint64_t seed) {
      return declared(test::make_weights(p, leaf(), seed));
    };
    const MoeLayer layer = make_layer(weights(1), o);
    const MoeLayer fresh = make_layer(with_replaced(weights(1), weights(7)), o);
    const bool fuses = kind.fused && !formats::is_static(leaf().activation);
    EXPECT_EQ(layer.impl().routed().shape.unscaled_choices, fuses ? 1 : 0);
    const std::vector<std::byte> before = output(layer);
    live(layer).update_expert(kReplaced, weights(7).expert(kReplaced));
    EXPECT_NE(output(layer), before);
    EXPECT_EQ(output(layer), output(fresh));
    EXPECT_TRUE(test::judge(layer, 33).ok(test::budgets_of(layer))) << "the oracle reads them too";
    EXPECT_THAT(usage_error_of([&] { live(layer).update_expert(6, weights(7).expert(0)); }),
                HasSubstr("expert 6 is outside 0..5"))
        << "a zero expert or a shared one has no weights to replace";
    EXPECT_EQ(output(layer), output(fresh));
  }
}

TEST_P(Update, OtherExpertsKeepTheirBits) {
  const MoeLayer layer = make_layer(base());
  Call call(layer.impl(), 12);
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 36; ++i) ids.push_back(i % 5 < kReplaced ? i % 5 : i % 5 + 1);
  const std::vector<float> weights(36, 0.5f);
  auto run = [&] {
    return call.run([&](ForwardArgs& a) { a.routing = {ids.data(), weights.data(), nullptr}; });
  };
  const std::vector<std::byte> before = run();
  live(layer).update_expert(kReplaced, other().expert(kReplaced));
  EXPECT_EQ(run(), before);
  ids[7] = kReplaced;
  EXPECT_NE(run(), before) << "and its own bits change";
}

TEST_P(Update, WhatDoesNotFitIsNamedAndChangesNothing) {
  const MoeLayer layer = make_layer(base());
  const std::vector<std::byte> good = output(layer);
  auto refused = [&](std::int64_t e, auto change) {
    ExpertWeights w = other().expert(kReplaced);
    change(w);
    return usage_error_of([&] { live(layer).update_expert(e, std::move(w)); });
  };
  auto none = [](ExpertWeights&) {};
  EXPECT_THAT(refused(6, none), HasSubstr("expert 6 is outside 0..5"));
  EXPECT_THAT(refused(-1, none), HasSubstr("expert -1 is outside 0..5"));
  EXPECT_THAT(refused(1,
                      [](ExpertWeights& w) {
                        std::swap(w.up, w.down);
                        std::swap(w.up.input_scale, w.down.input_scale);
                      }),
              HasSubstr("expert 1: up projection is [160, 96]"));
  EXPECT_THAT(refused(1, [](ExpertWeights& w) { w.gate.reset(); }), HasSubstr("lacks a gate"));
  EXPECT_THAT(refused(1, [](ExpertWeights& w) { w.up_bias.pop_back(); }), HasSubstr("95"));
  EXPECT_THAT(refused(1,
                      [](ExpertWeights& w) {
                        w.down.layout.element = w.down.layout.element == formats::Element::kFp16
                                                    ? formats::Element::kBf16
                                                    : formats::Element::kFp16;
                        w.down.layout.scale = formats::ScaleType::kNone;
                        w.down.layout.global_scale = false;
                        w.down.scales = {};
                        w.down.global_scale = 1;
                        w.down.codes = {};
                      }),
              HasSubstr("down projection"));
  EXPECT_EQ(output(layer), good);
  if (formats::is_static(leaf().activation)) {
    EXPECT_THAT(refused(1, [](ExpertWeights& w) { w.up.input_scale = 0.5f; }),
                HasSubstr("FC1 input scale 0.5 exceeds the layer's"));
    EXPECT_THAT(refused(1, [](ExpertWeights& w) { w.down.input_scale.reset(); }),
                HasSubstr("for some of its projections"));
    EXPECT_EQ(output(layer), good);
  }
  live(layer).update_expert(1, other().expert(1));
  EXPECT_NE(output(layer), good) << "a good update follows";
}

// Activations are divided by these scales.
TEST_P(Update, AStaticScaleIsFiniteAndPositive) {
  if (!formats::is_static(leaf().activation)) return;
  const MoeLayer layer = make_layer(base());
  const std::vector<std::byte> good = output(layer);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (float bad : {std::nanf(""), kInf, -kInf, 0.0f, -0.0f, -1e-3f}) {
    auto refused = [&](auto scale_of) {
      ExpertWeights w = other().expert(kReplaced);
      *scale_of(w) = bad;
      return usage_error_of([&] { live(layer).update_expert(kReplaced, std::move(w)); });
    };
    EXPECT_THAT(refused([](ExpertWeights& w) { return &w.gate->input_scale; }),
                HasSubstr("update_expert: expert 2: gate projection: the input scale is"));
    EXPECT_THAT(refused([](ExpertWeights& w) { return &w.up.input_scale; }),
                HasSubstr("update_expert: expert 2: up projection: the input scale is"));
    EXPECT_THAT(refused([](ExpertWeights& w) { return &w.down.input_scale; }),
                HasSubstr("update_expert: expert 2: down projection: the input scale is"));
    EXPECT_EQ(output(layer), good) << bad;
  }
  live(layer).update_expert(kReplaced, other().expert(kReplaced));
  EXPECT_NE(output(layer), good) << "a good update follows";
}

// An update waits for whoever reads, a forward for the update that waits: each is held back until
// the reader goes, however long that takes.
TEST(UpdateGate, HoldsBackTheUpdateAndTheForwardsBehindIt) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  const MoeLayer layer = make_layer(weights_of(leaf, 1));
  const MoeLayer fresh = make_layer(with_replaced(weights_of(leaf, 1), weights_of(leaf, 7)));
  const std::span<const std::byte> packed = layer.impl().routed().packed.bytes();
  const std::vector<std::byte> old(packed.begin(), packed.end());
  std::atomic<bool> updated{false}, forwarded{false};
  std::vector<std::byte> got;
  std::thread updater, caller;
  constexpr std::chrono::milliseconds kLong{60};  // a tiny layer's update or forward takes one
  {
    const auto reading = layer.impl().reading();
    updater = std::thread([&] {
      live(layer).update_expert(kReplaced, weights_of(leaf, 7).expert(kReplaced));
      updated = true;
    });
    std::this_thread::sleep_for(kLong);
    EXPECT_TRUE(std::ranges::equal(packed, old)) << "weights changed under a reader";
    caller = std::thread([&] {
      got = output(layer);
      forwarded = true;
    });
    std::this_thread::sleep_for(kLong);
    EXPECT_FALSE(updated);
    EXPECT_FALSE(forwarded) << "a stream of forwards would starve the update";
  }
  updater.join();
  caller.join();
  EXPECT_EQ(got, output(fresh)) << "the forward that came behind sees the new weights";
  EXPECT_FALSE(std::ranges::equal(packed, old));
}

// Forwards beside updates give the old bits or the new ones, never a mixture.
TEST_P(Update, AForwardNeverSeesHalfOfOne) {
  const MoeLayer layer = make_layer(base()), fresh = make_layer(with_replaced(base(), other()));
  Call one(layer.impl(), 4), two(fresh.impl(), 4);
  const std::set<std::vector<std::byte>> lawful = {one.run(), two.run()};
  ASSERT_EQ(lawful.size(), 2u);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, runs{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i)
    callers.emplace_back([&] {
      Call call(layer.impl(), 4);
      while (!stop) {
        wrong += lawful.count(call.run()) == 0;
        ++runs;
      }
    });
  const ExpertWeights old = base().expert(kReplaced), next = other().expert(kReplaced);
  // Every update has forwards in front of it and behind it, so that some meet.
  for (int i = 0; i < 40; ++i) {
    const int before = runs;
    live(layer).update_expert(kReplaced, i % 2 == 0 ? next : old);
    while (runs == before) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(output(layer), output(make_layer(base())));
}

// The leaf and the oracle of one verdict see the same weights, whatever is replaced meanwhile: the
// update comes when the oracle, behind the leaf, asks for its first expert.
TEST(UpdateBesideJudge, AVerdictNeverMixesOldAndNewWeights) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  std::atomic<bool> armed{false}, begun{false}, updated{false};
  std::function<void()> update;
  std::thread updater;
  int met = 0;
  LayerWeights w = weights_of(leaf, 1);
  w.expert = [&, source = w.expert](std::int64_t e) {
    if (armed.exchange(false)) {
      updater = std::thread([&] {
        begun = true;
        update();
        updated = true;
      });
      while (!begun) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(60));  // one takes about a millisecond
      EXPECT_FALSE(updated) << "weights changed under a verdict";
      ++met;
    }
    return source(e);
  };
  const MoeLayer layer = make_layer(w);
  const LayerWeights fresh = with_replaced(weights_of(leaf, 1), weights_of(leaf, 7));
  for (int i = 0; i < 2; ++i) {
    const LayerWeights next = i == 0 ? fresh : weights_of(leaf, 1);
    update = [&] { live(layer).update_expert(kReplaced, next.expert(kReplaced)); };
    begun = updated = false;
    armed = true;
    EXPECT_TRUE(test::judge(layer, 33).ok(test::budgets_of(layer))) << "verdict " << i;
    ASSERT_EQ(met, i + 1) << "an update meets each verdict";
    updater.join();
    EXPECT_TRUE(updated);
    EXPECT_EQ(output(layer), output(make_layer(next)));
  }
}

INSTANTIATE_TEST_SUITE_P(Leaves, Update, test::every_cpu_leaf(), test::leaf_name);

// An expert without scales keeps the layer's, which a calibration on the old weights set.
TEST(UpdateScales, OfACalibratedLayerStay) {
  const leaves::Leaf& leaf = *leaves::find_leaf("w4a8_mxfp4_fp8", Device::kCpu).leaf;
  const MoeLayer layer = make_layer(test::make_weights(test::small_problem(leaf), leaf));
  const layer::StaticScales before = layer.impl().routed().scales;
  live(layer).update_expert(kReplaced,
                            test::make_weights(test::small_problem(leaf), leaf, 7).expert(2));
  EXPECT_EQ(layer.impl().routed().scales.fc1, before.fc1);
  EXPECT_EQ(layer.impl().routed().scales.fc2, before.fc2);
  EXPECT_TRUE(test::judge(layer, 33).ok(test::budgets_of(layer)));
}

// The newest weights of replaced experts stay in memory: within the limit of the packed ones.
TEST(UpdateMemory, CopiesBeyondTheLimitAreRefused) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  const MoeLayer probe = make_layer(weights_of(leaf, 1));
  const std::int64_t one = probe.expert_stored_bytes();
  Environment env = resolve::environment();
  env.memory_bytes = (probe.packed_bytes() + one + one / 2) / 9 * 10;  // room for a copy and a half
  const resolve::ScopedEnvironment small(env);
  const MoeLayer layer = make_layer(weights_of(leaf, 1));
  const LayerWeights other = weights_of(leaf, 7);
  live(layer).update_expert(kReplaced, other.expert(kReplaced));
  const std::vector<std::byte> good = output(layer);
  EXPECT_EQ(good, output(make_layer(with_replaced(weights_of(leaf, 1), other))));
  EXPECT_THAT(usage_error_of([&] { live(layer).update_expert(3, other.expert(3)); }),
              HasSubstr("may be used; build the layer anew"));
  EXPECT_EQ(output(layer), good);
  live(layer).update_expert(kReplaced, weights_of(leaf, 1).expert(kReplaced));
  EXPECT_EQ(output(layer), output(probe)) << "the newest takes the place of the one before";
}

// ---- the public way in ----

struct OneExpert {
  explicit OneExpert(Dtype dtype) : dtype(dtype) {
    fill(gate, 96 * 160, 1), fill(up, 96 * 160, 2), fill(down, 160 * 96, 3);
  }
  void fill(std::vector<std::byte>& v, std::int64_t size, std::uint64_t seed) const {
    const std::vector<float> values = test::weight_values(1, size, seed);
    v.resize(std::size_t(size) * size_of(dtype));
    for (std::int64_t i = 0; i < size; ++i)
      store_element(dtype, v.data(), i, bf16_to_float(float_to_bf16(8 * values[std::size_t(i)])));
  }
  ExpertArrays arrays() const {
    ExpertArrays a;
    a.dtype = dtype;
    a.gate = gate.data(), a.up = up.data(), a.down = down.data();
    return a;
  }
  Dtype dtype;
  std::vector<std::byte> gate, up, down;
};

TEST(UpdateApi, ArraysAreConvertedToTheLayersFormatAndNotKept) {
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu)) {
    MoeLayer one = make_layer(weights_of(*leaf, 1)), two = make_layer(weights_of(*leaf, 1));
    const std::vector<std::byte> before = output(one);
    {
      const OneExpert bf16(Dtype::kBf16), f32(Dtype::kF32);
      one.update_expert(kReplaced, bf16.arrays());
      two.update_expert(kReplaced, f32.arrays());
    }
    EXPECT_NE(output(one), before) << leaf->id.str();
    EXPECT_EQ(output(two), output(one)) << "fp32 arrays of the same values";
    EXPECT_TRUE(test::judge(one, 33).ok(test::budgets_of(one))) << leaf->id.str();
  }
}

TEST(UpdateApi, MistakesAreNamed) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  MoeLayer layer = make_layer(weights_of(leaf, 1));
  const std::vector<std::byte> good = output(layer);
  const OneExpert bf16(Dtype::kBf16), fp16(Dtype::kFp16);
  auto refused = [&](ExpertArrays a) {
    return usage_error_of([&] { layer.update_expert(kReplaced, a); });
  };
  ExpertArrays a = bf16.arrays();
  a.gate = nullptr;
  EXPECT_THAT(refused(a), HasSubstr("need up and down and gate"));
  EXPECT_THAT(refused(fp16.arrays()), HasSubstr("arrays are fp16, this layer's weights are bf16"));
  a = bf16.arrays();
  a.fc1_input_scale = 1;
  EXPECT_THAT(refused(a), HasSubstr("both or neither"));
  const std::vector<float> bias(96);
  a = bf16.arrays();
  a.up_bias = bias.data();
  EXPECT_THAT(refused(a), HasSubstr("built without biases"));
  EXPECT_EQ(output(layer), good);
  layer.update_expert(kReplaced, bf16.arrays());
  EXPECT_NE(output(layer), good);
}

// ---- load ----

TEST(ExpertLoadCounts, SumToTheChoicesOfEveryForwardThatEndedWell) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  Problem p = test::small_problem(leaf);
  p.routing.zero_experts = 2;
  MoeLayer layer = make_layer(test::make_weights(p, leaf));
  EXPECT_EQ(layer.expert_load(), (ExpertLoad{std::vector<std::int64_t>(8), 0, 0, 0}));
  Call call(layer.impl(), 4);
  const std::vector<std::int32_t> ids = {0, 3, 5, 3, -1, 7, 6, 3, -1, -1, -1, -1};
  const std::vector<float> weights(12, 0.5f);
  auto given = [&](ForwardArgs& a) { a.routing = {ids.data(), weights.data(), nullptr}; };
  call.run(given);
  const ExpertLoad once{{1, 0, 0, 3, 0, 1, 1, 1}, 5, 4, 1};
  EXPECT_EQ(layer.expert_load(), once);
  EXPECT_THROW(call.run([&](ForwardArgs& a) {
    given(a);
    a.workspace = {};
  }),
               UsageError);
  EXPECT_EQ(layer.expert_load(), once) << "a refused call is not counted";
  call.run([&](ForwardArgs& a) { a.tokens = 0; });
  EXPECT_EQ(layer.expert_load(), once) << "nor is an empty one";
  call.run(given);
  EXPECT_EQ(layer.take_expert_load(), (ExpertLoad{{2, 0, 0, 6, 0, 2, 2, 2}, 10, 8, 2}));
  EXPECT_EQ(layer.expert_load().tokens, 0);
  std::vector<std::int64_t> counts(8);
  call.run([&](ForwardArgs& a) { a.expert_counts = counts.data(); });
  EXPECT_EQ(layer.expert_load().choices, counts) << "the router's own choices";
}

TEST(ExpertLoadCounts, FusedSharedExpertsAreNoChoices) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  Problem p = test::small_problem(leaf);
  p.num_shared = 1, p.shared_inter = p.inter;
  BuildOptions o;
  o.fuse_shared = true;
  const MoeLayer layer = make_layer(test::make_weights(p, leaf), o);
  ASSERT_EQ(layer.impl().routed().shape.experts, 7);
  Call(layer.impl(), 5).run();
  const ExpertLoad load = layer.expert_load();
  EXPECT_EQ(load.choices.size(), 6u);
  std::int64_t sum = 0;
  for (std::int64_t n : load.choices) sum += n;
  EXPECT_EQ(sum, 15);
}

// The bank holds experts 6 and 7, whose ids no caller may give and no count has room for.
TEST(ExpertLoadCounts, TheIdOfAFusedSharedExpertIsRefused) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  Problem p = test::small_problem(leaf);
  p.num_shared = 2, p.inter = 128, p.shared_inter = 256;
  BuildOptions o;
  o.fuse_shared = true;
  const MoeLayer layer = make_layer(test::make_weights(p, leaf), o);
  ASSERT_EQ(layer.impl().routed().shape.experts, 8);
  Call call(layer.impl(), 2);
  std::vector<std::int32_t> ids = {0, 3, 5, 1, -1, 2};
  const std::vector<float> weights(6, 0.5f);
  std::vector<std::int64_t> counts(8, 40);
  auto run = [&] {
    return call.run([&](ForwardArgs& a) {
      a.routing = {ids.data(), weights.data(), nullptr};
      a.expert_counts = counts.data() + 1;  // six experts, and a canary on either side
    });
  };
  const std::vector<std::byte> good = run();
  const std::vector<std::int64_t> once = {40, 41, 41, 41, 41, 40, 41, 40};
  EXPECT_EQ(counts, once);
  for (std::int32_t id : {6, 7, -2}) {
    ids[4] = id;
    EXPECT_THAT(usage_error_of(run), HasSubstr("of token 1, choice 1 is outside -1..5"));
    EXPECT_EQ(counts, once) << id;
  }
  ids[4] = -1;
  EXPECT_EQ(run(), good);
  EXPECT_EQ(layer.expert_load(), (ExpertLoad{{2, 2, 2, 2, 0, 2}, 2, 4, 2}));
}

TEST(ExpertLoadCounts, SeveralCallersLoseNothing) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  MoeLayer layer = make_layer(test::make_weights(test::small_problem(leaf), leaf));
  std::vector<std::thread> callers;
  std::atomic<bool> stop{false};
  std::int64_t taken = 0;
  for (std::uint64_t i = 0; i < 3; ++i)
    callers.emplace_back([&, i] {
      Call call(layer.impl(), 3, i);
      for (int n = 0; n < 20; ++n) call.run();
    });
  std::thread reader([&] {
    while (!stop) {
      const ExpertLoad part = layer.take_expert_load();
      std::int64_t sum = part.skipped;
      for (std::int64_t n : part.choices) sum += n;
      EXPECT_EQ(sum, part.tokens * 3) << "whole forwards only";
      EXPECT_EQ(part.tokens, part.forwards * 3);
      taken += part.forwards;
      std::this_thread::yield();
    }
  });
  for (std::thread& t : callers) t.join();
  stop = true;
  reader.join();
  EXPECT_EQ(taken + layer.expert_load().forwards, 60);
}

TEST(Plan, IsWhatTheTraceSays) {
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu)) {
    const MoeLayer layer = make_layer(test::make_weights(test::small_problem(*leaf), *leaf));
    Trace trace;
    Call(layer.impl(), 1).run([&](ForwardArgs& a) { a.trace = &trace; });
    EXPECT_EQ(LayerBuilder::plan(layer).leaf, trace.leaf);
    EXPECT_EQ(LayerBuilder::plan(layer).deployment.device, Device::kCpu);
  }
}

}  // namespace
}  // namespace switchyard
