// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "switchyard/api/bench.h"
#include "switchyard/api/bench_bars.h"
#include "switchyard/api/bench_routing.h"
#include "switchyard/api/bench_session.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/api/roof_slices.h"
#include "switchyard/resolve/probe.h"
#include "switchyard/tune/timer.h"
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

TEST_F(BenchLayer, EveryRowIsTimedInEachStateAndChecked) {
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
    EXPECT_THAT(r.overrides, testing::IsEmpty());
    for (const std::optional<CacheState>* s : {&r.fresh, &r.cold, &r.warm}) {
      ASSERT_TRUE(*s);
      EXPECT_GE((*s)->time.samples, 5);
      EXPECT_GT((*s)->time.least, 0);
      EXPECT_LE((*s)->time.least, (*s)->time.p50);
      EXPECT_LE((*s)->time.p50, (*s)->time.p90);
      EXPECT_LE((*s)->time.p90, (*s)->time.p99);
      const bool two = r.routing == RoutingSkew::kOne || r.tokens == 1;
      EXPECT_GE((*s)->distinct_experts, two ? 2 : 5) << "18 uniform choices among 8";
      EXPECT_LE((*s)->distinct_experts, two ? 2 : 8);
      const LayerCost cost{double((*s)->distinct_experts * r.expert_bytes), r.flops};
      EXPECT_DOUBLE_EQ((*s)->gbps, cost.bytes / (*s)->time.p50 * 1e-3);
      EXPECT_DOUBLE_EQ((*s)->gflops, cost.flops / (*s)->time.p50 * 1e-3);
      const auto share = [&](const MeasuredRoof& roof, double p50) {
        return std::max(cost.bytes / roof.gbps, cost.flops / roof.gflops) * 1e-3 / p50;
      };
      std::vector<double> shares;
      for (const RoofSlice& slice : (*s)->slices) shares.push_back(share(slice.roof, slice.p50));
      ASSERT_EQ(shares.size(), s == &r.fresh ? 4u : 0u);
      if (shares.empty()) shares.push_back(share(result.roof, (*s)->time.p50));
      EXPECT_DOUBLE_EQ((*s)->share_of_roof, tune::percentile(shares, 0.5));
    }
  }
  EXPECT_EQ(result.rows[0].expert_bytes, 3 * 128 * 96 * 2);
  EXPECT_LT(result.rows[4].expert_bytes, result.rows[0].expert_bytes / 3);
  EXPECT_EQ(result.roof_samples, 5 + 8 * (5 * 2 + 2) + 5);
  EXPECT_EQ(result.flush_bytes, std::int64_t(64) << 20);
}

TEST(RoofSlices, EachPartIsHeldToWhatWasSampledAroundIt) {
  const std::vector<tune::Roof> samples = {{30, 400}, {34, 420}, {58, 440}, {62, 460}, {30, 480}};
  const std::vector<double> p50 = {10, 20, 40, 80};
  const std::vector<RoofSlice> slices = api::roof_slices(samples, p50);
  ASSERT_EQ(slices.size(), 4u);
  const double gbps[] = {32, 46, 60, 46}, gflops[] = {410, 430, 450, 470};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(slices[i].p50, p50[i]);
    EXPECT_EQ(slices[i].roof.gbps, gbps[i]);
    EXPECT_EQ(slices[i].roof.gflops, gflops[i]);
  }
  // 320 KB at 32 GB/s are 10 us of the first part's 10: shares 1, .35, .13, .087.
  const LayerCost memory{320e3, 1};
  EXPECT_DOUBLE_EQ(api::median_share(memory, {slices.data(), 1}), 1);
  EXPECT_DOUBLE_EQ(api::median_share(memory, {slices.data(), 3}), 320e3 / 46 * 1e-3 / 20);
  const LayerCost compute{1, 4.3e6};
  EXPECT_DOUBLE_EQ(api::median_share(compute, {slices.data() + 1, 1}), 0.5);
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

