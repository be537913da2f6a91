// SPDX-License-Identifier: Apache-2.0
// Layers whose routed experts work in a latent width, and layers with zero experts: against the
// oracle, against plain loops, and what they promise beside their numbers.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "switchyard/api/checkpoint.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/api/machine.h"
#include "tests/cases/leaf_case.h"
#include "tests/support/naive_moe.h"
#include "tests/support/usage_error.h"
#include "tests/support/written_checkpoint.h"

namespace switchyard {
namespace {

using test::Call;
using test::EveryLeaf;
using test::LeafCase;
using test::rel;
using test::usage_error_of;
using testing::HasSubstr;

LeafCase latent_case(const leaves::Leaf& leaf, bool shared = true) {
  LeafCase c{test::small_problem(leaf), {}, 9};
  c.problem.latent = 70;
  if (!shared) return c;
  c.problem.num_shared = 1, c.problem.shared_inter = 64, c.problem.shared_gate = true;
  return c;
}

// As large as the mean square that it joins: a norm takes back what a factor does to a larger one.
constexpr float kLoudEps = 1;

LeafCase zero_case(const leaves::Leaf& leaf) {
  LeafCase c{test::small_problem(leaf), {}, 33};
  c.problem.routing = make_routing(RoutingMethodType::kDefault, 6, 4);
  c.problem.routing.zero_experts = 5;
  return c;
}

MoeLayer make_layer(checkpoint::LayerWeights w, BuildOptions o = {}) {
  return test::build_layer(std::move(w), std::move(o), test::runnable_tiers().back());
}

std::vector<double> naive(const checkpoint::LayerWeights& w, const Call& call) {
  return test::naive_moe(w, call.exact, {});
}

// What the layer gives in f32 mode, where no quantiser stands between it and plain loops.
double distance_to_naive(const checkpoint::LayerWeights& layer,
                         const checkpoint::LayerWeights& by) {
  BuildOptions exact;
  exact.activations = ActivationMode::kF32;
  const MoeLayer built = make_layer(layer, exact);
  Call call(built.impl(), 9);
  call.run();
  return rel(call.values(), naive(by, call));
}

class Latent : public EveryLeaf {};
class Zero : public EveryLeaf {};

TEST_P(Latent, EveryModeAndDtypeKeepsItsBudget) {
  for (bool shared : {false, true})
    for (ActivationMode mode :
         {ActivationMode::kFormat, ActivationMode::kBf16, ActivationMode::kF32})
      for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kF32}) {
        LeafCase c = latent_case(leaf(), shared);
        c.options.activations = mode;
        c.options.dtype = dtype;
        if (mode == ActivationMode::kF32 && dtype != Dtype::kF32) continue;  // its output rounds
        expect_close(c, std::string(to_string(mode)) + " " + std::string(to_string(dtype)));
      }
  for (CpuIsa isa : test::runnable_tiers()) expect_close_on(isa, latent_case(leaf()), "every tier");
}

TEST_P(Latent, PlainLoopsAgreeAndEachStageShows) {
  for (bool normed : {true, false}) {
    checkpoint::LayerWeights w = test::make_weights(latent_case(leaf()).problem, leaf());
    if (!normed) w.latent->norm.clear();
    w.latent->norm_eps = normed ? kLoudEps : 0;
    EXPECT_LE(distance_to_naive(w, w), 1e-5);
    checkpoint::LayerWeights other = w;
    other.latent->norm = normed ? std::vector<float>() : std::vector<float>(70, 1.0f);
    EXPECT_GT(distance_to_naive(w, other), 1e-2) << "the norm";
    other = w;
    std::swap(other.latent->down.codes, other.latent->up.codes);
    EXPECT_GT(distance_to_naive(w, other), 1e-2) << "the projections swapped";
    other = w;
    other.shared.reset();
    EXPECT_GT(distance_to_naive(w, other), 1e-2) << "the shared expert";
    other = w;
    other.problem.routed_scaling_factor *= 2;
    EXPECT_GT(distance_to_naive(w, other), 1e-2) << "the factor";
    if (!normed) continue;
    other = w;
    other.latent->norm_eps *= 2;
    EXPECT_GT(distance_to_naive(w, other), 1e-2) << "the norm's epsilon";
  }
}

