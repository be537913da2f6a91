// SPDX-License-Identifier: Apache-2.0
// Slow ranks, dead ranks, ranks that differ, and calls that break their rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>

#include "switchyard/comm/allreduce_words.h"
#include "tests/comm/allreduce_ranks.h"
#include "tests/support/usage_error.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceStrategy;
using test::ArData;
using test::ArSpec;
using test::Outcomes;
using test::same_bits;
using test::text_of;
using testing::HasSubstr;
using Pattern = ops::AllReduceFusionPattern;

constexpr AllReduceStrategy kStrategies[] = {AllReduceStrategy::kOneShot,
                                             AllReduceStrategy::kTwoShot};

ArSpec spec_of_test(AllReduceStrategy strategy) {
  return {.ranks = 3, .tokens = 7, .hidden = 40, .strategy = strategy};
}

/// Sleeps at one point of every call.
struct SlowAt {
  AllReduceFault point;
  AllReduceHook hook() {
    return {this, [](void* self, AllReduceFault at) {
              if (at == static_cast<SlowAt*>(self)->point)
                std::this_thread::sleep_for(std::chrono::microseconds(300));
            }};
  }
};

// A rank that lingers anywhere, while the others go on to their next calls as far as they can:
// nothing of a call may be overwritten by the calls behind it.
TEST(AllReduceFaults, ASlowRankAtEveryStepSeesItsOwnCallsData) {
  for (AllReduceStrategy strategy : kStrategies)
    for (int slow = 0; slow < 3; ++slow)
      for (int point = 0; point < kNumAllReduceFaults; ++point) {
        ArSpec spec = spec_of_test(strategy);
        constexpr int kCalls = 5;
        std::vector<std::vector<ArData>> data;  // of each call
        std::vector<std::vector<std::uint8_t>> want;
        for (int c = 0; c < kCalls; ++c) {
          spec.seed = std::uint64_t(c) + 10;
          data.push_back(test::run_ranks(spec, {}, 1));
          want.push_back(data.back()[0].outputs());
        }
        SlowAt lingers{AllReduceFault(point)};
        test::expect_all_well(test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
          AllReduceOptions options;
          if (g.rank() == slow) options.hook = lingers.hook();
          AllReduceWorkspace w(g, test::capacity_of(spec), options);
          for (std::size_t c = 0; c < kCalls; ++c) {
            ArData& mine = data[c][std::size_t(g.rank())];
            mine.poison();
            w.run(mine.call());
            EXPECT_TRUE(same_bits(mine.outputs(), want[c]))
                << spec.str() << ", rank " << slow << " slow at point " << point << ", call " << c;
          }
        }));
      }
}

/// Thrown by a rank that was dead until the others noticed.
struct RankDies {};

struct DiesAt {
  AllReduceFault point;
  int last_call;
  const Group* group;
  int call = 0;
  AllReduceHook hook() {
    return {this, [](void* self, AllReduceFault at) {
              auto& d = *static_cast<DiesAt*>(self);
              if (at != d.point || d.call != d.last_call) return;
              test::play_dead(*d.group);
              throw RankDies{};
            }};
  }
};

Outcomes run_until_death(AllReduceStrategy strategy, AllReduceFault point, int last_call) {
  const ArSpec spec = spec_of_test(strategy);
  std::vector<ArData> data = test::make_data(spec);
  return test::on_thread_ranks(3, test::short_serving(), [&](Group& g) {
    DiesAt dies{point, last_call, &g};
    AllReduceWorkspace w(g, test::capacity_of(spec),
                         {.hook = g.rank() == 1 ? dies.hook() : AllReduceHook{}});
    try {
      for (; dies.call < last_call + 2; ++dies.call) w.run(data[std::size_t(g.rank())].call());
    } catch (const RankDies&) {
      return;
    }
    ADD_FAILURE() << "rank " << g.rank() << " noticed nothing";
  });
}

void good_call(AllReduceStrategy strategy) { test::check_ranks(spec_of_test(strategy)); }

