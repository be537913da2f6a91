// SPDX-License-Identifier: Apache-2.0
// The fused all-reduce between GPUs of one process, or of ranks that share one: bit for bit against
// the CPU twin, and against the oracle.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cases/allreduce_matrix.h"
#include "tests/cases/moe_case.h"
#include "tests/comm/device_allreduce_ranks.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceStrategy;
using test::ArData;
using test::ArKind;
using test::ArPayload;
using test::ArSpec;
using test::DeviceRank;
using test::kArKinds;
using test::kArStrategies;
using test::same_bits;

class DeviceAllReduceTest : public test::NeedsGpu {};

/// Runs a spec on GPUs, three times over poisoned outputs; one rank alone is GPU 0.
std::vector<ArData> run_gpus(const ArSpec& spec, const DeviceAllReduceOptions& options = {}) {
  std::vector<ArData> data = test::make_data(spec);
  test::expect_all_well(
      test::on_thread_ranks(int(spec.ranks), test::gpu_deadlines(), [&](Group& g) {
        test::take_seat(g);
        DeviceRank rank(g, spec, options);
        ArData& mine = data[std::size_t(g.rank())];
        std::vector<std::uint8_t> first;
        for (int i = 0; i < 3; ++i) {
          rank.run(mine);
          if (i == 0) first = mine.outputs();
          EXPECT_TRUE(same_bits(mine.outputs(), first)) << spec.str() << ", call " << i;
        }
        EXPECT_TRUE(mine.canaries_intact()) << spec.str();
      }));
  return data;
}

/// Runs a spec on GPUs and on CPU ranks: the same bits everywhere, near the oracle.
void check_gpus(const ArSpec& spec, bool oracle = true,
                const DeviceAllReduceOptions& options = {}) {
  std::vector<ArData> got = run_gpus(spec, options);
  const std::vector<ArData> want = test::run_ranks(spec, {.isa = test::runnable_tiers().back()}, 1);
  for (const ArData& d : got) {
    EXPECT_TRUE(same_bits(d.outputs(), got[0].outputs())) << spec.str() << ": the ranks differ";
    EXPECT_TRUE(same_bits(test::comparable(spec, d), test::comparable(spec, want[0])))
        << spec.str() << ": not the CPU twin's bits";
  }
  if (!oracle) return;
  EXPECT_EQ(test::compare_with_oracle(spec, test::calls_of(got), got[0]), "") << spec.str();
}

TEST_F(DeviceAllReduceTest, EveryPatternHasTheCpuTwinsBitsOnTwoToEightRanks) {
  int turn = 0;
  for (std::int64_t ranks : {2, 3, 4, 8})
    for (int value = 0; value < ops::kNumAllReducePatterns; ++value)
      for (AllReduceStrategy strategy : kArStrategies)
        for (Dtype dtype : test::kArDtypes) {
          check_gpus({.pattern = ops::to_allreduce_pattern(value),
                      .dtype = dtype,
                      .ranks = ranks,
                      .tokens = 13,
                      .hidden = turn++ % 2 == 0 ? 250 : 256,
                      .strategy = strategy});
          if (HasFailure()) return;
        }
}

// More choices than a block stages, and a number that no batch divides.
TEST_F(DeviceAllReduceTest, ManyChoicesAndExperts) {
  for (std::int64_t count : {1, 9, 256, 257, 300})
    for (int value : {6, 7})
      check_gpus({.pattern = ops::to_allreduce_pattern(value),
                  .tokens = 3,
                  .hidden = 64,
                  .experts = count,
                  .top_k = count});
}

// One rank alone is level 0 of the matrix.
TEST_F(DeviceAllReduceTest, TheMatrixMatchesTheCpuTwinAndTheOracle) {
  int ran = 0;
  for (const std::vector<int>& row : test::pairwise(test::ar_levels(8))) {
    const ArSpec spec = test::ar_spec(row);
    if (!test::affordable(spec)) continue;
    check_gpus(spec);
    ++ran;
    if (HasFailure()) return;
  }
  EXPECT_GT(ran, 50);
}

// The widths and numbers of tokens, where the oracle would take too long.
TEST_F(DeviceAllReduceTest, WideAndLongBatchesHaveTheCpuTwinsBits) {
  const Dtype dtypes[] = {Dtype::kBf16, Dtype::kFp16, Dtype::kF32};
  int turn = 0;
  for (std::int64_t hidden : {64, 256, 2880, 5120, 6144, 7168, 8192, 16384, 49152})
    for (std::int64_t tokens : {1, 34, 67, 128, 129, 300, 2048}) {
      if (tokens * hidden > (test::is_soak() ? 1 << 25 : 1 << 21)) continue;
      const ArKind& kind = kArKinds[turn % 12];
      check_gpus({.pattern = kind.pattern,
                  .dtype = dtypes[turn / 12 % 3],
                  .tokens = tokens,
                  .hidden = hidden,
                  .strategy = kArStrategies[turn / 5 % 2],
                  .quant = kind.quant,
                  .experts = 2,
                  .top_k = turn % 2 == 0 ? 3 : 11},
                 false);
      ++turn;
      if (HasFailure()) return;
    }
}

