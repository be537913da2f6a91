// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_allreduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <variant>

#include "switchyard/api/allreduce_traffic.h"
#include "switchyard/api/bench_allreduce_device.h"
#include "switchyard/base/errors.h"
#include "switchyard/comm/fused_allreduce.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using ops::AllReduceQuant;
using ops::AllReduceStrategy;
using testing::HasSubstr;
using Names = std::set<std::string>;

constexpr int kReduction = 6, kFinalize = 7;

BenchAllReduceOptions small(int pattern) {
  BenchAllReduceOptions o;
  o.pattern = ops::to_allreduce_pattern(pattern);
  o.tokens = {1, 9};
  o.hidden = 160;  // a group of 128 and a part of one
  o.top_k = 3;
  o.experts = 2;
  o.ranks = 3;
  o.seconds = 1e-5;  // the least number of calls
  return o;
}

Names names_of(const std::vector<OutputError>& errors) {
  Names out;
  for (const OutputError& e : errors) out.insert(e.name);
  return out;
}

/// What each pattern writes.
Names outputs_of(int pattern) {
  if (pattern == 0) return {"output"};
  if (pattern == 1 || pattern == kFinalize) return {"residual_out", "norm_out"};
  if (pattern == kReduction) return {"output", "residual_out", "norm_out"};
  const bool norm_too = pattern == 4 || pattern == 5 || pattern == 9 || pattern == 11;
  return norm_too ? Names{"residual_out", "norm_out", "quant_out"}
                  : Names{"residual_out", "quant_out"};
}

void expect_timed_and_right(const BenchAllReduceResult& r, const Names& outputs) {
  EXPECT_TRUE(r.ok);
  ASSERT_EQ(r.rows.size(), 2U);
  for (const AllReduceRow& row : r.rows) {
    EXPECT_EQ(row.tokens, &row == r.rows.data() ? 1 : 9);
    EXPECT_EQ(row.checked_tokens, std::min<std::int64_t>(row.tokens, 8));
    EXPECT_TRUE(row.ok());
    EXPECT_TRUE(row.equal_ranks);
    EXPECT_EQ(names_of(row.errors), outputs);
    for (const TimeSummary* t : {&row.fused, &row.separate}) {
      EXPECT_GE(t->samples, 5);
      EXPECT_GT(t->least, 0);
      EXPECT_LE(t->least, t->p50);
      EXPECT_LE(t->p50, t->p99);
    }
    EXPECT_GT(row.bytes, 0);
    EXPECT_GT(row.gbps, 0);
    EXPECT_GT(row.copy_gbps, 0);
  }
}

TEST(BenchAllReduce, EveryPatternIsTimedAndRightByBothStrategies) {
  for (int pattern = 0; pattern < ops::kNumAllReducePatterns; ++pattern)
    for (AllReduceStrategy strategy : {AllReduceStrategy::kOneShot, AllReduceStrategy::kTwoShot}) {
      SCOPED_TRACE(std::to_string(pattern) + " " + std::string(to_string(strategy)));
      BenchAllReduceOptions o = small(pattern);
      o.strategy = strategy;
      const BenchAllReduceResult r = bench_allreduce(o);
      EXPECT_EQ(r.pattern, ops::to_string(o.pattern));
      expect_timed_and_right(r, outputs_of(pattern));
      for (const AllReduceRow& row : r.rows) EXPECT_EQ(row.strategy, ops::to_string(strategy));
    }
}

TEST(BenchAllReduce, EveryQuantisedOutputOfExpertRowsInEveryDtype) {
  for (int pattern : {kReduction, kFinalize})
    for (AllReduceQuant quant : {AllReduceQuant::kFp8Static, AllReduceQuant::kNvfp4,
                                 AllReduceQuant::kFp8Group, AllReduceQuant::kFp8Token})
      for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kF32}) {
        SCOPED_TRACE(std::to_string(pattern) + " " + std::string(ops::to_string(quant)) + " " +
                     std::string(to_string(dtype)));
        BenchAllReduceOptions o = small(pattern);
        o.quant = quant;
        o.dtype = dtype;
        o.shared = true;
        o.routed_scaling_factor = 2.5F;
        Names outputs = outputs_of(pattern);
        outputs.insert("quant_out");
        expect_timed_and_right(bench_allreduce(o), outputs);
      }
}

TEST(BenchAllReduce, NvfpScalesInEveryLayout) {
  for (formats::ScaleLayout layout :
       {formats::ScaleLayout::kLinear, formats::ScaleLayout::k128x4, formats::ScaleLayout::k8x4}) {
    BenchAllReduceOptions o = small(3);
    o.scale_layout = layout;
    expect_timed_and_right(bench_allreduce(o), outputs_of(3));
  }
}

