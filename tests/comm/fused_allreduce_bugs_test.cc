// SPDX-License-Identifier: Apache-2.0
// One test for every known way in which fused all-reduces have gone wrong and that our API can
// express; each has the shape that showed it.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/comm/allreduce_ranks.h"
#include "tests/support/soak.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceQuant;
using ops::AllReduceStrategy;
using test::ArData;
using test::ArPayload;
using test::ArSpec;
using test::check_ranks;
using Pattern = ops::AllReduceFusionPattern;

constexpr AllReduceStrategy kStrategies[] = {AllReduceStrategy::kOneShot,
                                             AllReduceStrategy::kTwoShot};

double norm_ratio(const ArSpec& spec, ArData& data) {
  double squares = 0;
  for (std::int64_t h = 0; h < spec.hidden; ++h) {
    const double gamma = load_element(spec.dtype, data.gamma.data(), h);
    const double n = load_element(spec.dtype, data.norm_out.data(), h) / gamma;
    squares += n * n;
  }
  return std::sqrt(squares / double(spec.hidden));
}

// B2: arguments lost between layers.
TEST(AllReduceBugs, TheFactorOfAFinalizeArrives) {
  ArSpec spec{.pattern = Pattern::kMoEFinalizeARResidualRMSNorm};
  const auto with = check_ranks(spec)[0].outputs();
  spec.factor.reset();
  EXPECT_FALSE(test::same_bits(check_ranks(spec)[0].outputs(), with));
}

// B3, B6, B8: widths that are no multiple of a block of threads; a norm of 1.0607 instead of 1.
TEST(AllReduceBugs, Width2880AndOtherUnevenOnes) {
  for (Pattern pattern :
       {Pattern::kMoEReductionARResidualRMSNorm, Pattern::kMoEFinalizeARResidualRMSNorm,
        Pattern::kARResidualRMSNorm, Pattern::kARResidualRMSNormOutFP4Quant})
    for (std::int64_t hidden : {2880, 64, 8, 2}) {
      ArSpec spec{.pattern = pattern, .tokens = 2, .hidden = hidden};
      std::vector<ArData> data = check_ranks(spec);
      EXPECT_NEAR(norm_ratio(spec, data[0]), 1, 0.01) << spec.str();
    }
}

// B4: norm_out null where residual_out and quant_out are wanted.
TEST(AllReduceBugs, AReductionWithoutNormOut) {
  for (AllReduceStrategy strategy : kStrategies) {
    ArSpec spec{.pattern = Pattern::kMoEReductionARResidualRMSNorm,
                .strategy = strategy,
                .quant = AllReduceQuant::kNvfp4};
    const std::vector<ArData> all = check_ranks(spec);
    spec.want_norm = spec.want_output = false;
    const std::vector<ArData> some = test::run_ranks(spec);
    EXPECT_TRUE(test::same_bits(some[0].quant_out.contents(), all[0].quant_out.contents()));
    EXPECT_TRUE(test::same_bits(some[1].residual_out.contents(), all[0].residual_out.contents()));
  }
}

// B5: the encode scale of a finalize was never set.
TEST(AllReduceBugs, TheEncodeScaleOfAFinalizeIsTheCallers) {
  for (float g : {1.0f, 0.25f, 700.0f})
    check_ranks({.pattern = Pattern::kMoEFinalizeARResidualRMSNorm,
                 .quant = AllReduceQuant::kNvfp4,
                 .encode_scale = g});
}

// B6: codes silently 0 and scales unwritten where the hardware lacks the conversion.
TEST(AllReduceBugs, FourBitCodesAreNotZero) {
  const std::vector<ArData> data = check_ranks({.pattern = Pattern::kARResidualRMSNormOutFP4Quant});
  const auto codes = data[0].quant_out.contents();
  EXPECT_GT(std::count_if(codes.begin(), codes.end(), [](std::uint8_t c) { return c != 0; }),
            std::ptrdiff_t(codes.size() / 2));
}

// B7: part of a row lost when many rows met a width of 7 blocks.
TEST(AllReduceBugs, Width7168WithManyTokens) {
  for (AllReduceStrategy strategy : kStrategies)
    check_ranks({.pattern = Pattern::kARResidualRMSNormOutFP4Quant,
                 .tokens = test::is_soak() ? 64 : 3,
                 .hidden = 7168,
                 .strategy = strategy});
}

// B9, B10: -0 and negative subnormals in a payload, at odd places too, hung or were lost.
TEST(AllReduceBugs, ZerosAndSubnormalsOfBothSigns) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kF32})
    for (AllReduceStrategy strategy : kStrategies)
      for (ArPayload payload : {ArPayload::kZeros, ArPayload::kSpecial}) {
        ArSpec spec{.dtype = dtype, .hidden = 512, .strategy = strategy, .payload = payload};
        std::vector<ArData> data = check_ranks(spec);
        if (payload != ArPayload::kZeros) continue;
        const float first = load_element(dtype, data[0].residual_out.data(), 0);
        EXPECT_TRUE(first == 0 && !std::signbit(first)) << "a sum of -0 is +0";
      }
}