TEST(AllReduceFaults, ADeadRankIsNamedWithItsPhaseWithinTheDeadline) {
  struct Case {
    AllReduceStrategy strategy;
    AllReduceFault point;
    const char* phase;
  };
  const std::array all = {
      Case{AllReduceStrategy::kOneShot, AllReduceFault::kRowsWritten, "allreduce contributions"},
      Case{AllReduceStrategy::kTwoShot, AllReduceFault::kRowsReduced, "allreduce owned rows"},
      Case{AllReduceStrategy::kTwoShot, AllReduceFault::kBegin, "allreduce contributions"},
      Case{AllReduceStrategy::kOneShot, AllReduceFault::kAllArrived, "allreduce contributions"},
      Case{AllReduceStrategy::kTwoShot, AllReduceFault::kPublished, "allreduce owned rows"},
      Case{AllReduceStrategy::kTwoShot, AllReduceFault::kReducedShown, "allreduce contributions"}};
  for (const Case& c : all) {
    const Outcomes out = run_until_death(c.strategy, c.point, 1);
    EXPECT_FALSE(out[1]);
    for (std::size_t r : {0U, 2U}) {
      ASSERT_TRUE(out[r]) << c.phase;
      try {
        std::rethrow_exception(out[r]);
      } catch (const PeerError& e) {
        EXPECT_THAT(e.what(), HasSubstr(cat("for rank 1 in ", c.phase, " (deadline 3.0 s")));
        EXPECT_EQ(e.facts().rank, int(r));
        EXPECT_EQ(e.facts().phase, c.phase);
      }
    }
  }
  for (AllReduceStrategy strategy : kStrategies) good_call(strategy);
}

/// One thing in which rank 1 differs from calls of `spec`, and the header's word that tells.
struct Differs {
  std::string_view word;
  const char* what;
  ArSpec spec;
  void (*alter)(ops::AllReduceCall& call);
};

std::vector<Differs> differences() {
  using Call = ops::AllReduceCall;
  using ops::AllReduceQuant;
  ArSpec seven = spec_of_test(AllReduceStrategy::kOneShot);
  seven.pattern = Pattern::kMoEFinalizeARResidualRMSNorm;
  ArSpec six = seven, wide = seven, bare = seven, token = seven, group = seven, blocks = seven;
  six.pattern = Pattern::kMoEReductionARResidualRMSNorm;
  wide.fp32_wire = true;
  bare.factor.reset();
  token.quant = AllReduceQuant::kFp8Token;
  group.quant = AllReduceQuant::kFp8Group;
  blocks.quant = AllReduceQuant::kNvfp4;
  return {{"tokens", "tokens", seven, [](Call& c) { c.shape.tokens = 6; }},
          {"hidden", "hidden", seven, [](Call& c) { c.shape.hidden = 38; }},
          {"dtype", "dtype", seven, [](Call& c) { c.shape.dtype = Dtype::kFp16; }},
          {"strategy", "strategy", seven,
           [](Call& c) { c.shape.strategy = AllReduceStrategy::kTwoShot; }},
          {"rounding", "legacy", seven, [](Call& c) { c.shape.legacy_rounding = true; }},
          {"rounding", "wire", wide, [](Call& c) { c.shape.fp32_wire = false; }},
          {"the outputs", "sum", six, [](Call& c) { c.output = nullptr; }},
          {"the outputs", "residual", seven, [](Call& c) { c.norm->residual_out = nullptr; }},
          {"the outputs", "norm", seven, [](Call& c) { c.norm->norm_out = nullptr; }},
          {"the outputs", "quantised", token, [](Call& c) { c.norm->quant = std::monostate{}; }},
          {"the outputs", "group", group,
           [](Call& c) { std::get<ops::Fp8GroupOut>(c.norm->quant).group = 40; }},
          {"the outputs", "layout of scales", blocks,  // linear ones are the fewest bytes
           [](Call& c) {
             std::get<ops::Nvfp4Out>(c.norm->quant).layout = formats::ScaleLayout::kLinear;
           }},
          {"eps bits", "eps", seven, [](Call& c) { c.norm->rms_eps = 1e-5f; }},
          {"weight_bias bits", "weight_bias", seven, [](Call& c) { c.norm->weight_bias = 1; }},
          {"routed_scaling_factor bits", "of pattern 7", seven,
           [](Call& c) { std::get<ops::MoeFinalizeSource>(c.source).routed_scaling_factor = 2; }},
          {"routed_scaling_factor bits", "of pattern 6", six,
           [](Call& c) { std::get<ops::MoeReductionSource>(c.source).routed_scaling_factor = 2; }},
          {"pattern", "pattern", bare, [](Call& c) {
             c.source =
                 ops::PlainSource{std::get<ops::MoeFinalizeSource>(c.source).shared_expert_output};
           }}};
}

// Every word of the header and every part of it: ranks that differ are told, on both sides of the
// difference.
TEST(AllReduceFaults, RanksThatDifferAreRefused) {
  std::set<std::string_view> words;
  for (const Differs& d : differences()) {
    const std::string where = cat(d.word, ": ", d.what);
    words.insert(d.word);
    std::vector<ArData> data = test::make_data(d.spec);
    const Outcomes out = test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
      AllReduceWorkspace w(g, test::capacity_of(d.spec));
      ops::AllReduceCall call = data[std::size_t(g.rank())].call();
      w.run(call);  // equal calls are served
      if (g.rank() == 1) d.alter(call);
      w.run(call);
    });
    int told = 0;
    for (const std::exception_ptr& o : out) {
      ASSERT_TRUE(o) << where;
      try {
        std::rethrow_exception(o);
      } catch (const UsageError& e) {
        EXPECT_THAT(e.what(), HasSubstr(cat("has ", d.word, " = "))) << where;
        ++told;
      } catch (const PeerError&) {  // heard it from the one that was told
      }
    }
    EXPECT_GE(told, 1) << where;
  }
  EXPECT_EQ(words, std::set<std::string_view>(std::begin(kAllReduceWordNames),
                                              std::end(kAllReduceWordNames)));
  good_call(AllReduceStrategy::kOneShot);
}