TEST(BenchAllReduce, OneRankAndNoTokensAreLegal) {
  BenchAllReduceOptions o = small(1);
  o.ranks = 1;
  o.tokens = {0, 4};
  const BenchAllReduceResult r = bench_allreduce(o);
  EXPECT_TRUE(r.ok);
  EXPECT_EQ(r.rows.at(1).strategy, "local");
  EXPECT_EQ(r.rows.at(0).checked_tokens, 0);
}

TEST(BenchAllReduce, AWrongOutputIsNotOk) {
  AllReduceRow row;
  row.equal_ranks = true;
  row.errors = {{"output", 1e-3, 2e-3}, {"norm_out", 0, 2e-3}};
  EXPECT_TRUE(row.ok());
  for (double wrong : {3e-3, std::numeric_limits<double>::quiet_NaN(), HUGE_VAL}) {
    row.errors[1].rel_l2 = wrong;
    EXPECT_FALSE(row.ok()) << wrong;
  }
  row.errors[1].rel_l2 = 0;
  EXPECT_TRUE(row.ok());
  row.equal_ranks = false;
  EXPECT_FALSE(row.ok()) << "unequal digests";
}

TEST(AllReduceTraffic, FlagsReachTheCall) {
  BenchAllReduceOptions o = small(kFinalize);
  o.shared = true;
  o.routed_scaling_factor = 2.5F;
  o.quant = AllReduceQuant::kNvfp4;
  o.scale_layout = formats::ScaleLayout::k8x4;
  o.strategy = AllReduceStrategy::kTwoShot;
  o.dtype = Dtype::kFp16;
  api::AllReduceTraffic traffic(o, 4, 1);
  ops::AllReduceCall call = traffic.fused();
  EXPECT_EQ(call.pattern(), o.pattern);
  EXPECT_EQ(call.shape.dtype, Dtype::kFp16);
  EXPECT_EQ(call.shape.strategy, AllReduceStrategy::kTwoShot);
  const auto& finalize = std::get<ops::MoeFinalizeSource>(call.source);
  EXPECT_EQ(finalize.top_k, 3);
  EXPECT_EQ(finalize.routed_scaling_factor, 2.5F);
  EXPECT_NE(finalize.shared_expert_output, nullptr);
  EXPECT_EQ(std::get<ops::Nvfp4Out>(call.norm->quant).layout, formats::ScaleLayout::k8x4);
  o.pattern = ops::to_allreduce_pattern(kReduction);
  api::AllReduceTraffic reduced(o, 4, 1);
  call = reduced.fused();
  const auto& reduction = std::get<ops::MoeReductionSource>(call.source);
  EXPECT_EQ(reduction.num_experts, 2);
  EXPECT_EQ(reduction.routed_scaling_factor, 2.5F);
  EXPECT_NE(reduction.token_input, nullptr);
}

/// The error of one output.
const OutputError& error_of(const std::vector<OutputError>& errors, const std::string& name) {
  for (const OutputError& e : errors)
    if (e.name == name) return e;
  throw InternalError("no output " + name);
}

// The judge sees one spoilt element of an output, and the digest one spoilt bit.
TEST(AllReduceTraffic, FaultsAreSeen) {
  BenchAllReduceOptions o = small(5);  // norm_out and nvfp4 codes
  o.ranks = 2;
  constexpr std::int64_t kTokens = 4;
  test::expect_all_well(test::on_thread_ranks(2, test::long_deadlines(), [&](comm::Group& g) {
    api::AllReduceTraffic traffic(o, kTokens, g.rank());
    comm::AllReduceWorkspace workspace(g, {2, kTokens, o.hidden, o.dtype}, {});
    const ops::AllReduceCall call = traffic.fused();
    workspace.run(call);
    auto judge = [&] { return api::judge_traffic(o, kTokens, traffic); };
    for (const OutputError& e : judge()) EXPECT_TRUE(e.ok()) << e.name << " " << e.rel_l2;
    const std::string digest = traffic.digest();
    EXPECT_EQ(g.all_gather(digest, "digests").at(std::size_t(1 - g.rank())), digest);

    const float before = load_element(o.dtype, call.norm->norm_out, 200);
    for (float wrong : {before + 1, std::numeric_limits<float>::quiet_NaN()}) {
      store_element(o.dtype, call.norm->norm_out, 200, wrong);
      EXPECT_FALSE(error_of(judge(), "norm_out").ok()) << wrong;
      EXPECT_TRUE(error_of(judge(), "residual_out").ok());
      EXPECT_NE(traffic.digest(), digest);
    }
    store_element(o.dtype, call.norm->norm_out, 200, before);
    EXPECT_EQ(traffic.digest(), digest);

    std::uint8_t* codes = std::get<ops::Nvfp4Out>(call.norm->quant).quant_out;
    for (int i = 0; i < 16; ++i) codes[i] ^= 0x88;  // other signs
    EXPECT_FALSE(error_of(judge(), "quant_out").ok());
    EXPECT_TRUE(error_of(judge(), "norm_out").ok());
    EXPECT_NE(traffic.digest(), digest);
    g.barrier("end");
  }));
}

