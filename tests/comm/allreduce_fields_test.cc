// SPDX-License-Identifier: Apache-2.0
// Each field of every parameter struct of the fused all-reduce, set to what the base call does not
// have: the outputs must change, and match the oracle. A field without a case fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "switchyard/comm/device_allreduce.h"
#include "switchyard/ops/allreduce_norm/allreduce_peers.h"
#include "tests/comm/allreduce_ranks.h"
#include "tests/support/usage_error.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceQuant;
using test::ArData;
using test::ArSpec;
using Pattern = ops::AllReduceFusionPattern;
using Call = ops::AllReduceCall;

// How many fields a struct has; a binding of another number does not compile.
template <class T>
int fields_of();
template <>
int fields_of<ops::CallShape>() {
  [[maybe_unused]] const auto [a, b, c, d, e, f] = ops::CallShape{};
  return 6;
}
template <>
int fields_of<ops::NormArgs>() {
  [[maybe_unused]] const auto [a, b, c, d, e, f, g] = ops::NormArgs{};
  return 7;
}
template <>
int fields_of<ops::PlainSource>() {
  [[maybe_unused]] const auto [a] = ops::PlainSource{};
  return 1;
}
template <>
int fields_of<ops::MoeReductionSource>() {
  [[maybe_unused]] const auto [a, b, c, d, e] = ops::MoeReductionSource{};
  return 5;
}
template <>
int fields_of<ops::MoeFinalizeSource>() {
  [[maybe_unused]] const auto [a, b, c, d, e, f, g, h, i] = ops::MoeFinalizeSource{};
  return 9;
}
template <>
int fields_of<ops::Fp8StaticOut>() {
  [[maybe_unused]] const auto [a, b] = ops::Fp8StaticOut{};
  return 2;
}
template <>
int fields_of<ops::Nvfp4Out>() {
  [[maybe_unused]] const auto [a, b, c, d] = ops::Nvfp4Out{};
  return 4;
}
template <>
int fields_of<ops::Fp8GroupOut>() {
  [[maybe_unused]] const auto [a, b, c] = ops::Fp8GroupOut{};
  return 3;
}
template <>
int fields_of<ops::Fp8TokenOut>() {
  [[maybe_unused]] const auto [a, b] = ops::Fp8TokenOut{};
  return 2;
}

/// One field, and what sets it apart.
struct FieldCase {
  std::string owner, field;
  ArSpec base;
  // Exactly one: another problem, or the same data with another call.
  std::function<void(ArSpec&)> other_problem{};
  std::function<void(Call&, ArData&)> other_call{};
};

ops::MoeFinalizeSource& finalize(Call& c) { return std::get<ops::MoeFinalizeSource>(c.source); }
ops::MoeReductionSource& reduction(Call& c) { return std::get<ops::MoeReductionSource>(c.source); }

ArSpec plain(Pattern p = Pattern::kARResidualRMSNorm) { return {.pattern = p, .ranks = 3}; }
ArSpec moe(Pattern p) { return {.pattern = p, .ranks = 3, .shared = true}; }

std::vector<FieldCase> common_cases() {
  const ArSpec base = moe(Pattern::kMoEFinalizeARResidualRMSNorm);
  return {
      {"shape", "tokens", base, [](ArSpec& s) { s.tokens = 6; }},
      {"shape", "hidden", base, [](ArSpec& s) { s.hidden = 66; }},
      {"shape", "dtype", base, [](ArSpec& s) { s.dtype = Dtype::kFp16; }},
      {"shape", "fp32_wire", base, [](ArSpec& s) { s.fp32_wire = true; }},
      {"shape", "legacy_rounding", base, [](ArSpec& s) { s.legacy_rounding = true; }},
      {"norm",
       "residual_in",
       base,
       {},
       [](Call& c, ArData& d) {
         // The same on all ranks: the rows that all have, from the second one on.
         std::rotate(d.residual.begin(), d.residual.begin() + 64 * 2, d.residual.end());
         c.norm->residual_in = d.residual.data();
       }},
      {"norm",
       "rms_gamma",
       base,
       {},
       [](Call& c, ArData& d) { c.norm->rms_gamma = d.residual.data(); }},
      {"norm", "rms_eps", base, [](ArSpec& s) { s.eps = 0.5f; }},
      {"norm", "weight_bias", base, [](ArSpec& s) { s.weight_bias = 1; }},
      {"norm", "residual_out", base, [](ArSpec& s) { s.want_residual = false; }},
      {"norm", "norm_out", base, [](ArSpec& s) { s.want_norm = false; }},
      {"norm", "quant", base, [](ArSpec& s) { s.quant = AllReduceQuant::kFp8Token; }},
      {"plain",
       "input",
       plain(),
       {},
       [](Call& c, ArData& d) { c.source = ops::PlainSource{d.shared.data()}; }},
  };
}

std::vector<FieldCase> moe_cases() {
  const ArSpec six = moe(Pattern::kMoEReductionARResidualRMSNorm);
  const ArSpec seven = moe(Pattern::kMoEFinalizeARResidualRMSNorm);
  return {
      {"reduction",
       "active_experts_token_input",
       six,
       {},
       [](Call& c, ArData& d) {
         // One row further: expert-major rows of the next token.
         reduction(c).active_experts_token_input = d.rows.data() + 64 * 2;
         reduction(c).num_experts = 2;
         for (float& w : d.weights) w = 0;
         d.weights[0] = 0.5f;
       }},
      {"reduction",
       "scale_input",
       six,
       {},
       [](Call& c, ArData& d) {
         reduction(c).scale_input = d.weights.data();
         for (float& w : d.weights) w *= 2;
       }},
      {"reduction", "num_experts", six, {}, [](Call& c, ArData&) { reduction(c).num_experts = 2; }},
      {"reduction", "token_input", six, [](ArSpec& s) { s.shared = false; }},
      {"reduction", "routed_scaling_factor", six, [](ArSpec& s) { s.factor = 0.75f; }},
      {"finalize",
       "rows",
       seven,
       {},
       [](Call& c, ArData& d) {
         for (std::size_t i = 1; i < d.rows.size(); i += 2) d.rows[i] ^= 0x80;  // signs
         finalize(c).rows = d.rows.data();
       }},
      {"finalize", "expanded_idx_to_permuted_idx", seven, [](ArSpec& s) { s.all_dropped = true; }},
      {"finalize", "top_k", seven, [](ArSpec& s) { s.top_k = 2; }},
      {"finalize", "expert_scale_factor", seven, [](ArSpec& s) { s.weights = false; }},
      {"finalize", "scale_dtype", seven, [](ArSpec& s) { s.weights_in_t = true; }},
      {"finalize", "routed_scaling_factor", seven, [](ArSpec& s) { s.factor.reset(); }},
      {"finalize", "shared_expert_output", seven, [](ArSpec& s) { s.shared = false; }},
  };
}

std::vector<FieldCase> quant_cases() {
  const ArSpec fp8 = plain(Pattern::kARResidualRMSNormOutFP8Quant);
  const ArSpec fp4 = plain(Pattern::kARResidualRMSNormOutFP4Quant);
  const ArSpec group = plain(Pattern::kARResidualRMSNormOutPerTokenGroupFP8PackedQuant);
  return {
      {"fp8", "scale", fp8, [](ArSpec& s) { s.decode_scale = 0.02f; }},
      {"nvfp4", "scale", fp4, [](ArSpec& s) { s.encode_scale = 33; }},
      {"nvfp4", "layout", fp4, [](ArSpec& s) { s.layout = formats::ScaleLayout::k8x4; }},
      {"group", "group", group, [](ArSpec& s) { s.group = 24; }},
  };
}

void check_case(const FieldCase& c) {
  const std::string where = c.owner + "." + c.field;
  const auto before = test::check_ranks(c.base)[0].outputs();
  ArSpec spec = c.base;
  if (c.other_problem) c.other_problem(spec);
  std::vector<ArData> data = test::make_data(spec);
  std::vector<Call> calls;
  for (ArData& d : data) {
    calls.push_back(d.call());
    if (c.other_call) c.other_call(calls.back(), d);
  }
  for (ops::AllReduceStrategy strategy :
       {ops::AllReduceStrategy::kOneShot, ops::AllReduceStrategy::kTwoShot}) {
    test::expect_all_well(test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
      AllReduceWorkspace w(g, test::capacity_of(spec));
      const auto r = std::size_t(g.rank());
      data[r].poison();
      calls[r].shape.strategy = strategy;
      w.run(calls[r]);
    }));
    // residual_in is the same on all ranks by contract, so only rank 0 is compared.
    if (spec.want_residual) {
      EXPECT_EQ(test::compare_with_oracle(spec, calls, data[0]), "") << where;
    }
    EXPECT_FALSE(test::same_bits(data[0].outputs(), before)) << where << " changed nothing";
  }
}

TEST(AllReduceFields, EachChangesTheOutputsAsInTheOracle) {
  for (const auto& cases : {common_cases(), moe_cases(), quant_cases()})
    for (const FieldCase& c : cases) check_case(c);
}

// Fields that leave the outputs as they are have a test of their own, named here.
const std::set<std::string> kElsewhere = {"shape.strategy",               // TheStrategyArrives
                                          "finalize.num_rows",            // StatesAndLimitsAreRead
                                          "finalize.scale_factor_state",  // StatesAndLimitsAreRead
                                          "fp8.quant_out",
                                          "nvfp4.quant_out",
                                          "nvfp4.scale_out",
                                          "group.quant_out",
                                          "group.scale_out",
                                          "token.quant_out",
                                          "token.scale_out"};  // every comparison reads them

TEST(AllReduceFields, NoneIsWithoutACase) {
  std::map<std::string, std::set<std::string>> named;
  for (const auto& cases : {common_cases(), moe_cases(), quant_cases()})
    for (const FieldCase& c : cases) named[c.owner].insert(c.field);
  for (const std::string& name : kElsewhere)
    named[name.substr(0, name.find('.'))].insert(name.substr(name.find('.') + 1));
  EXPECT_EQ(int(named["shape"].size()), fields_of<ops::CallShape>());
  EXPECT_EQ(int(named["norm"].size()), fields_of<ops::NormArgs>());
  EXPECT_EQ(int(named["plain"].size()), fields_of<ops::PlainSource>());
  EXPECT_EQ(int(named["reduction"].size()), fields_of<ops::MoeReductionSource>());
  EXPECT_EQ(int(named["finalize"].size()), fields_of<ops::MoeFinalizeSource>());
  EXPECT_EQ(int(named["fp8"].size()), fields_of<ops::Fp8StaticOut>());
  EXPECT_EQ(int(named["nvfp4"].size()), fields_of<ops::Nvfp4Out>());
  EXPECT_EQ(int(named["group"].size()), fields_of<ops::Fp8GroupOut>());
  EXPECT_EQ(int(named["token"].size()), fields_of<ops::Fp8TokenOut>());
}

TEST(AllReduceFields, TheStrategyArrives) {
  for (ops::AllReduceStrategy strategy :
       {ops::AllReduceStrategy::kOneShot, ops::AllReduceStrategy::kTwoShot}) {
    ArSpec spec = plain();
    spec.strategy = strategy;
    std::vector<ArData> data = test::make_data(spec);
    test::expect_all_well(test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
      int reduced = 0;
      const AllReduceHook hook{&reduced, [](void* count, AllReduceFault at) {
                                 *static_cast<int*>(count) +=
                                     at == AllReduceFault::kRowsReduced ? 1 : 0;
                               }};
      AllReduceWorkspace w(g, test::capacity_of(spec), {.hook = hook});
      w.run(data[std::size_t(g.rank())].call());
      EXPECT_EQ(reduced, strategy == ops::AllReduceStrategy::kTwoShot ? 1 : 0);
    }));
  }
}

TEST(AllReduceFields, TheChoiceOfStrategyBetweenGpusIsPure) {
  const AllReduceCost cost{.latency_us = 3, .gbps = 300};
  ops::CallShape shape{.tokens = 4096, .hidden = 8192};
  EXPECT_EQ(cheaper_strategy(shape, 1, cost), ops::AllReduceStrategy::kOneShot);
  EXPECT_EQ(cheaper_strategy(shape, 2, cost), ops::AllReduceStrategy::kTwoShot);
  EXPECT_EQ(cheaper_strategy(shape, 4, cost), ops::AllReduceStrategy::kTwoShot);
  shape.tokens = 1;
  EXPECT_EQ(cheaper_strategy(shape, 2, cost), ops::AllReduceStrategy::kOneShot);
  EXPECT_EQ(cheaper_strategy(shape, 8, cost), ops::AllReduceStrategy::kOneShot);
  shape.strategy = ops::AllReduceStrategy::kTwoShot;
  EXPECT_EQ(cheaper_strategy(shape, 2, cost), ops::AllReduceStrategy::kTwoShot);
}

TEST(AllReduceFields, StatesAndLimitsAreRead) {
  ArSpec spec = moe(Pattern::kMoEFinalizeARResidualRMSNorm);
  ArData data(spec, 0);
  Call call = data.call();
  finalize(call).num_rows = 4;
  EXPECT_THAT(test::usage_error_of([&] { call.check_values(); }), testing::HasSubstr("0..3"));
  call = data.call();
  finalize(call).scale_factor_state = ops::RoutedFactor::kIncluded;
  EXPECT_THAT(test::usage_error_of([&] { call.check(); }), testing::HasSubstr("applied twice"));
  for (std::optional<float> one : {std::optional<float>(), std::optional<float>(1.0f)}) {
    finalize(call).routed_scaling_factor = one;
    call.check();
  }
}

TEST(AllReduceFields, EveryPatternIsReachedAndNamed) {
  for (int value = 0; value < ops::kNumAllReducePatterns; ++value) {
    const Pattern pattern = ops::to_allreduce_pattern(value);
    ArData data({.pattern = pattern}, 0);
    EXPECT_EQ(data.call().pattern(), pattern) << ops::to_string(pattern);
    EXPECT_EQ(int(pattern), value);
  }
  EXPECT_THAT(test::usage_error_of([] { ops::to_allreduce_pattern(12); }),
              testing::HasSubstr("0..11"));
}

TEST(AllReduceFields, SupportsAnswersWithAReason) {
  using Q = ops::AllReduceQuestion;
  const Q good{.pattern = Pattern::kARResidualRMSNormFP4Quant, .ranks = 3, .hidden = 90};
  EXPECT_TRUE(ops::supports(good).eligible());
  auto reason = [&](auto alter) {
    Q q = good;
    alter(q);
    return ops::supports(q).reason();
  };
  EXPECT_EQ(reason([](Q& q) { q.hidden = 91; }), Reject::kShapeUnaligned);
  EXPECT_EQ(reason([](Q& q) { q.hidden = 0; }), Reject::kShapeUnaligned);
  EXPECT_EQ(reason([](Q& q) { q.ranks = 0; }), Reject::kTopologyUnsupported);
  EXPECT_EQ(reason([](Q& q) { q.ranks = 257; }), Reject::kTopologyUnsupported);
  Q on_gpus = good;
  on_gpus.device = Device::kCuda;
  EXPECT_TRUE(ops::supports(on_gpus).eligible());
  on_gpus.ranks = ops::kMaxDeviceRanks + 1;
  EXPECT_EQ(ops::supports(on_gpus).reason(), Reject::kTopologyUnsupported);
  on_gpus.ranks = 2;
  on_gpus.hidden = ops::kMaxDeviceHidden + 2;
  EXPECT_EQ(ops::supports(on_gpus).reason(), Reject::kShapeUnaligned);
  EXPECT_EQ(reason([](Q& q) { q.quant = AllReduceQuant::kFp8Token; }), Reject::kQuantUnsupported);
  for (int value = 0; value < ops::kNumAllReducePatterns; ++value)
    for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kFp16})
      EXPECT_TRUE(
          ops::supports({.pattern = Pattern(value), .dtype = dtype, .ranks = 1, .hidden = 2})
              .eligible());
}

}  // namespace
}  // namespace switchyard::comm