TEST_F(BenchLayer, TimesTheAskedStatesAlone) {
  options_.tokens = {2};
  options_.fresh = options_.cold = false;
  const BenchLayerResult warm = bench_layer(options_);
  EXPECT_FALSE(warm.rows[0].cold || warm.rows[0].fresh);
  EXPECT_EQ(warm.rows[0].layers, 1);
  EXPECT_EQ(&warm.rows[0].shown(), &*warm.rows[0].warm);
  ASSERT_TRUE(warm.rows[0].warm);
  EXPECT_GT(warm.rows[0].warm->share_of_roof, 0);
  std::swap(options_.cold, options_.warm);
  const BenchLayerResult cold = bench_layer(options_);
  EXPECT_FALSE(cold.rows[0].warm || cold.rows[0].fresh);
  EXPECT_EQ(&cold.rows[0].shown(), &*cold.rows[0].cold);
  ASSERT_TRUE(cold.rows[0].cold);
  EXPECT_GT(cold.rows[0].cold->share_of_roof, 0);
  std::swap(options_.cold, options_.fresh);
  const BenchLayerResult fresh = bench_layer(options_);
  EXPECT_FALSE(fresh.rows[0].warm || fresh.rows[0].cold);
  ASSERT_TRUE(fresh.rows[0].fresh);
  EXPECT_GT(fresh.rows[0].fresh->share_of_roof, 0);
  EXPECT_EQ(&fresh.rows[0].shown(), &*fresh.rows[0].fresh);
}

TEST_F(BenchLayer, SaysWhatDiffersFromThePreset) {
  options_.tokens = {2};
  options_.fresh = options_.cold = false;
  options_.source.build.top_k = 3;
  options_.source.build.routed_scaling_factor = 2.5f;
  options_.source.build.with_shared = false;
  const BenchLayerResult result = bench_layer(options_);
  EXPECT_THAT(result.rows[0].overrides,
              testing::ElementsAre("top_k 3", "factor 2.5", "without shared"));
}

TEST_F(BenchLayer, AnErrorOfTheBuildKeepsItsKind) {
  options_.formats = {"none", "nvfp4"};
  options_.source.build.leaf = "no.such.leaf";
  EXPECT_THROW(bench_layer(options_), UsageError);
  options_.source.build.leaf = "";
  options_.source.build.slots = 9;
  EXPECT_THROW(bench_layer(options_), CannotServe) << "all are skipped: the first one's error";
  options_.source.build.slots = 0;
  Environment blind = small_machine();
  blind.num_gpus = 0;
  {
    const resolve::ScopedEnvironment scope(blind);
    options_.source.build.device = Device::kCuda;
    EXPECT_THROW(bench_layer(options_), DeviceError);
    options_.source.build.device.reset();
  }
  options_.fresh = options_.cold = false;
  EXPECT_TRUE(bench_layer(options_).ok);
}

TEST(Bars, ASkippedFormatMissesTheBarThatItHas) {
  const auto skipped = [](bool barred) {
    BenchLayerResult r;
    r.skipped.push_back({0, "nvfp4", "too large", barred});
    return r;
  };
  EXPECT_TRUE(skipped(true).misses_bar());
  EXPECT_FALSE(skipped(false).misses_bar());
  BenchLayerResult row;
  row.rows.emplace_back();
  row.rows[0].fresh.emplace().share_of_roof = 0.5;
  row.rows[0].bar = 0.4;
  EXPECT_FALSE(row.misses_bar());
  row.rows[0].bar = 0.6;
  EXPECT_TRUE(row.misses_bar());
  row.rows[0].fresh.reset();
  EXPECT_FALSE(row.misses_bar());
}

TEST_F(BenchLayer, TheBuildDecidesWhatIsBarred) {
  BenchLayerOptions o = options_;
  o.source.preset = "qwen3-30b-a3b";
  EXPECT_TRUE(has_bar(o, "nvfp4"));
  EXPECT_TRUE(has_bar(o, "bf16")) << "another name of none";
  const auto changed = [&](auto change) {
    BenchLayerOptions c = o;
    change(c);
    return has_bar(c, "nvfp4");
  };
  EXPECT_FALSE(changed([](auto& c) { c.tokens = {2, 3}; }));
  EXPECT_FALSE(changed([](auto& c) { c.fresh = false; }));
  EXPECT_FALSE(changed([](auto& c) { c.routing = {RoutingSkew::kZipf}; }));
  EXPECT_FALSE(changed([](auto& c) { c.source.preset = "tiny"; }));
  EXPECT_FALSE(changed([](auto& c) { c.source.preset = "gpt-oss-20b"; }));
  EXPECT_FALSE(changed([](auto& c) { c.source.checkpoint = "x"; }));
  EXPECT_FALSE(changed([](auto& c) { c.source.build.top_k = 4; }));
  EXPECT_FALSE(changed([](auto& c) { c.source.build.activations = ActivationMode::kBf16; }));
}

