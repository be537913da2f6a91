// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "switchyard/base/check.h"
#include "tests/cases/exchange_case.h"
#include "tests/cases/received_check.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"
#include "tests/support/soak.h"

namespace switchyard::comm {
namespace {

using test::expect_all_well;
using test::long_deadlines;
using test::on_thread_ranks;
using test::PayloadKind;

const Strategy* const kBuilt[] = {&all_gather(), &one_sided(), &two_sided(), &expert_major(),
                                  &compact()};

/// Tokens of `rank` in `round`: none, one, uneven, almost full, full.
std::int64_t tokens_of(const ExchangeShape& s, int rank, int round) {
  switch (round % 5) {
    case 0:
      return (rank * 5 + 3) % (s.capacity + 1);
    case 1:
      return rank == round % s.ranks() ? s.capacity : 0;
    case 2:
      return s.capacity;
    case 3:
      return s.capacity - 1;
    default:
      return rank % 2;
  }
}

/// One round of one rank: what it received is compared with all ranks' inputs, what came back with
/// the contract reference, bit for bit.
void run_round(Exchange& exchange, const Strategy& strategy, const ExchangeShape& shape, int rank,
               int round) {
  const std::string where = cat(strategy.name, " ep ", shape.ep, " tp ", shape.tp, " k ",
                                shape.top_k, " H ", shape.hidden, " rank ", rank, " round ", round);
  std::vector<test::ExchangeInput> inputs;
  for (int r = 0; r < shape.ranks(); ++r)
    inputs.emplace_back(shape, r, tokens_of(shape, r, round), round,
                        test::kPayloadKinds[(round + round / 5) % 5], test::kWires[round / 2 % 5]);
  const test::ExchangeInput& input = inputs[std::size_t(rank)];
  Ticket ticket = exchange.dispatch(input.args());
  ASSERT_EQ(test::received_fault(ticket.received(), strategy, inputs, rank), "") << where;
  test::serve(ticket.received(), shape, strategy.contract, input.payload, rank);
  test::SumCollector got(input.tokens, shape.hidden);
  exchange.combine(std::move(ticket), got.sink());
  ASSERT_EQ(got.rows, input.tokens) << where;
  std::vector<float> want = test::expected_sums(input, strategy.contract);
  ASSERT_TRUE(test::same_bits(got.sums, want)) << where;
  ASSERT_TRUE(exchange.canaries_intact()) << where;
}

void run_rounds(const Strategy& strategy, const ExchangeShape& shape, int rounds,
                std::uint32_t first_sequence = 0) {
  expect_all_well(on_thread_ranks(int(shape.ranks()), long_deadlines(), [&](Group& g) {
    auto exchange = make_exchange(strategy, g, shape, {.first_sequence = first_sequence});
    for (int round = 0; round < rounds; ++round) {
      run_round(*exchange, strategy, shape, g.rank(), round);
      if (testing::Test::HasFatalFailure()) {
        g.abort("a test failed");
        return;
      }
    }
  }));
}

// Pairwise in a change's tests, all combinations in the soak. Slots do not divide by most of the
// group sizes.
TEST(Exchange, EqualsTheContractReferenceBitForBit) {
  const std::int64_t ks[] = {1, 2, 3, 5, 8, 22}, widths[] = {8, 96, 264};
  int turn = 0;
  for (const Strategy* strategy : kBuilt)
    for (std::int64_t ep : {1, 2, 3, 4, 8})
      for (std::int64_t k : ks)
        for (std::int64_t width : widths) {
          if (!test::is_soak() && turn++ % 5 != 0) continue;
          run_rounds(*strategy, test::exchange_shape(ep, k + 11, k, 13, width), 10);
          if (HasFatalFailure()) return;
        }
}

TEST(Exchange, RealWidthAndManyTokens) {
  for (const Strategy* strategy : kBuilt) {
    run_rounds(*strategy, test::exchange_shape(4, 10, 3, 5, 7168), 3);
    run_rounds(*strategy, test::exchange_shape(3, 37, kMaxChoices, 5, 16), 3);
    run_rounds(*strategy, test::exchange_shape(2, 6, 2, test::subset_or_full(700, 4097), 8), 3);
    if (HasFatalFailure()) return;
  }
}

TEST(Exchange, CutExpertsUnderAllGather) {
  ExchangeShape shape = test::exchange_shape(2, 7, 3, 9, 96);
  shape.tp = 2;
  run_rounds(all_gather(), shape, 5);
  shape.ep = 1;
  run_rounds(all_gather(), shape, 5);
}

// Sizes, forms and payloads alternate, the sequence number passes its wrap, and rank 1 is late now
// and then.
TEST(Exchange, ManyRoundsAcrossTheWrap) {
  const int rounds = test::subset_or_full(1000, 100'000);
  const ExchangeShape shape = test::exchange_shape(3, 7, 3, 6, 16);
  for (const Strategy* strategy : kBuilt) {
    expect_all_well(on_thread_ranks(3, long_deadlines(), [&](Group& g) {
      int round = 0;
      FaultHook late{&round, [](void* context, FaultPoint point, MessageHeader*) {
                       constexpr int kEvery = 97;
                       if (*static_cast<int*>(context) % kEvery == int(point))
                         std::this_thread::sleep_for(std::chrono::milliseconds(2));
                     }};
      if (g.rank() != 1) late = {};
      auto exchange =
          make_exchange(*strategy, g, shape, {.first_sequence = 0xffffff00U - 200U, .hook = late});
      for (; round < rounds && !testing::Test::HasFatalFailure(); ++round)
        run_round(*exchange, *strategy, shape, g.rank(), round);
    }));
    if (HasFatalFailure()) return;
  }
}

// The control of the comparison above: each thing that a strategy could get wrong changes bits.
TEST(Exchange, ReferenceNoticesEveryField) {
  const ExchangeShape shape = test::exchange_shape(2, 8, 3, 6, 96);
  const Contract contract = one_sided().contract;
  const test::ExchangeInput good(shape, 0, 6, 1, PayloadKind::kFp8Block, Wire::kBf16);
  const std::vector<float> want = test::expected_sums(good, contract);
  auto differs = [&](const test::ExchangeInput& other) {
    return test::expected_sums(other, contract) != want;
  };
  test::ExchangeInput other = good;
  EXPECT_FALSE(differs(other));
  std::swap(other.ids[0], other.ids[1]);
  EXPECT_TRUE(differs(other));
  other = good;
  other.weights[2] *= 1.25F;
  EXPECT_TRUE(differs(other));
  other = good;
  other.hidden[5] ^= std::byte(0x40);
  EXPECT_TRUE(differs(other));
  other = good;
  other.scales[0] ^= std::byte(0x40);
  EXPECT_TRUE(differs(other));
  other = good;
  other.wire = Wire::kF32;
  EXPECT_TRUE(differs(other));
  EXPECT_NE(test::expected_sums(good, expert_major().contract), want);
}

// Few tokens for a large capacity: rows that lie back to back are one piece for the experts.
TEST(Exchange, RowsBackToBackAreOneRun) {
  const ExchangeShape shape = test::exchange_shape(3, 6, 6, 50, 32);
  for (const Strategy* strategy : kBuilt)
    expect_all_well(on_thread_ranks(3, long_deadlines(), [&](Group& g) {
      test::ExchangeInput in(shape, g.rank(), 5, 0, PayloadKind::kBf16, Wire::kBf16);
      for (std::size_t i = 0; i < in.ids.size(); ++i) in.ids[i] = std::int32_t(i % 6);
      auto exchange = make_exchange(*strategy, g, shape);
      Ticket ticket = exchange->dispatch(in.args());
      const Received& got = ticket.received();
      if (strategy->contract.layout == RowLayout::kCompact) {
        ASSERT_EQ(got.runs.size(), 1U) << strategy->name;
        EXPECT_EQ(got.runs[0].first, 0);
        EXPECT_EQ(got.runs[0].rows, 15);
        EXPECT_EQ(got.runs[0].source, -1);
        EXPECT_EQ(got.segments.size(), 3U);
      } else {
        EXPECT_EQ(got.runs.size(), got.segments.size()) << strategy->name;
      }
      g.barrier("end");
    }));
}

/// One thing changed in what a rank received, and the word that must tell of it.
struct Spoiled {
  const char* word;
  void (*spoil)(Received& got, std::vector<Segment>& segments);
};

// The control of received_fault(): each field that a strategy could get wrong is noticed.
TEST(Exchange, WhatIsReceivedIsComparedFieldByField) {
  static std::vector<std::byte> hidden, scales;
  static std::vector<std::int32_t> ids, stats;
  static std::vector<float> weights;
  const Spoiled kCases[] = {
      {"num_rows", [](Received& got, std::vector<Segment>&) { ++got.num_rows; }},
      {"segments instead of",
       [](Received& got, std::vector<Segment>& s) { got.segments = std::span(s).first(1); }},
      {"segment 0", [](Received&, std::vector<Segment>& s) { s[0].source = 1; }},
      {"segment 1", [](Received&, std::vector<Segment>& s) { s[1].slot = 0; }},
      {"segment 0", [](Received&, std::vector<Segment>& s) { --s[0].rows; }},
      {"segment 0", [](Received&, std::vector<Segment>& s) { ++s[0].first; }},
      {"in no run", [](Received& got, std::vector<Segment>&) { got.runs = {}; }},
      {"other rows",
       [](Received& got, std::vector<Segment>&) { got.runs = std::span(got.runs).subspan(1); }},
      {"hidden states differ",
       [](Received& got,
          std::vector<Segment>&
              s) { hidden[std::size_t(s[1].first * got.hidden_stride)] ^= std::byte{1}; }},
      {"scales differ",
       [](Received& got,
          std::vector<Segment>&
              s) { scales[std::size_t(s[1].first * got.scale_stride)] ^= std::byte{1}; }},
      {"has id", [](Received&, std::vector<Segment>& s) { ids[std::size_t(s[0].first * 3)] ^= 1; }},
      {"has weight",
       [](Received&, std::vector<Segment>& s) { weights[std::size_t(s[0].first * 3 + 1)] += 1; }},
      {"statistics", [](Received&, std::vector<Segment>&) { ++stats[3]; }},
      {"statistics", [](Received& got, std::vector<Segment>&) { got.stats = nullptr; }},
      {"wire", [](Received& got, std::vector<Segment>&) { got.wire = Wire::kF32; }},
      {"ids_per_row", [](Received& got, std::vector<Segment>&) { got.ids_per_row = 1; }}};
  const ExchangeShape shape = test::exchange_shape(2, 8, 3, 6, 96);
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    std::vector<test::ExchangeInput> inputs;
    for (int r = 0; r < 2; ++r)
      inputs.emplace_back(shape, r, 6, 0, PayloadKind::kFp8Block, Wire::kBf16);
    auto exchange = make_exchange(one_sided(), g, shape);
    Ticket ticket = exchange->dispatch(inputs[std::size_t(g.rank())].args());
    const Received real = ticket.received();
    for (const Spoiled& c :
         g.rank() == 0 ? std::span<const Spoiled>(kCases) : std::span<const Spoiled>()) {
      Received got = real;
      std::vector<Segment> segments(real.segments.begin(), real.segments.end());
      const std::int64_t rows = 2 * shape.capacity;
      hidden.assign(real.hidden, real.hidden + rows * real.hidden_stride);
      scales.assign(real.scales, real.scales + rows * real.scale_stride);
      ids.assign(real.ids, real.ids + rows * 3);
      weights.assign(real.weights, real.weights + rows * 3);
      stats.assign(real.stats, real.stats + 2 * shape.num_stats);
      got.segments = segments;
      got.scales = scales.data();
      got.ids = ids.data();
      got.weights = weights.data();
      got.stats = stats.data();
      // Kept on a boundary of 16 bytes, as the comparison asks for.
      hidden.insert(hidden.end(), 16, std::byte{0});
      const std::size_t shift = std::size_t(-std::uintptr_t(hidden.data())) % 16;
      std::move_backward(hidden.begin(), hidden.end() - 16,
                         hidden.end() - 16 + std::ptrdiff_t(shift));
      got.hidden = hidden.data() + shift;
      EXPECT_EQ(test::received_fault(got, one_sided(), inputs, 0), "");
      c.spoil(got, segments);
      EXPECT_THAT(test::received_fault(got, one_sided(), inputs, 0), testing::HasSubstr(c.word));
    }
    g.barrier("end");
  }));
}

}  // namespace
}  // namespace switchyard::comm