TEST(AllReduceFaults, RanksWhoseScalesDifferAreRefused) {
  struct Case {
    Pattern pattern;
    void (*alter)(ops::NormArgs& norm, const float* other);
  };
  const Case cases[] = {
      {Pattern::kARResidualRMSNormOutFP8Quant,
       [](ops::NormArgs& n, const float* s) { std::get<ops::Fp8StaticOut>(n.quant).scale = {s}; }},
      {Pattern::kARResidualRMSNormOutFP4Quant,
       [](ops::NormArgs& n, const float* s) { std::get<ops::Nvfp4Out>(n.quant).scale = {s}; }}};
  for (const Case& c : cases) {
    ArSpec spec = spec_of_test(AllReduceStrategy::kTwoShot);
    spec.pattern = c.pattern;
    std::vector<ArData> data = test::make_data(spec);
    const float other = 17;
    const Outcomes out = test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
      AllReduceWorkspace w(g, test::capacity_of(spec));
      ops::AllReduceCall call = data[std::size_t(g.rank())].call();
      w.run(call);  // equal scales are served
      if (g.rank() == 1) c.alter(*call.norm, &other);
      w.run(call);
    });
    int told = 0;
    for (const std::exception_ptr& o : out) {
      ASSERT_TRUE(o) << spec.str();
      told += int(text_of<UsageError>(o).find("has scale bits = ") != std::string::npos);
    }
    EXPECT_GE(told, 1) << spec.str();
  }
  good_call(AllReduceStrategy::kTwoShot);
}

// What is no error of the library's, from a hook or a thread, ends the others' waits too.
TEST(AllReduceFaults, AnyExceptionEndsTheOthersWaits) {
  const ArSpec spec = spec_of_test(AllReduceStrategy::kOneShot);
  std::vector<ArData> data = test::make_data(spec);
  const auto start = std::chrono::steady_clock::now();
  const Outcomes out = test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
    AllReduceHook hook{nullptr, [](void*, AllReduceFault at) {
                         if (at == AllReduceFault::kRowsWritten)
                           throw std::runtime_error("out of luck");
                       }};
    AllReduceWorkspace w(g, test::capacity_of(spec),
                         {.hook = g.rank() == 2 ? hook : AllReduceHook{}});
    w.run(data[std::size_t(g.rank())].call());
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_EQ(text_of<std::runtime_error>(out[2]), "out of luck");
  for (std::size_t r : {0U, 1U})
    EXPECT_THAT(text_of<PeerError>(out[r]), HasSubstr("rank 2 gave up (out of luck)"));
  good_call(AllReduceStrategy::kOneShot);
}

TEST(AllReduceFaults, CreationFailsOnEveryRankOrNone) {
  const ArSpec spec = spec_of_test(AllReduceStrategy::kOneShot);
  const Outcomes out = test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
    AllReduceCapacity c = test::capacity_of(spec);
    if (g.rank() == 2) c.max_tokens = 9;
    AllReduceWorkspace w(g, c);
  });
  for (const std::exception_ptr& o : out)
    EXPECT_THAT(text_of<UsageError>(o), HasSubstr("max_tokens"));
  const Outcomes illegal = test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
    AllReduceCapacity c = test::capacity_of(spec);
    if (g.rank() == 2) c.hidden = 0;
    AllReduceWorkspace w(g, c);
  });
  for (const std::exception_ptr& o : illegal)
    EXPECT_THAT(text_of<UsageError>(o), HasSubstr("rank 2: allreduce workspace: hidden = 0"));
  good_call(AllReduceStrategy::kOneShot);
}

/// The error of one rank alone whose call is altered; a good call on the same workspace follows.
std::string error_of(const ArSpec& spec, const std::function<void(ops::AllReduceCall&)>& alter) {
  std::string text;
  test::expect_all_well(test::on_thread_ranks(1, test::long_deadlines(), [&](Group& g) {
    ArData data(spec, 0);
    AllReduceWorkspace w(g, test::capacity_of(spec));
    w.run(data.call());
    const auto want = data.outputs();
    ops::AllReduceCall call = data.call();
    alter(call);
    text = test::usage_error_of([&] { w.run(call); });
    data.poison();
    w.run(data.call());
    EXPECT_TRUE(same_bits(data.outputs(), want));
  }));
  return text;
}