TEST(Streams, FollowTheCacheWithinLimits) {
  constexpr std::size_t kMiB = std::size_t(1) << 20;
  const auto sizes = [](std::int64_t l3_mib, std::int64_t memory_mib) {
    Environment env = environment();
    env.l3_bytes = l3_mib << 20;
    env.memory_bytes = memory_mib << 20;
    return std::pair(cold_flush_bytes(env) / kMiB, roof_stream_bytes(env) / kMiB);
  };
  EXPECT_EQ(sizes(1, 1 << 20), std::pair(std::size_t(64), std::size_t(512)));
  EXPECT_EQ(sizes(100, 1 << 20), std::pair(std::size_t(200), std::size_t(512)));
  EXPECT_EQ(sizes(150, 1 << 20), std::pair(std::size_t(300), std::size_t(600)));
  EXPECT_EQ(sizes(480, 1 << 20), std::pair(std::size_t(512), std::size_t(1024)));
  EXPECT_EQ(sizes(480, 1024), std::pair(std::size_t(128), std::size_t(128)));
  EXPECT_EQ(sizes(480, 16), std::pair(std::size_t(64), std::size_t(64)));
}

TEST(Streams, FreshLayersFillTwiceTheCacheWithinHalfOfTheMemory) {
  const auto count = [](std::int64_t l3_mib, std::int64_t memory_mib, std::int64_t layer_mib) {
    Environment env = environment();
    env.l3_bytes = l3_mib << 20;
    env.memory_bytes = memory_mib << 20;
    return fresh_layers(env, layer_mib << 20);
  };
  EXPECT_EQ(count(100, 1 << 20, 70), 3);
  EXPECT_EQ(count(100, 1 << 20, 100), 2);
  EXPECT_EQ(count(100, 1 << 20, 900), 2) << "one large layer would do, two lie apart for certain";
  EXPECT_EQ(count(100, 1000, 300), 1) << "memory for no other";
  EXPECT_EQ(count(100, 0, 70), 3) << "no limit is known";
  EXPECT_EQ(count(480, 1 << 20, 1), kMostFreshLayers);
}

TEST_F(BenchLayer, SaysWhenFreshLayersAreSmallerThanTheCache) {
  options_.tokens = {1};
  options_.cold = options_.warm = options_.eager = false;
  const BenchLayerRow row = bench_layer(options_).rows[0];
  EXPECT_EQ(row.layers, 4) << "a tiny layer is 590 KB, the cache 1 MiB";
  EXPECT_THAT(row.notices, testing::Not(testing::Contains(HasSubstr("fresh calls visit"))));
  Environment large = small_machine();
  large.l3_bytes = std::int64_t(300) << 20;
  const resolve::ScopedEnvironment scope(large);
  const BenchLayerRow small = bench_layer(options_).rows[0];
  EXPECT_EQ(small.layers, kMostFreshLayers);
  EXPECT_THAT(small.notices, testing::Contains(HasSubstr("less than twice the last-level cache")));
}

TEST_F(BenchLayer, SaysWhenTheFlushIsSmallerThanTheCache) {
  Environment large = small_machine();
  large.l3_bytes = std::int64_t(300) << 20;
  const resolve::ScopedEnvironment scope(large);
  options_.tokens = {1};
  const BenchLayerResult result = bench_layer(options_);
  EXPECT_EQ(result.flush_bytes, std::int64_t(128) << 20);
  EXPECT_THAT(result.notices, testing::Contains(HasSubstr("128 MiB, less than")));
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
  EXPECT_THAT(refused([](auto& o) { o.source.layer = 3; }), HasSubstr("layer = 3 belongs to"));
  EXPECT_THAT(refused([](auto& o) { o.fresh = o.cold = o.warm = o.eager = false; }),
              HasSubstr("no state"));
  EXPECT_THAT(refused([](auto& o) { o.fresh = o.cold = o.warm = false; }),
              HasSubstr("eager is timed on cuda only"));
  EXPECT_TRUE(bench_layer(options_).ok);
}

const std::vector<std::string> kAsPublished, kWithoutShared = {"without shared"};

Barred on_cpu(std::string_view preset, std::string_view format) {
  return {Device::kCpu, preset, format, kAsPublished};
}