// The factor is applied in latent space: in front of the norm, which all but removes it.
TEST_P(Latent, TheFactorStandsInFrontOfTheNorm) {
  checkpoint::LayerWeights w = test::make_weights(latent_case(leaf(), false).problem, leaf());
  checkpoint::LayerWeights doubled = w;
  doubled.problem.routed_scaling_factor *= 2;
  const MoeLayer one = make_layer(w), two = make_layer(doubled);
  Call a(one.impl(), 9), b(two.impl(), 9);
  a.run(), b.run();
  EXPECT_LE(rel(b.values(), a.values()), 5e-3);
  w.latent->norm.clear(), doubled.latent->norm.clear();
  const MoeLayer three = make_layer(w), four = make_layer(doubled);
  Call c(three.impl(), 9), d(four.impl(), 9);
  c.run(), d.run();
  EXPECT_NEAR(rel(d.values(), c.values()), 1, 1e-2);
}

TEST_P(Latent, BitsDoNotDependOnBatchOrThreads) {
  const checkpoint::LayerWeights w = test::make_weights(latent_case(leaf()).problem, leaf());
  std::vector<std::byte> first;
  for (int threads : {1, 2, 3}) {
    BuildOptions o;
    o.threads = threads;
    const MoeLayer layer = make_layer(w, o);
    Call many(layer.impl(), 67), one(layer.impl(), 1);
    const std::vector<std::byte> all = many.run();
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
    for (std::int64_t t : {0, 63, 66}) {
      one.set_hidden({many.exact.begin() + t * 160, many.exact.begin() + (t + 1) * 160});
      const std::vector<std::byte> alone = one.run();
      EXPECT_TRUE(
          std::equal(alone.begin(), alone.end(), all.begin() + t * std::int64_t(alone.size())));
    }
  }
}

TEST_P(Latent, ACopyHasProjectionsAndSharedExpertOfItsOwn) {
  std::vector<std::byte> first;
  std::optional<MoeLayer> copy;
  {
    const MoeLayer layer = make_layer(test::make_weights(latent_case(leaf()).problem, leaf()));
    first = Call(layer.impl(), 9).run();
    copy.emplace(LayerBuilder::copy(layer));
    EXPECT_NE(copy->impl().latent()->up.data(), layer.impl().latent()->up.data());
    EXPECT_NE(copy->impl().shared()->packed.data(), layer.impl().shared()->packed.data());
  }
  EXPECT_EQ(Call(copy->impl(), 9).run(), first) << "when the first layer is gone, too";
}

TEST_P(Latent, TheWorkspaceCountsTheProjections) {
  const MoeLayer layer = make_layer(test::make_weights(latent_case(leaf()).problem, leaf()));
  for (std::int64_t tokens : {1, 65}) {
    Call call(layer.impl(), tokens);
    const std::vector<std::byte> good = call.run();
    const std::size_t bytes = layer.workspace_bytes(tokens);
    HostBuffer memory(bytes + 256);
    std::ranges::fill(memory.bytes(), std::byte(0xc5));
    EXPECT_EQ(call.run([&](ForwardArgs& a) { a.workspace = memory.bytes().first(bytes); }), good);
    EXPECT_THAT(memory.bytes().subspan(bytes), testing::Each(std::byte(0xc5)));
    EXPECT_THAT(usage_error_of([&] {
                  call.run([&](ForwardArgs& a) { a.workspace = memory.bytes().first(bytes - 1); });
                }),
                HasSubstr("workspace_bytes()"));
    EXPECT_EQ(call.run(), good);
  }
}