TEST(AllReduceFaults, CallsThatBreakTheirRulesAreRefused) {
  ArSpec spec{.pattern = Pattern::kMoEFinalizeARResidualRMSNorm,
              .ranks = 1,
              .quant = ops::AllReduceQuant::kNvfp4};
  using Call = ops::AllReduceCall;
  auto finalize = [](Call& c) -> ops::MoeFinalizeSource& {
    return std::get<ops::MoeFinalizeSource>(c.source);
  };
  auto nvfp4 = [](Call& c) -> ops::Nvfp4Out& { return std::get<ops::Nvfp4Out>(c.norm->quant); };
  std::vector<std::int32_t> index(15, -1);
  auto with_index = [&](std::int32_t row) {
    index[7] = row;
    return [&](Call& c) { finalize(c).expanded_idx_to_permuted_idx = index.data(); };
  };
  EXPECT_THAT(error_of(spec, with_index(-2)), HasSubstr("choice 1 of token 2 is row -2"));
  EXPECT_THAT(error_of(spec, with_index(18)), HasSubstr("legal are 0..17 and -1"));
  EXPECT_THAT(error_of(spec, [&](Call& c) { nvfp4(c).scale_out = nullptr; }),
              HasSubstr("a quant_out without a scale_out"));
  EXPECT_THAT(error_of(spec, [&](Call& c) { nvfp4(c).quant_out = nullptr; }),
              HasSubstr("a scale_out without a quant_out"));
  EXPECT_THAT(error_of(spec, [&](Call& c) { nvfp4(c).scale.value = nullptr; }),
              HasSubstr("encode scale is null"));
  static const float zero = 0;
  EXPECT_THAT(error_of(spec, [&](Call& c) { nvfp4(c).scale.value = &zero; }),
              HasSubstr("encode scale is 0"));
  EXPECT_THAT(
      error_of(spec,
               [&](Call& c) { finalize(c).scale_factor_state = ops::RoutedFactor::kIncluded; }),
      HasSubstr("routed_scaling_factor = 2.5 beside weights that include it"));
  EXPECT_THAT(error_of(spec, [&](Call& c) { finalize(c).scale_dtype = Dtype::kFp16; }),
              HasSubstr("expert_scale_factor is fp16 beside rows of bf16"));
  EXPECT_THAT(error_of(spec, [&](Call& c) { finalize(c).rows = nullptr; }),
              HasSubstr("expert rows are null"));
  EXPECT_THAT(error_of(spec, [](Call& c) { c.norm->residual_in = nullptr; }),
              HasSubstr("residual_in is null"));
  EXPECT_THAT(error_of(spec, [](Call& c) { c.norm->rms_gamma = nullptr; }),
              HasSubstr("rms_gamma is null"));
  EXPECT_THAT(error_of(spec, [](Call& c) { c.norm->rms_eps = -1; }), HasSubstr("rms_eps = -1"));
  EXPECT_THAT(error_of(spec, [](Call& c) { c.shape.tokens = -1; }), HasSubstr("tokens = -1"));
  EXPECT_THAT(error_of(spec, [](Call& c) { c.shape.hidden = 63; }),
              HasSubstr("hidden = 63 is odd"));
  EXPECT_THAT(error_of(spec, [](Call& c) { c.shape.fp32_wire = c.shape.legacy_rounding = true; }),
              HasSubstr("exclude each other"));
  EXPECT_THAT(error_of(spec,
                       [](Call& c) {
                         c.norm->residual_out = c.norm->norm_out = nullptr;
                         c.norm->quant = std::monostate{};
                       }),
              HasSubstr("has no output"));
  EXPECT_THAT(error_of({.ranks = 1}, [](Call& c) { c.source = ops::PlainSource{}; }),
              HasSubstr("input is null"));
}

// The size is checked where it is used, and counts what travels, not padded expert rows.
TEST(AllReduceFaults, TheCapacityIsAlwaysChecked) {
  ArSpec spec = spec_of_test(AllReduceStrategy::kTwoShot);
  std::vector<ArData> data = test::make_data(spec);
  AllReduceCapacity small = test::capacity_of(spec);
  small.max_tokens = 6;
  const Outcomes out = test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
    AllReduceWorkspace w(g, small);
    w.run(data[std::size_t(g.rank())].call());
  });
  for (const std::exception_ptr& o : out)
    EXPECT_THAT(text_of<UsageError>(o), HasSubstr("split the batch or build a larger one"));
  good_call(AllReduceStrategy::kTwoShot);
}

}  // namespace
}  // namespace switchyard::comm