TEST(Bars, ShareOfTheRoofByShapeFormatAndTokens) {
  const LayerCost cost{75e6, 75e6};
  const auto bar_of = [&](std::string_view preset, std::string_view format, std::int64_t tokens,
                          const LayerCost& c) {
    return switchyard::bar_of(on_cpu(preset, format), tokens, c, {1, 1});
  };
  EXPECT_EQ(bar_of("qwen3-30b-a3b", "none", 1, cost), 0.85);
  EXPECT_EQ(bar_of("qwen3-30b-a3b", "none", 64, cost), 0.60);
  EXPECT_EQ(bar_of("qwen3-30b-a3b", "fp8_block_scales", 8, cost), 0.70);
  EXPECT_EQ(bar_of("qwen3-30b-a3b", "w4a8_nvfp4_fp8", 512, cost), 0.55);
  EXPECT_FALSE(bar_of("qwen3-30b-a3b", "none", 2, cost));
  EXPECT_FALSE(bar_of("tiny", "none", 1, cost));
  Barred amx = on_cpu("qwen3-30b-a3b", "none");
  amx.tier = CpuIsa::kAmx;
  EXPECT_EQ(switchyard::bar_of(amx, 64, cost, {1, 1}), 0.60);
  EXPECT_FALSE(switchyard::bar_of(amx, 512, cost, {1, 1}));
  EXPECT_FALSE(bar_of("gpt-oss-20b", "nvfp4", 1, cost));
  EXPECT_FALSE(
      switchyard::bar_of({Device::kCpu, "qwen3-30b-a3b", "none", kWithoutShared}, 1, cost, {1, 1}));
}

TEST(Bars, ATimeOnAnH200IsItsShareOfTheRoofMeasuredThere) {
  const LayerCost cost{75e6, 75e6};
  const tune::Roof roof{4500, 800000};
  const Barred qwen{Device::kCuda, "qwen3-30b-a3b", "none", kAsPublished};
  EXPECT_NEAR(*bar_of(qwen, 1, cost, roof), floor_us(cost, roof) / 40, 1e-12);
  EXPECT_NEAR(*bar_of(qwen, 4096, cost, roof), floor_us(cost, roof) / 680, 1e-12);
  const LayerCost prefill{1e9, 600e9};
  EXPECT_NEAR(*bar_of(qwen, 8192, prefill, roof), 480.0 / 800, 1e-9) << "a rate of 480 TFLOP/s";
  EXPECT_FALSE(bar_of(qwen, 2, cost, roof));
  EXPECT_FALSE(bar_of({Device::kCuda, "qwen3-30b-a3b", "nvfp4", kAsPublished}, 1, cost, roof));
  EXPECT_FALSE(bar_of({Device::kCuda, "deepseek-v3", "nvfp4", kAsPublished}, 1, cost, roof));
  EXPECT_TRUE(bar_of({Device::kCuda, "deepseek-v3", "nvfp4", kWithoutShared}, 1, cost, roof));
}

TEST(Streams, FreshLayersOnAGpuHoldManyCaches) {
  const auto count = [](std::int64_t l2_mib, std::int64_t memory_mib, std::int64_t layer_mib) {
    return fresh_device_layers({.l2_bytes = l2_mib << 20, .memory_bytes = memory_mib << 20},
                               layer_mib << 20);
  };
  EXPECT_EQ(count(50, 140000, 1200), 2);
  EXPECT_EQ(count(50, 140000, 340), 5);
  EXPECT_EQ(count(50, 140000, 11000), 2);
  EXPECT_EQ(count(50, 140000, 1), kMostFreshDeviceLayers);
  EXPECT_EQ(count(50, 20000, 11000), 1) << "memory for no other";
}

TEST(Bars, ATimeIsCarriedOverByTheOtherMachinesRoof) {
  const auto bar_of = [](std::string_view preset, std::string_view format, std::int64_t tokens,
                         const LayerCost& c) {
    return switchyard::bar_of(on_cpu(preset, format), tokens, c, {1, 1});
  };
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

TEST(BenchRouting, WrongNumbersAreNotOk) {
  const float nan = std::nanf("");
  const std::vector<float> good = {1, 2, 3}, off = {1, 2.5f, 2.75f};
  EXPECT_EQ(largest_distance(good, off), 0.5);
  for (std::size_t at = 0; at < 3; ++at) {
    std::vector<float> bad = good;
    bad[at] = nan;
    EXPECT_TRUE(std::isnan(largest_distance(bad, good))) << at;
    EXPECT_TRUE(std::isnan(largest_distance(off, bad))) << at;
  }
  RouterGemmRow g;
  RouteChoiceRow c;
  EXPECT_TRUE(g.ok() && c.ok());
  for (double wrong : {1.0, double(nan), HUGE_VAL}) {
    g.max_error = c.max_weight_error = wrong;
    EXPECT_FALSE(g.ok()) << wrong;
    EXPECT_FALSE(c.ok()) << wrong;
  }
  c.max_weight_error = 0;
  EXPECT_TRUE(c.ok());
  c.differing = 1;
  EXPECT_FALSE(c.ok());
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
