// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "switchyard/api/bench.h"
#include "switchyard/api/bench_bars.h"
#include "switchyard/api/bench_routing.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/resolve/probe.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using test::usage_error_of;
using testing::HasSubstr;

/// A machine of little memory and little cache, so that the streamed buffer is small.
Environment small_machine() {
  Environment env = environment();
  env.memory_bytes = std::int64_t(1) << 30;
  env.l3_bytes = 1 << 20;
  return env;
}

class BenchLayer : public testing::Test {
 protected:
  BenchLayer() {
    options_.source.build.threads = 2;
    options_.seconds = 1e-6;  // the least number of calls
    options_.tokens = {1, 9};
  }

  resolve::ScopedEnvironment small_{small_machine()};
  BenchLayerOptions options_;
};

TEST_F(BenchLayer, EveryRowIsTimedColdAndWarmAndChecked) {
  options_.formats = {"none", "w4a8_nvfp4_fp8"};
  options_.routing = {RoutingSkew::kUniform, RoutingSkew::kOne};
  std::vector<std::string> said;
  options_.progress = [&](const std::string& what) { said.push_back(what); };
  const BenchLayerResult result = bench_layer(options_);
  EXPECT_TRUE(result.ok);
  ASSERT_EQ(result.rows.size(), 8u);
  EXPECT_EQ(said.size(), 10u) << "one line per layer built and per row";
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const BenchLayerRow& r = result.rows[i];
    SCOPED_TRACE(i);
    EXPECT_EQ(r.format, i < 4 ? "none" : "w4a8_nvfp4_fp8");
    EXPECT_EQ(r.tokens, i / 2 % 2 == 0 ? 1 : 9);
    EXPECT_EQ(r.routing, options_.routing[i % 2]);
    EXPECT_EQ(r.preset, "tiny");
    EXPECT_EQ(r.threads, 2);
    EXPECT_TRUE(r.ok);
    EXPECT_GT(r.rel_l2, 0);
    EXPECT_LT(r.rel_l2, r.budget);
    EXPECT_EQ(r.checked_tokens, std::min<std::int64_t>(r.tokens, 8));
    EXPECT_EQ(r.flops, 2.0 * 3 * 128 * 96 * 2 * double(r.tokens));
    EXPECT_FALSE(r.bar) << "tiny has none";
    EXPECT_GT(r.router_p50, 0);
    for (const CacheState* s : {&r.cold, &r.warm}) {
      EXPECT_GE(s->time.samples, 5);
      EXPECT_GT(s->time.least, 0);
      EXPECT_LE(s->time.least, s->time.p50);
      EXPECT_LE(s->time.p50, s->time.p90);
      EXPECT_LE(s->time.p90, s->time.p99);
      EXPECT_EQ(s->distinct_experts,
                r.routing == RoutingSkew::kOne || r.tokens == 1 ? 2 : s->distinct_experts);
      const LayerCost cost{double(s->distinct_experts * r.expert_bytes), r.flops};
      EXPECT_DOUBLE_EQ(s->gbps, cost.bytes / s->time.p50 * 1e-3);
      EXPECT_DOUBLE_EQ(s->gflops, cost.flops / s->time.p50 * 1e-3);
      EXPECT_DOUBLE_EQ(s->share_of_roof,
                       std::max(s->gbps / result.roof.gbps, s->gflops / result.roof.gflops));
    }
  }
  EXPECT_EQ(result.rows[0].expert_bytes, 3 * 128 * 96 * 2);
  EXPECT_LT(result.rows[4].expert_bytes, result.rows[0].expert_bytes / 3);
  EXPECT_EQ(result.roof_samples, 5 + 8 * 2 + 5);
  EXPECT_EQ(result.flush_bytes, std::int64_t(64) << 20);
}

TEST_F(BenchLayer, ALayerOfACheckpointKeepsItsFormat) {
  options_.source.checkpoint = std::string(SWITCHYARD_TEST_DATA) + "/gpt_oss_mxfp4";
  options_.tokens = {3};
  const BenchLayerResult result = bench_layer(options_);
  EXPECT_TRUE(result.ok);
  ASSERT_FALSE(result.rows.empty());
  EXPECT_EQ(result.rows[0].format, "w4a16_mxfp4");
  EXPECT_EQ(result.rows[0].preset, "");
}

TEST_F(BenchLayer, SkipsWhatCannotBeBuiltUnlessNothingElseIsAsked) {
  Environment poor = small_machine();
  poor.memory_bytes = 200'000;  // holds the tiny layer in four bits, not in bf16
  const resolve::ScopedEnvironment scope(poor);
  options_.formats = {"none", "nvfp4"};
  const BenchLayerResult result = bench_layer(options_);
  ASSERT_EQ(result.skipped.size(), 1u);
  EXPECT_EQ(result.skipped[0].format, "none");
  EXPECT_THAT(result.skipped[0].reason, HasSubstr("packed experts need"));
  EXPECT_EQ(result.rows.size(), 2u);
  options_.formats = {"none"};
  EXPECT_THAT(usage_error_of([&] { bench_layer(options_); }), HasSubstr("packed experts need"));
  options_.formats = {"nvfp4"};
  EXPECT_TRUE(bench_layer(options_).ok) << "a good call after";
}

