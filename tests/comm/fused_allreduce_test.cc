// SPDX-License-Identifier: Apache-2.0
// The fused all-reduce on thread ranks: against the oracle, and bit for bit against itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "tests/cases/allreduce_matrix.h"
#include "tests/cases/moe_case.h"
#include "tests/comm/allreduce_ranks.h"
#include "tests/meter/allocation_meter.h"
#include "tests/support/soak.h"

namespace switchyard::comm {

/// Reaches what no caller may touch.
struct AllReduceProbe {
  static std::byte& guard(AllReduceWorkspace& w, std::uint32_t bank, std::int64_t at) {
    return w.memory_->slice(w.group_.rank())[w.layout_.bank(bank) + w.layout_.bank_bytes + at];
  }
  /// Before the first call: this rank's flags of the two-shot's second phase.
  static void set_owned_flags(AllReduceWorkspace& w, std::uint32_t value) {
    constexpr int kOwned = 1;
    for (int r = 0; r < w.group_.size(); ++r) w.flag(w.group_.rank(), kOwned, r).store(value);
  }
};

namespace {

using ops::AllReduceQuant;
using ops::AllReduceStrategy;
using test::ArData;
using test::ArPayload;
using test::ArSpec;
using test::check_ranks;
using test::run_ranks;
using test::same_bits;
using Pattern = ops::AllReduceFusionPattern;

using test::ArKind;
using test::kArKinds;
using test::kArStrategies;

TEST(FusedAllReduce, EveryPatternMatchesTheOracle) {
  const std::vector<int> levels = test::ar_levels(4);
  int ran = 0;
  for (const std::vector<int>& row : test::pairwise(levels)) {
    const ArSpec spec = test::ar_spec(row);
    if (!test::affordable(spec)) continue;
    // Half of the rows on the portable twin, half on the best one of the machine.
    check_ranks(spec, {.isa = ran++ % 2 == 0 ? CpuIsa::kPortable : test::runnable_tiers().back()});
    if (HasFailure()) return;
  }
  EXPECT_GT(ran, 50);
}

/// Elements of the norm that are numbers other than 0.
std::int64_t numbers_in(const ArSpec& spec, const ArData& data) {
  std::int64_t out = 0;
  for (std::int64_t i = 0; i < spec.tokens * spec.hidden; ++i) {
    const float x = load_element(spec.dtype, data.norm_out.bytes.data(), i);
    out += std::isfinite(x) && x != 0 ? 1 : 0;
  }
  return out;
}

// What the strategies, the threads, the instruction sets and the numbers of calls must not change.
void expect_same_bits_everywhere(ArSpec spec, ThreadPool& pool) {
  const auto want = run_ranks(spec)[0].outputs();
  const bool normal = spec.payload == ArPayload::kNormal;
  for (AllReduceStrategy strategy :
       {AllReduceStrategy::kOneShot, AllReduceStrategy::kTwoShot, AllReduceStrategy::kAuto})
    for (CpuIsa isa : test::runnable_tiers()) {
      spec.strategy = strategy;
      std::vector<ArData> got = run_ranks(spec, {.isa = isa, .pool = &pool}, 1);
      test::expect_equal_ranks(spec, got);
      EXPECT_TRUE(same_bits(got[0].outputs(), want)) << spec.str() << " " << to_string(isa);
      if (!normal) continue;
      EXPECT_EQ(test::compare_with_oracle(spec, test::calls_of(got), got[0]), "")
          << spec.str() << " " << to_string(isa);
      if (got[0].norm_out.size > 0) {
        EXPECT_GT(numbers_in(spec, got[0]), spec.tokens * spec.hidden * 9 / 10)
            << spec.str() << " " << to_string(isa);
      }
    }
}

TEST(FusedAllReduce, BitsDependOnNothingButTheInputs) {
  ThreadPool pool(3);
  for (const ArKind& kind : kArKinds)
    for (bool legacy : {false, true})
      for (ArPayload payload : {ArPayload::kNormal, ArPayload::kSpecial})
        expect_same_bits_everywhere({.pattern = kind.pattern,
                                     .ranks = 3,
                                     .tokens = 11,
                                     .hidden = 200,
                                     .legacy_rounding = legacy,
                                     .quant = kind.quant,
                                     .payload = payload},
                                    pool);
}

// The same rows among other tokens: row m of many is row 0 of one.
TEST(FusedAllReduce, ATokenDoesNotDependOnTheOthers) {
  for (AllReduceStrategy strategy : kArStrategies) {
    ArSpec many{.tokens = 67, .hidden = 7168, .strategy = strategy};
    if (!test::is_soak()) many.hidden = 720;
    const std::vector<ArData> all = run_ranks(many, {}, 1);
    ArSpec one = many;
    one.tokens = 1;
    const std::vector<ArData> alone = run_ranks(one, {}, 1);
    const std::size_t bytes = std::size_t(many.hidden) * 2;
    auto head = [&](const test::ArOutput& o) {
      return std::vector<std::uint8_t>(o.bytes.begin(), o.bytes.begin() + std::ptrdiff_t(bytes));
    };
    EXPECT_TRUE(same_bits(head(all[0].norm_out), head(alone[0].norm_out)));
    EXPECT_TRUE(same_bits(head(all[0].residual_out), head(alone[0].residual_out)));
  }
}

// The patterns without norm_out give the codes of those with it.
TEST(FusedAllReduce, PatternsWithoutNormOutGiveTheSameCodes) {
  constexpr std::pair<Pattern, Pattern> kPairs[] = {
      {Pattern::kARResidualRMSNormFP8Quant, Pattern::kARResidualRMSNormOutFP8Quant},
      {Pattern::kARResidualRMSNormFP4Quant, Pattern::kARResidualRMSNormOutFP4Quant},
      {Pattern::kARResidualRMSNormPerTokenGroupFP8PackedQuant,
       Pattern::kARResidualRMSNormOutPerTokenGroupFP8PackedQuant},
      {Pattern::kARResidualRMSNormDynamicFP8Quant, Pattern::kARResidualRMSNormOutDynamicFP8Quant}};
  for (const auto& [without, with] : kPairs)
    for (AllReduceStrategy strategy : kArStrategies)
      for (bool residual : {true, false}) {
        ArSpec spec{.pattern = with, .ranks = 3, .tokens = 9, .hidden = 88, .strategy = strategy};
        const std::vector<ArData> want = check_ranks(spec);
        spec.pattern = without;
        spec.want_residual = residual;  // without it the owner of a row sends its codes
        for (const ArData& got : run_ranks(spec)) {
          EXPECT_TRUE(same_bits(got.quant_out.contents(), want[0].quant_out.contents()))
              << spec.str();
          EXPECT_TRUE(same_bits(got.scale_out.contents(), want[0].scale_out.contents()))
              << spec.str();
        }
      }
}

bool untouched(const test::ArOutput& o) {
  return std::all_of(o.bytes.begin(), o.bytes.begin() + std::ptrdiff_t(o.size),
                     [](std::uint8_t b) { return b == 0xcd; });
}

// Any subset of outputs has the bits of all of them; what is not asked for is not written.
TEST(FusedAllReduce, AnySubsetOfOutputs) {
  for (Pattern pattern :
       {Pattern::kMoEReductionARResidualRMSNorm, Pattern::kMoEFinalizeARResidualRMSNorm})
    for (AllReduceStrategy strategy : kArStrategies)
      for (unsigned mask = 1; mask < 16; ++mask) {
        ArSpec all{.pattern = pattern,
                   .ranks = 3,
                   .tokens = 7,
                   .hidden = 48,
                   .strategy = strategy,
                   .quant = AllReduceQuant::kNvfp4};
        const ArData want = run_ranks(all)[0];
        ArSpec some = all;
        some.want_output = (mask & 1) != 0 && pattern == Pattern::kMoEReductionARResidualRMSNorm;
        some.want_residual = (mask & 2) != 0;
        some.want_norm = (mask & 4) != 0;
        if ((mask & 8) == 0) some.quant = AllReduceQuant::kNone;
        if (mask == 1 && !some.want_output) continue;
        const ArData got = run_ranks(some)[1];
        auto expect = [&](bool wanted, const test::ArOutput& a, const test::ArOutput& b) {
          EXPECT_TRUE(wanted ? same_bits(a.contents(), b.contents()) : untouched(a)) << some.str();
        };
        expect(some.want_output, got.output, want.output);
        expect(some.want_residual, got.residual_out, want.residual_out);
        expect(some.want_norm, got.norm_out, want.norm_out);
        if (mask & 8) expect(true, got.quant_out, want.quant_out);
        if (mask & 8) expect(true, got.scale_out, want.scale_out);
      }
}

// The oracle of an altered problem: each alteration must be seen.
TEST(FusedAllReduce, ControlsExceedTheTolerance) {
  ArSpec spec{.pattern = Pattern::kMoEFinalizeARResidualRMSNorm,
              .ranks = 3,
              .tokens = 6,
              .hidden = 128,
              .quant = AllReduceQuant::kFp8Static};
  std::vector<ArData> data = check_ranks(spec);
  auto seen = [&](const char* what, auto alter) {
    std::vector<ops::AllReduceCall> calls = test::calls_of(data);
    for (std::size_t r = 0; r < calls.size(); ++r)
      alter(calls[r], std::get<ops::MoeFinalizeSource>(calls[r].source), r);
    EXPECT_NE(test::compare_with_oracle(spec, calls, data[0]), "") << what;
  };
  using Call = ops::AllReduceCall;
  using Source = ops::MoeFinalizeSource;
  const std::vector<ops::AllReduceCall> calls = test::calls_of(data);
  seen("a rank's rows counted twice, another's not", [&](Call& c, Source&, std::size_t r) {
    if (r == 1) c.source = calls[0].source;
  });
  seen("the shared expert once instead of on every rank", [](Call&, Source& s, std::size_t r) {
    if (r > 0) s.shared_expert_output = nullptr;
  });
  seen("no factor", [](Call&, Source& s, std::size_t) { s.routed_scaling_factor.reset(); });
  std::vector<std::vector<std::uint8_t>> scaled;
  for (const ArData& d : data) {
    scaled.push_back(d.shared);
    for (std::int64_t i = 0; i < spec.tokens * spec.hidden; ++i)
      store_element(spec.dtype, scaled.back().data(), i,
                    *spec.factor * load_element(spec.dtype, d.shared.data(), i));
  }
  seen("the factor behind the shared expert",
       [&](Call&, Source& s, std::size_t r) { s.shared_expert_output = scaled[r].data(); });
  std::vector<std::int32_t> shifted = data[0].index;
  std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
  seen("choices one off", [&](Call&, Source& s, std::size_t r) {
    if (r == 0) s.expanded_idx_to_permuted_idx = shifted.data();
  });
  seen("weights of one", [](Call&, Source& s, std::size_t) { s.expert_scale_factor = nullptr; });
  seen("1 + gamma", [](Call& c, Source&, std::size_t) { c.norm->weight_bias = 1; });
  seen("another epsilon", [](Call& c, Source&, std::size_t) { c.norm->rms_eps = 0.3f; });
  seen("the scale's other direction", [&](Call& c, Source&, std::size_t) {
    static const float inverse = 1 / 0.0131f;
    std::get<ops::Fp8StaticOut>(c.norm->quant).scale.value = &inverse;
  });
}

// fp32_wire, legacy rounding and the default are three contracts, told apart by one element each.
TEST(FusedAllReduce, RoundingsTellApart) {
  const float values[4] = {256, 1, -256, 0};  // in bf16 256 + 1 is 256
  auto sum = [&](bool fp32_wire, bool legacy, const float* x) {
    float out = 0;
    test::expect_all_well(test::on_thread_ranks(4, test::long_deadlines(), [&](Group& g) {
      AllReduceWorkspace w(g, {4, 1, 1, Dtype::kBf16, fp32_wire});
      std::uint16_t in = float_to_bf16(x[g.rank()]), got = 0xdead;
      allreduce_fusion(
          w,
          ops::AllReduceArgs{
              {1, 1, Dtype::kBf16, AllReduceStrategy::kOneShot, fp32_wire, legacy}, {&in}, &got});
      if (g.rank() == 2) out = bf16_to_float(got);
    }));
    return out;
  };
  EXPECT_EQ(sum(false, true, values), 0.0f);
  EXPECT_EQ(sum(false, false, values), 1.0f);
  EXPECT_EQ(sum(true, false, values), 1.0f);
}

TEST(FusedAllReduce, RoundsAContributionOnTheWireOnlyBetweenRanks) {
  // One rank: rows {256, 1} and a shared -256 give 1; two ranks round 257 - 256 = 1 too, but
  // {256, 1} without the shared expert to 256, unless the wire is fp32.
  auto run = [&](int ranks, bool fp32_wire) {
    std::vector<float> out(std::size_t(ranks), -1);
    test::expect_all_well(test::on_thread_ranks(ranks, test::long_deadlines(), [&](Group& g) {
      AllReduceWorkspace w(g, {ranks, 1, 1, Dtype::kBf16, fp32_wire});
      const std::uint16_t rows[2] = {float_to_bf16(256), float_to_bf16(1)};
      const std::int32_t index[2] = {g.rank() == 0 ? 0 : -1, g.rank() == 0 ? 1 : -1};
      const std::uint16_t residual = float_to_bf16(-256), gamma = float_to_bf16(1);
      std::uint16_t got = 0xdead;
      allreduce_fusion(
          w, ops::MoEFinalizeArgs{
                 {1, 1, Dtype::kBf16, AllReduceStrategy::kOneShot, fp32_wire},
                 {.rows = rows, .num_rows = 2, .expanded_idx_to_permuted_idx = index, .top_k = 2},
                 {.residual_in = &residual, .rms_gamma = &gamma, .residual_out = &got}});
      out[std::size_t(g.rank())] = bf16_to_float(got);
    }));
    for (float of_rank : out) EXPECT_EQ(of_rank, out[0]);
    return out[0];
  };
  EXPECT_EQ(run(1, false), 1.0f);
  EXPECT_EQ(run(2, false), 0.0f);
  EXPECT_EQ(run(2, true), 1.0f);
}

TEST(FusedAllReduce, ACallAllocatesNothing) {
  for (AllReduceStrategy strategy : kArStrategies) {
    ArSpec spec{.pattern = Pattern::kMoEFinalizeARResidualRMSNorm,
                .tokens = 9,
                .strategy = strategy,
                .quant = AllReduceQuant::kNvfp4};
    std::vector<ArData> data = test::make_data(spec);
    test::expect_all_well(test::on_thread_ranks(2, test::long_deadlines(), [&](Group& g) {
      ThreadPool pool(2);
      AllReduceWorkspace w(g, test::capacity_of(spec), {.pool = &pool});
      const ops::AllReduceCall call = data[std::size_t(g.rank())].call();
      w.run(call);
      g.barrier("warm");
      const std::int64_t before = test::allocation_count();
      w.run(call);
      w.run(call);
      EXPECT_EQ(test::allocation_count(), before);
      g.barrier("measured");
    }));
  }
}

// Sequence numbers wrap; several workspaces of one group keep apart; M changes from call to call.
TEST(FusedAllReduce, AlternatingCallsAcrossTheWrapOfTheSequence) {
  const int rounds = test::subset_or_full(60, 20000);
  ArSpec big{.ranks = 3, .tokens = 13, .hidden = 66};
  std::vector<ArSpec> specs;
  std::vector<std::vector<std::uint8_t>> want;
  std::vector<std::vector<ArData>> data;
  for (std::int64_t tokens : {13, 0, 1, 4, 12})
    for (AllReduceStrategy strategy : kArStrategies) {
      ArSpec s = big;
      s.tokens = tokens;
      s.strategy = strategy;
      s.seed = std::uint64_t(tokens) + 1;
      specs.push_back(s);
      data.push_back(run_ranks(s, {}, 1));
      want.push_back(data.back()[0].outputs());
    }
  test::expect_all_well(test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
    AllReduceWorkspace first(g, test::capacity_of(big), {.first_sequence = 0xfffffff0U});
    AllReduceWorkspace second(g, test::capacity_of(big));
    for (int i = 0; i < rounds; ++i) {
      const std::size_t which = std::size_t(i * 7) % specs.size();
      ArData& mine = data[which][std::size_t(g.rank())];
      mine.poison();
      (i % 3 == 0 ? second : first).run(mine.call());
      ASSERT_TRUE(same_bits(mine.outputs(), want[which])) << specs[which].str() << " round " << i;
    }
    EXPECT_TRUE(first.canaries_intact() && second.canaries_intact());
  }));
}