// B12: 32-bit offsets into more than 2 GiB, and a call larger than the workspace.
TEST(AllReduceBugs, OffsetsOfLargeWorkspaces) {
  const AllReduceCapacity c{8, 65536, 16384, Dtype::kBf16};
  const AllReduceLayout layout = make_allreduce_layout(c);
  EXPECT_EQ(allreduce_payload_stride(c), 32768);
  EXPECT_EQ(layout.bank_bytes, std::int64_t(65536) * 32768 + std::int64_t(8192) * 65536);
  EXPECT_GT(layout.bank(1), std::int64_t(1) << 31);
  EXPECT_EQ(layout.bank(3), layout.bank(1));
  EXPECT_EQ(allreduce_workspace_bytes(c), layout.bank(1) + layout.bank_stride);
}

// B14: the buffer of two ranks was half of what fp32 needs.
TEST(AllReduceBugs, TwoShotOfFp32AtFullCapacity) {
  for (bool fp32_wire : {false, true})
    for (Dtype dtype : {Dtype::kF32, Dtype::kBf16})
      check_ranks({.pattern = Pattern::kMoEReductionARResidualRMSNorm,
                   .dtype = dtype,
                   .tokens = 33,
                   .hidden = 96,
                   .strategy = AllReduceStrategy::kTwoShot,
                   .fp32_wire = fp32_wire});
}

// B16: fewer tokens than ranks, and ranks that own no row.
TEST(AllReduceBugs, TwoShotWithFewerTokensThanRanks) {
  for (std::int64_t tokens : {0, 1, 3, 4, 5})
    check_ranks({.ranks = 4, .tokens = tokens, .strategy = AllReduceStrategy::kTwoShot});
}

// B20: squares in T: one |p| >= 256 in fp16 made the whole row 0.
TEST(AllReduceBugs, LargeRowsOfFp16) {
  ArSpec spec{.dtype = Dtype::kFp16, .hidden = 256, .payload = ArPayload::kLarge};
  std::vector<ArData> data = check_ranks(spec);
  EXPECT_NEAR(norm_ratio(spec, data[0]), 1, 0.01);
}

// B21: reductions whose tree depends on the number of tokens.
TEST(AllReduceBugs, ARowIsTheSameAmong1And67) {
  ArSpec one{.ranks = 4, .tokens = 1, .hidden = 2880}, many = one;
  many.tokens = 67;
  one.strategy = many.strategy = AllReduceStrategy::kAuto;  // and so one-shot and two-shot
  const std::vector<ArData> a = test::run_ranks(one, {}, 1), b = test::run_ranks(many, {}, 1);
  const std::vector<std::uint8_t> alone = a[0].norm_out.contents();
  std::vector<std::uint8_t> among = b[0].norm_out.contents();
  among.resize(alone.size());
  EXPECT_TRUE(test::same_bits(alone, among));
  EXPECT_NE(effective_strategy({.tokens = 1}, 4), effective_strategy({.tokens = 67}, 4));
}

// The weights of a finalize in fp32 were read as T; indices repeat; all choices of a token dropped.
TEST(AllReduceBugs, WeightsAndIndicesOfEveryKind) {
  for (bool in_t : {false, true})
    for (bool dropped : {false, true})
      for (bool shared : {false, true})
        for (bool weights : {false, true})
          check_ranks({.pattern = Pattern::kMoEFinalizeARResidualRMSNorm,
                       .tokens = 9,
                       .top_k = 4,
                       .shared = shared,
                       .weights = weights,
                       .weights_in_t = in_t,
                       .all_dropped = dropped});
}

// B30: a capacity that counted padded expert rows.
TEST(AllReduceBugs, PaddedExpertRowsNeedNoCapacity) {
  ArSpec spec{.pattern = Pattern::kMoEFinalizeARResidualRMSNorm, .tokens = 3, .top_k = 32};
  check_ranks(spec);  // the workspace holds 3 rows, the experts 99
}

// Every scale layout with its padding, on widths whose blocks do not fill a tile.
TEST(AllReduceBugs, ScaleLayoutsWithPadding) {
  for (formats::ScaleLayout layout :
       {formats::ScaleLayout::kLinear, formats::ScaleLayout::k128x4, formats::ScaleLayout::k8x4})
    for (std::int64_t tokens : {1, 9, 130})
      for (AllReduceStrategy strategy : kStrategies)
        check_ranks({.pattern = Pattern::kARResidualRMSNormOutFP4Quant,
                     .tokens = tokens,
                     .hidden = 90,
                     .strategy = strategy,
                     .layout = layout});
}

// A 16-bit and a 32-bit dtype through one workspace, which an in-band mark could not survive.
TEST(AllReduceBugs, OneWorkspaceForSeveralTypes) {
  ArSpec wide{.dtype = Dtype::kF32, .tokens = 4}, narrow = wide;
  narrow.dtype = Dtype::kBf16;
  narrow.tokens = 8;
  std::vector<ArData> a = test::run_ranks(wide, {}, 1), b = test::run_ranks(narrow, {}, 1);
  const auto want_a = a[0].outputs(), want_b = b[0].outputs();
  test::expect_all_well(test::on_thread_ranks(2, test::long_deadlines(), [&](Group& g) {
    AllReduceWorkspace w(g, test::capacity_of(wide));
    for (int i = 0; i < 6; ++i) {
      ArData& mine = (i % 2 == 0 ? a : b)[std::size_t(g.rank())];
      mine.poison();
      w.run(mine.call());
      EXPECT_TRUE(test::same_bits(mine.outputs(), i % 2 == 0 ? want_a : want_b)) << i;
    }
  }));
}

}  // namespace
}  // namespace switchyard::comm