TEST_P(Latent, StridesAndSkippedChoices) {
  const MoeLayer layer = make_layer(test::make_weights(latent_case(leaf(), false).problem, leaf()));
  Call call(layer.impl(), 5);
  const std::vector<std::int32_t> none(15, -1);
  const std::vector<float> weights(15, 0.5f);
  const std::vector<std::byte> skipped = call.run([&](ForwardArgs& a) {
    a.routing = {none.data(), weights.data(), nullptr};
  });
  EXPECT_THAT(skipped, testing::Each(std::byte(0))) << "no choice, no shared expert: zero";
  const std::vector<std::byte> dense = call.run();
  std::vector<std::byte> wide(std::size_t(5 * 176 * 2), std::byte(0xee));
  call.run([&](ForwardArgs& a) {
    a.out = wide.data();
    a.out_stride = 176;
  });
  for (std::size_t t = 0; t < 5; ++t) {
    EXPECT_TRUE(std::equal(dense.begin() + std::ptrdiff_t(t * 320),
                           dense.begin() + std::ptrdiff_t((t + 1) * 320),
                           wide.begin() + std::ptrdiff_t(t * 352)));
    EXPECT_EQ(wide[t * 352 + 320], std::byte(0xee));
  }
}

TEST_P(Latent, WhatItCannotServeIsNamed) {
  const leaves::Leaf& l = leaf();
  const checkpoint::LayerWeights w = test::make_weights(latent_case(l).problem, l);
  const MoeLayer layer = make_layer(w);
  Call call(layer.impl(), 2);
  const std::vector<std::byte> good = call.run();
  Unfinalised u;
  EXPECT_THAT(usage_error_of([&] {
                call.run([&](ForwardArgs& a) {
                  u = {call.out.data(), reinterpret_cast<float*>(call.out.data()),
                       reinterpret_cast<std::int32_t*>(call.out.data()), call.out.data()};
                  a.out = nullptr, a.unfinalised = &u;
                });
              }),
              HasSubstr("latent layer cannot be left unfinalised"));
  EXPECT_EQ(call.run(), good);
  auto refused = [&](auto change) {
    checkpoint::LayerWeights bad = w;
    change(bad);
    return usage_error_of([&] { make_layer(bad); });
  };
  EXPECT_THAT(refused([](auto& b) { b.latent.reset(); }), HasSubstr("no latent projections"));
  EXPECT_THAT(refused([](auto& b) { b.problem.latent = 0; }), HasSubstr("latent width of 0"));
  EXPECT_THAT(refused([](auto& b) { b.latent->norm.pop_back(); }), HasSubstr("holds 69 weights"));
  EXPECT_THAT(refused([](auto& b) { b.latent->norm_eps = -1; }), HasSubstr("epsilon is -1"));
  EXPECT_THAT(refused([](auto& b) { std::swap(b.latent->up, b.latent->down); }),
              HasSubstr("down-projection is [160, 70]"));
}

TEST_P(Latent, SharedExpertsAreNotFusedIntoLatentOnes) {
  LeafCase c = latent_case(leaf());
  c.problem.shared_gate = false;
  c.problem.shared_inter = c.problem.inter;
  c.options.fuse_shared = true;
  const MoeLayer layer = EveryLeaf::build(c);
  EXPECT_NE(layer.impl().shared(), nullptr);
  EXPECT_THAT(layer.notices(), testing::Contains(HasSubstr("latent width of 70")));
  EXPECT_TRUE(test::judge(layer, 9).ok(test::budgets_of(layer)));
}

TEST_P(Zero, TheOracleAndPlainLoopsAgree) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    LeafCase c = zero_case(leaf());
    c.options.dtype = dtype;
    expect_close(c, "zero experts");
  }
  const checkpoint::LayerWeights w = test::make_weights(zero_case(leaf()).problem, leaf());
  EXPECT_LE(distance_to_naive(w, w), 1e-5);
  checkpoint::LayerWeights other = w;
  other.problem.routed_scaling_factor *= 2;
  EXPECT_GT(distance_to_naive(w, other), 1e-2);
}