TEST(FusedAllReduce, AByteInAGuardIsSeen) {
  const ArSpec spec{.tokens = 3, .hidden = 24};
  test::expect_all_well(test::on_thread_ranks(2, test::long_deadlines(), [&](Group& g) {
    AllReduceWorkspace w(g, test::capacity_of(spec));
    for (std::uint32_t bank : {0U, 1U})
      for (std::int64_t at : {std::int64_t(0), AllReduceLayout::kGuardBytes - 1}) {
        std::byte& guard = AllReduceProbe::guard(w, bank, at);
        EXPECT_TRUE(w.canaries_intact());
        guard ^= std::byte{1};
        EXPECT_FALSE(w.canaries_intact()) << "bank " << bank << " byte " << at;
        guard ^= std::byte{1};
      }
    EXPECT_TRUE(w.canaries_intact());
    g.barrier("end");
  }));
}

/// Lingers before it reduces its rows, so that a peer which does not wait for them reads old ones.
void linger_before_reducing(void*, AllReduceFault at) {
  if (at == AllReduceFault::kPublished) std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

// Flags of the second phase that stood still for 2^31 calls would count as reached.
TEST(FusedAllReduce, ATwoShotBehindAnAgeOfOneShotsWaitsForTheOwners) {
  ArSpec one{.ranks = 3, .tokens = 9, .hidden = 72};
  ArSpec two = one;
  two.strategy = AllReduceStrategy::kTwoShot;
  two.seed = 5;
  std::vector<ArData> first = test::make_data(one), second = test::make_data(two);
  const auto want = run_ranks(two)[0].outputs();
  test::expect_all_well(test::on_thread_ranks(3, test::long_deadlines(), [&](Group& g) {
    AllReduceOptions options{.first_sequence = 0xfffffff8U};
    if (g.rank() == 1) options.hook.at = linger_before_reducing;
    AllReduceWorkspace w(g, test::capacity_of(one), options);
    AllReduceProbe::set_owned_flags(w, 0xfffffff8U - 0x80000010U);
    w.run(first[std::size_t(g.rank())].call());
    ArData& mine = second[std::size_t(g.rank())];
    w.run(mine.call());
    EXPECT_TRUE(same_bits(mine.outputs(), want)) << "rank " << g.rank();
  }));
}

}  // namespace
}  // namespace switchyard::comm
