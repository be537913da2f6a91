// SPDX-License-Identifier: Apache-2.0
// The fused exchange with experts that are played: bit for bit one_sided's contract, over many runs
// of unlike sizes in which a rank is late now and then, and what it refuses.
#include "switchyard/layer/mega_moe.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <span>
#include <thread>

#include "switchyard/base/check.h"
#include "switchyard/core/shard.h"
#include "tests/cases/exchange_case.h"
#include "tests/cases/mega_case.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"
#include "tests/support/soak.h"

namespace switchyard::layer {
namespace {

using comm::Group;
using test::expect_all_well;
using test::long_deadlines;
using test::on_thread_ranks;
using test::PayloadKind;
using test::text_of;
using testing::HasSubstr;

std::int64_t tokens_in(const comm::ExchangeShape& shape, int rank, int round) {
  return (rank * 5 + 3 + round * 7) % (shape.capacity + 1);
}

/// The tokens of all ranks that choose an expert of this one: as many rows, each brought once.
std::int64_t rows_for(const comm::ExchangeShape& shape, PayloadKind kind, int rank, int round) {
  const Shard held = ep_shard(shape.slots, shape.ep, rank);
  std::int64_t out = 0;
  for (int r = 0; r < int(shape.ep); ++r) {
    const std::int64_t tokens = tokens_in(shape, r, round);
    const test::ExchangeInput input(shape, r, tokens, round, kind, comm::Wire::kBf16);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto own = std::span(input.ids).subspan(std::size_t(t * shape.top_k));
      out += std::ranges::any_of(own.first(std::size_t(shape.top_k)), [&](std::int32_t id) {
        return id >= held.begin && id < held.begin + held.size;
      });
    }
  }
  return out;
}

void run_round(MegaMoe& mega, const comm::ExchangeShape& shape, PayloadKind kind, int rank,
               int round) {
  const comm::Wire wire = test::kWires[round % 5];
  const std::int64_t tokens = tokens_in(shape, rank, round);
  const test::ExchangeInput input(shape, rank, tokens, round, kind, wire);
  test::SumCollector got(tokens, shape.hidden);
  std::int64_t rows = 0;
  const std::vector<std::int32_t> stats =
      test::run_mega(mega, {.input = input, .rank = rank, .rows = &rows}, got);
  ASSERT_EQ(got.rows, tokens);
  ASSERT_EQ(rows, rows_for(shape, kind, rank, round));
  ASSERT_TRUE(test::same_bits(got.sums, test::expected_sums(input, comm::one_sided().contract)))
      << cat("rank ", rank, " round ", round);
  for (int r = 0; r < int(shape.ep); ++r) {
    const std::vector<std::int32_t> want = test::stats_of(shape, r, round);
    ASSERT_TRUE(std::equal(want.begin(), want.end(), stats.begin() + r * shape.num_stats));
  }
  ASSERT_TRUE(mega.canaries_intact());
}

TEST(MegaMoe, ManyRunsKeepOneSidedsContract) {
  const int rounds = test::subset_or_full(300, 20'000);
  for (PayloadKind kind : {PayloadKind::kBf16, PayloadKind::kFp8Block, PayloadKind::kNvfp4})
    for (std::int64_t ranks : {3, 4}) {
      const comm::ExchangeShape shape = test::exchange_shape(ranks, 7, 3, 6, 16);
      expect_all_well(on_thread_ranks(int(ranks), long_deadlines(), [&](Group& g) {
        MegaShape own = test::mega_shape(shape, test::payload_of(kind, shape.hidden));
        own.first_sequence = 0xffffff00U;  // the wrap is on the way
        MegaMoe mega(g, own, "played");
        EXPECT_EQ(mega.id(), "switchyard.cpu.mega_moe.played");
        for (int round = 0; round < rounds && !testing::Test::HasFatalFailure(); ++round) {
          constexpr int kEvery = 37;
          if (g.rank() == 1 && round % kEvery == 3)
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          run_round(mega, shape, kind, g.rank(), round);
        }
        if (testing::Test::HasFatalFailure()) g.abort("a test failed");
      }));
    }
}

TEST(MegaMoe, WhatItRefusesEndsOnEveryRankAndAGoodRunFollows) {
  const comm::ExchangeShape shape = test::exchange_shape(2, 7, 3, 6, 16);
  const test::Payload payload = test::payload_of(PayloadKind::kBf16, shape.hidden);
  auto outcome = [&](auto&& spoil) {
    return on_thread_ranks(2, long_deadlines(), [&](Group& g) {
      MegaMoe mega(g, test::mega_shape(shape, payload), "played");
      const test::ExchangeInput input(shape, g.rank(), 5, 1, PayloadKind::kBf16, comm::Wire::kBf16);
      std::vector<std::int32_t> ids = input.ids;
      MegaArgs args{.tokens = 5,
                    .ids = ids.data(),
                    .weights = input.weights.data(),
                    .stats = input.stats.data(),
                    .wire = comm::Wire::kBf16};
      if (g.rank() == 1) spoil(args, ids);
      test::SumCollector got(5, shape.hidden);
      test::run_mega(mega, {input, g.rank(), PayloadKind::kBf16, &args}, got);
    });
  };
  test::Outcomes out = outcome([](MegaArgs& a, auto&) { a.tokens = 7; });
  EXPECT_THAT(text_of<UsageError>(out[1]), HasSubstr("7 tokens on rank 1 exceeds the capacity 6"));
  EXPECT_THAT(text_of<comm::PeerError>(out[0]), HasSubstr("rank 1 gave up"));
  out = outcome([](MegaArgs&, auto& ids) { ids[4] = 7; });
  EXPECT_THAT(text_of<UsageError>(out[1]), HasSubstr("choice 1 of token 1 has id 7"));
  EXPECT_TRUE(out[0]);
  out = outcome([](MegaArgs& a, auto&) { a.wire = comm::Wire::kF32; });
  EXPECT_THAT(text_of<UsageError>(out[0]) + text_of<UsageError>(out[1]),
              HasSubstr("the ranks differ"));
  out = outcome([](MegaArgs& a, auto&) { a.stats = nullptr; });
  EXPECT_THAT(text_of<UsageError>(out[0]) + text_of<UsageError>(out[1]),
              HasSubstr("the ranks differ"));
  expect_all_well(outcome([](MegaArgs&, auto&) {}));
  out = on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    MegaShape unlike = test::mega_shape(shape, payload);
    unlike.capacity += g.rank();
    MegaMoe(g, unlike, "played");
  });
  for (const std::exception_ptr& o : out)
    EXPECT_THAT(text_of<UsageError>(o), HasSubstr("capacity = '7'"));
}

}  // namespace
}  // namespace switchyard::layer