TEST_F(DeviceAllReduceTest, BitsDoNotDependOnTheCut) {
  for (const ArKind& kind : kArKinds) {
    const ArSpec spec{.pattern = kind.pattern, .tokens = 140, .hidden = 520, .quant = kind.quant};
    const std::vector<std::uint8_t> want = run_gpus(spec)[0].outputs();
    const ops::AllReduceGeometry cuts[] = {{.threads = 32, .finishers = 1, .pushers = 1},
                                           {.threads = 64, .finishers = 3, .pushers = -1},
                                           {.threads = 96, .pushers = 7, .slices = 3},
                                           {.threads = 1024, .finishers = 9, .pushers = 2}};
    for (const ops::AllReduceGeometry& cut : cuts)
      EXPECT_TRUE(same_bits(run_gpus(spec, {.geometry = cut})[1].outputs(), want)) << spec.str();
  }
}

// The same rows among other tokens: row 0 of many is the row alone.
TEST_F(DeviceAllReduceTest, ATokenDoesNotDependOnTheOthers) {
  ArSpec many{.tokens = 511, .hidden = 2880};
  const std::vector<ArData> all = run_gpus(many);
  for (std::int64_t tokens : {1, 7, 67}) {
    ArSpec some = many;
    some.tokens = tokens;
    for (AllReduceStrategy strategy : kArStrategies) {
      some.strategy = strategy;
      const std::vector<ArData> got = run_gpus(some);
      const auto bytes = std::ptrdiff_t(tokens * many.hidden * 2);
      auto head = [&](const test::ArOutput& o) {
        return std::vector<std::uint8_t>(o.bytes.begin(), o.bytes.begin() + bytes);
      };
      EXPECT_TRUE(same_bits(head(all[0].norm_out), head(got[0].norm_out)));
      EXPECT_TRUE(same_bits(head(all[0].residual_out), head(got[1].residual_out)));
    }
  }
}

// Small negative sums underflow to -0 in a residual row, and NaN, infinities and subnormals pass.
TEST_F(DeviceAllReduceTest, SpecialPayloadsPassBothStrategies) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kFp16})
    for (ArPayload payload :
         {ArPayload::kSpecial, ArPayload::kLarge, ArPayload::kTiny, ArPayload::kZeros})
      for (AllReduceStrategy strategy : kArStrategies)
        for (const ArKind& kind : kArKinds)
          check_gpus({.pattern = kind.pattern,
                      .dtype = dtype,
                      .tokens = 9,
                      .hidden = 400,
                      .strategy = strategy,
                      .quant = kind.quant,
                      .payload = payload,
                      .seed = 5},
                     false);
}

// A row that starts off a 16-byte boundary takes the element-wise way, with the same bits.
TEST_F(DeviceAllReduceTest, UnalignedTensorsAreLegal) {
  const ArSpec spec{.tokens = 5, .hidden = 64};
  const std::vector<std::uint8_t> want = run_gpus(spec)[0].residual_out.contents();
  std::vector<ArData> data = test::make_data(spec);
  const std::size_t bytes = want.size();
  test::expect_all_well(test::on_thread_ranks(2, test::gpu_deadlines(), [&](Group& g) {
    test::take_seat(g);
    DeviceRank rank(g, spec);
    const ops::AllReduceCall host = data[std::size_t(g.rank())].call();
    api::AllReduceMirror mirror(host);
    ops::AllReduceCall call = mirror.call();
    DeviceMemory input(bytes + 2), out(bytes + 2);
    g.barrier("tensors made");
    auto* from = static_cast<std::byte*>(input.data()) + 2;
    input.upload_part(std::get<ops::PlainSource>(host.source).input, 2, bytes);
    call.source = ops::PlainSource{from};
    call.norm->residual_out = static_cast<std::byte*>(out.data()) + 2;
    rank.workspace.run(call, rank.stream.get());
    rank.workspace.wait(rank.stream.get());
    std::vector<std::uint8_t> got(bytes + 2);
    out.download(got.data());
    got.erase(got.begin(), got.begin() + 2);
    EXPECT_TRUE(same_bits(got, want));
  }));
}

}  // namespace
}  // namespace switchyard::comm