// What is asked for before a row is made must not be less than what the row then takes.
TEST(BenchAllReduce, TheMemoryOfARowIsNotUnderestimated) {
  for (int pattern : {1, 5, kReduction, kFinalize}) {
    BenchAllReduceOptions o = small(pattern);
    const std::int64_t tokens = 64, hidden = o.hidden = 4096;
    const comm::AllReduceCapacity capacity{o.ranks, tokens, hidden, o.dtype};
    const api::AllReduceTraffic traffic(o, tokens, 0);
    const std::int64_t rows = pattern == kReduction  ? o.experts
                              : pattern == kFinalize ? o.top_k
                                                     : 0;
    const double least = double(comm::allreduce_workspace_bytes(capacity)) +
                         double(traffic.output_bytes()) +
                         double((4 + rows) * tokens * hidden * std::int64_t(size_of(o.dtype)));
    EXPECT_GE(bench_allreduce_bytes(o, tokens), double(o.ranks) * least) << pattern;
    EXPECT_LE(bench_allreduce_bytes(o, tokens), 3 * double(o.ranks) * least) << pattern;
  }
}

TEST(AllReduceOnGpus, MissingPeerAccessIsARejectionByName) {
  Environment env;
  env.deps = {"cuda"};
  env.num_gpus = 4;
  env.sm = 90;
  EXPECT_TRUE(api::gpus_join(env, {}, 4).eligible());
  const std::vector<resolve::PeerGap> gaps = {{3, 1}};
  const Eligibility verdict = api::gpus_join(env, gaps, 4);
  EXPECT_EQ(verdict.reason(), Reject::kTopologyUnsupported);
  EXPECT_THAT(std::string(verdict.detail()), HasSubstr("GPU 3 cannot address GPU 1"));
  EXPECT_TRUE(api::gpus_join(env, gaps, 3).eligible()) << "of GPUs that are not asked for";
  EXPECT_EQ(api::gpus_join(env, {}, 5).reason(), Reject::kTopologyUnsupported);
  env.sm = 80;
  EXPECT_EQ(api::gpus_join(env, {}, 2).reason(), Reject::kSmUnsupported);
}

TEST(BenchAllReduce, RefusesByNameAndAGoodCallFollows) {
  const auto refused = [](int pattern, auto&& spoil) {
    BenchAllReduceOptions o = small(pattern);
    spoil(o);
    return test::usage_error_of([&] { bench_allreduce(o); });
  };
  EXPECT_THAT(refused(1, [](auto& o) { o.tokens = {}; }), HasSubstr("no tokens"));
  EXPECT_THAT(refused(1, [](auto& o) { o.tokens = {-1}; }), HasSubstr("tokens = -1"));
  EXPECT_THAT(refused(1, [](auto& o) { o.ranks = 0; }), HasSubstr("ranks = 0"));
  EXPECT_THAT(refused(1, [](auto& o) { o.hidden = 0; }), HasSubstr("hidden = 0"));
  EXPECT_THAT(refused(1, [](auto& o) { o.shared = true; }), HasSubstr("patterns 6 and 7"));
  EXPECT_THAT(refused(1, [](auto& o) { o.routed_scaling_factor = 2; }),
              HasSubstr("routed_scaling_factor is of patterns 6 and 7"));
  EXPECT_THAT(refused(1, [](auto& o) { o.quant = AllReduceQuant::kNvfp4; }),
              HasSubstr("quant nvfp4 is of patterns 6 and 7"));
  EXPECT_THAT(refused(7,
                      [](auto& o) {
                        o.tokens = {1, 1 << 20}, o.hidden = 1 << 24;
                      }),
              HasSubstr("tokens = 1048576 x hidden = 16777216 on 3 ranks takes about"));
  BenchAllReduceOptions o = small(1);
  const std::int64_t ranks = o.ranks;
  o.device = Device::kCuda;
  o.ranks = 9;  // more than GPUs can be joined
  EXPECT_THROW(bench_allreduce(o), CannotServe);
  o.device = Device::kCpu;
  o.ranks = ranks;
  EXPECT_TRUE(bench_allreduce(o).ok);
}

}  // namespace
}  // namespace switchyard