TEST_F(BenchLayer, RefusesWhatCannotBeTimed) {
  const auto refused = [this](auto change) {
    BenchLayerOptions o = options_;
    change(o);
    return usage_error_of([&] { bench_layer(o); });
  };
  EXPECT_THAT(refused([](auto& o) { o.tokens = {0}; }), HasSubstr("tokens = 0"));
  EXPECT_THAT(refused([](auto& o) { o.tokens = {}; }), HasSubstr("no tokens"));
  EXPECT_THAT(refused([](auto& o) { o.routing = {}; }), HasSubstr("no tokens or no routing"));
  EXPECT_THAT(refused([](auto& o) { o.seconds = 0; }), HasSubstr("seconds = 0"));
  EXPECT_THAT(refused([](auto& o) { o.formats = {"nvfp5"}; }), HasSubstr("nvfp5"));
  EXPECT_THAT(refused([](auto& o) { o.source.layer = 3; }), HasSubstr("--layer"));
  EXPECT_TRUE(bench_layer(options_).ok);
}

TEST(Bars, ShareOfTheRoofByShapeFormatAndTokens) {
  const LayerCost cost{75e6, 75e6};
  EXPECT_EQ(bar_of("qwen3-30b-a3b", "none", 1, cost), 0.85);
  EXPECT_EQ(bar_of("qwen3-30b-a3b", "none", 64, cost), 0.60);
  EXPECT_EQ(bar_of("qwen3-30b-a3b", "fp8_block_scales", 8, cost), 0.70);
  EXPECT_EQ(bar_of("qwen3-30b-a3b", "w4a8_nvfp4_fp8", 512, cost), 0.55);
  EXPECT_FALSE(bar_of("qwen3-30b-a3b", "none", 2, cost));
  EXPECT_FALSE(bar_of("tiny", "none", 1, cost));
  EXPECT_FALSE(bar_of("gpt-oss-20b", "nvfp4", 1, cost));
}

TEST(Bars, ATimeIsCarriedOverByTheOtherMachinesRoof) {
  // 1.9 ms at 34 GB/s would read 64.6 MB: a layer of half the bytes is held to half of the roof.
  EXPECT_NEAR(*bar_of("gpt-oss-20b", "w4a16_mxfp4", 1, {32.3e6, 1}), 0.5, 1e-9);
  // 250 ms at 466 GFLOP/s would compute 116.5 GFLOP.
  EXPECT_NEAR(*bar_of("gpt-oss-20b", "w4a16_mxfp4", 512, {1, 116.5e9}), 1.0, 1e-9);
  EXPECT_NEAR(floor_us({34e6, 466e6}, {34, 233}), 2000, 1e-6) << "the larger part counts";
}

TEST(BenchRouting, EveryMethodAgreesWithTheOracle) {
  BenchRoutingOptions o;
  o.preset = "tiny";
  o.tokens = {1, 33};
  o.seconds = 1e-6;
  o.threads = 2;
  const BenchRoutingResult result = bench_routing(o);
  EXPECT_TRUE(result.ok);
  EXPECT_EQ(result.gemm.size(), 2u);
  EXPECT_EQ(result.choice.size(), 2u * 16);
  ASSERT_EQ(result.skipped.size(), 1u);
  EXPECT_EQ(result.skipped[0].method, RoutingMethodType::kUnspecified);
  for (const RouterGemmRow& g : result.gemm) {
    EXPECT_LT(g.max_error, 1e-4);
    EXPECT_GT(g.naive_ns_per_token, 0);
    EXPECT_NEAR(g.ns_per_token * double(g.tokens), g.time.p50 * 1e3, 1e-6 * g.time.p50 * 1e3);
  }
  for (const RouteChoiceRow& c : result.choice) {
    SCOPED_TRACE(to_string(c.method));
    EXPECT_EQ(c.checked, c.tokens);
    EXPECT_EQ(c.agreeing + c.near_tie, c.checked);
    EXPECT_EQ(c.differing, 0);
    EXPECT_LT(c.max_weight_error, 1e-5);
    EXPECT_EQ(c.top_k, c.method == RoutingMethodType::kLlama4 ? 1 : 2);
    EXPECT_GE(c.time.samples, 5);
  }
}

TEST(BenchRouting, RefusesByName) {
  BenchRoutingOptions o;
  o.methods = {RoutingMethodType::kUnspecified};
  EXPECT_THAT(usage_error_of([&] { bench_routing(o); }), HasSubstr("Unspecified"));
  o.methods = {RoutingMethodType::kRenormalize};
  o.tokens = {0};
  EXPECT_THAT(usage_error_of([&] { bench_routing(o); }), HasSubstr("tokens = 0"));
  o.tokens = {2};
  o.threads = 5000;
  EXPECT_THAT(usage_error_of([&] { bench_routing(o); }), HasSubstr("threads = 5000"));
  o.threads = 1;
  o.preset = "tinny";
  EXPECT_THAT(usage_error_of([&] { bench_routing(o); }), HasSubstr("tinny"));
  o.preset = "tiny";
  o.seconds = 1e-6;
  EXPECT_TRUE(bench_routing(o).ok);
}

}  // namespace
}  // namespace switchyard