// weight * x, inside the factor: a token whose choices are all zero experts is a scaled copy.
TEST_P(Zero, AZeroExpertReturnsTheWeighedTokenInsideTheFactor) {
  BuildOptions o;
  o.dtype = Dtype::kF32;
  const MoeLayer layer = make_layer(test::make_weights(zero_case(leaf()).problem, leaf()), o);
  Call call(layer.impl(), 3);
  const std::vector<std::int32_t> ids = {6, 7, 10, -1, 8, -1, -1, 9, 2, 6, 0, 1};
  std::vector<float> weights;
  for (std::size_t i = 0; i < ids.size(); ++i) weights.push_back(0.25f * float(1 + i % 3));
  call.run([&](ForwardArgs& a) { a.routing = {ids.data(), weights.data(), nullptr}; });
  const std::vector<double> y = call.values();
  const double factor = layer.problem().routed_scaling_factor;
  const double sums[2] = {0.25 + 0.5 + 0.75, 0.5 + 0.5};
  for (std::size_t t = 0; t < 2; ++t)
    for (std::size_t i = 0; i < 160; ++i) {
      const double want = sums[t] * factor * double(call.exact[t * 160 + i]);
      EXPECT_NEAR(y[t * 160 + i], want, 1e-6 * std::abs(want) + 1e-12) << t << ", " << i;
    }
}

TEST_P(Zero, ConversionKeepsThem) {
  if (leaf().id.quant == "none") return;
  Problem p = zero_case(leaf()).problem;
  p.format = "none";
  const leaves::Leaf& plain = *leaves::find_leaf("none", Device::kCpu).leaf;
  BuildOptions o;
  o.format = std::string(leaf().id.quant);
  const MoeLayer layer = make_layer(test::make_weights(p, plain), o);
  EXPECT_EQ(layer.problem().routing.zero_experts, 5);
  EXPECT_TRUE(test::judge(layer, 33).ok(test::budgets_of(layer)));
}

TEST(LatentAndZero, AreRefusedTogetherByTheGateAndByItsReason) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  LeafCase c = zero_case(leaf);
  c.problem.latent = 64;
  try {
    make_layer(test::make_weights(c.problem, leaf));
    FAIL() << "a layer was built";
  } catch (const CannotServe& e) {
    EXPECT_THAT(e.what(), HasSubstr("routing_unsupported"));
    EXPECT_THAT(e.what(), HasSubstr("5 zero experts and a latent width of 64"));
  }
}

// What explain refuses is what a build refuses, in the same words.
TEST(QuantisedProjections, AreRefusedByExplainAndByTheBuild) {
  const auto spec =
      std::ranges::find(test::written_specs(), "kimi_k3_mxfp4", &test::WrittenSpec::name);
  ASSERT_NE(spec, test::written_specs().end());
  test::WrittenCheckpoint written = test::make_checkpoint(*spec);
  auto explained = [&](std::string& text) {
    test::TempDir dir;
    written.write(dir);
    ExplainOptions ask;
    ask.checkpoint = dir.path();
    ask.deployment.env = environment();
    const Explanation e = explain(ask);
    text = e.text;
    try {
      MoeLayer::from_checkpoint(Checkpoint::open(dir.path()), spec->layer, {});
      EXPECT_TRUE(e.served) << text;
    } catch (const CannotServe& no) {
      EXPECT_FALSE(e.served) << no.what();
      EXPECT_THAT(no.what(), HasSubstr("quant_unsupported: the latent down-projection: projection "
                                       "weights are stored as e2m1 with e8m0 scales"));
    }
    return e.served;
  };
  std::string text;
  EXPECT_TRUE(explained(text)) << text;
  written.files.config["quantization_config"]["config_groups"]["group_0"]["targets"].push_back(
      "re:.*routed_expert_(down|up)_proj$");
  const std::int64_t h = spec->problem.hidden, l = spec->problem.latent;
  for (const auto& [name, rows, cols] :
       {std::tuple{"routed_expert_down_proj", l, h}, std::tuple{"routed_expert_up_proj", h, l}}) {
    const std::string base = spec->block + "." + name + ".weight";
    ASSERT_EQ(written.files.tensors.erase(base), 1u);
    written.files.tensors[base + "_packed"] = {
        "U8", {rows, cols / 2}, std::string(std::size_t(rows * cols / 2), '\x22')};
    written.files.tensors[base + "_scale"] = {
        "U8", {rows, cols / 32}, std::string(std::size_t(rows * cols / 32), '\x7f')};
  }
  EXPECT_FALSE(explained(text));
  EXPECT_THAT(text, HasSubstr("the latent down-projection"));
}

INSTANTIATE_TEST_SUITE_P(Leaves, Latent, test::every_cpu_leaf(), test::leaf_name);
INSTANTIATE_TEST_SUITE_P(Leaves, Zero, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard
