// SPDX-License-Identifier: Apache-2.0
// Each field of every parameter struct of the fused all-reduce, set to what the base call does not
// have: the outputs must change, and match the oracle. A field without a case fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "switchyard/comm/device_allreduce.h"
#include "switchyard/ops/allreduce_norm/allreduce_peers.h"
#include "tests/comm/allreduce_field_cases.h"
#include "tests/comm/allreduce_ranks.h"
#include "tests/support/usage_error.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceQuant;
using test::ArData;
using test::ArSpec;
using test::Call;
using test::FieldCase;
using test::finalize;
using test::moe;
using test::Pattern;
using test::plain;

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

void check_case(const FieldCase& c) {
  const std::string where = c.owner + "." + c.field;
  const auto before = test::check_ranks(c.base)[0].outputs();
  test::FieldRun run(c);
  const ArSpec& spec = run.spec;
  std::vector<ArData>& data = run.data;
  std::vector<Call>& calls = run.calls;
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
  for (const FieldCase& c : test::field_cases()) check_case(c);
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
  for (const FieldCase& c : test::field_cases()) named[c.owner].insert(c.field);
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
