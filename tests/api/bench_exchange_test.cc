// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "switchyard/api/moe_layer.h"
#include "switchyard/comm/factory.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

BenchExchangeOptions small() {
  BenchExchangeOptions o;
  o.strategy = "all";
  o.ranks = 3;
  o.tokens = {5, 40};
  o.hidden = 96;
  o.experts = 16;
  o.top_k = 4;
  o.seconds = 1e-3;
  o.most_copied = 4 << 20;
  return o;
}

TEST(BenchExchange, EveryStrategyIsTimedAndRight) {
  for (ExchangePayload payload : {ExchangePayload::kBf16, ExchangePayload::kFp8,
                                  ExchangePayload::kMxfp8, ExchangePayload::kNvfp4})
    for (CombinePrecision combine :
         {CombinePrecision::kBf16, CombinePrecision::kFp8, CombinePrecision::kNvfp4}) {
      BenchExchangeOptions o = small();
      o.payload = payload;
      o.combine = combine;
      o.pattern = TrafficPattern(int(payload));
      const BenchExchangeResult r = bench_exchange(o);
      EXPECT_TRUE(r.ok);
      EXPECT_EQ(r.verdicts.size(), comm::strategies().size());
      ASSERT_EQ(r.rows.size(), 10U) << "five strategies, two token counts";
      EXPECT_TRUE(r.skipped.empty());
      EXPECT_GT(r.copy_gbps, 0);
      for (const BenchExchangeRow& row : r.rows) {
        EXPECT_TRUE(row.ok()) << row.strategy;
        EXPECT_EQ(row.checked_tokens, 3 * (row.tokens == 5 ? 5 : 14)) << row.strategy;
        EXPECT_GE(row.total.samples, 5);
        EXPECT_LE(row.total.least, row.total.p50);
        EXPECT_LE(row.total.p50, row.total.p99);
        EXPECT_GT(row.dispatch.p50, 0);
        EXPECT_GT(row.combine.p50, 0);
        EXPECT_GT(row.gbps, 0);
      }
    }
}

// What is counted can be said beforehand: all tokens to all ranks, or one row per choice, or
// something between for the others, which all deliver the same rows.
TEST(BenchExchange, CountsRowsAndBytesOfWhatIsDelivered) {
  BenchExchangeOptions o = small();
  o.tokens = {40};
  o.payload = ExchangePayload::kFp8;
  o.combine = CombinePrecision::kFp8;
  std::set<std::int64_t> deduplicated;
  for (const BenchExchangeRow& row : bench_exchange(o).rows) {
    if (row.strategy == "all_gather") {
      EXPECT_EQ(row.dispatch_rows, 3 * 3 * 40);
    } else if (row.strategy == "expert_major") {
      EXPECT_EQ(row.dispatch_rows, 3 * 40 * 4);
      EXPECT_EQ(row.combine_rows, row.dispatch_rows);
    } else {
      EXPECT_EQ(row.combine_rows, row.dispatch_rows) << row.strategy;
      deduplicated.insert(row.dispatch_rows);
    }
    EXPECT_EQ(row.dispatch_bytes, row.dispatch_rows * (96 + 4)) << row.strategy;
    EXPECT_EQ(row.combine_bytes, row.combine_rows * (96 + 4)) << row.strategy;
  }
  ASSERT_EQ(deduplicated.size(), 1U);
  EXPECT_LT(*deduplicated.begin(), 3 * 3 * 40);
}

TEST(BenchExchange, PatternsGoWhereTheirNamesSay) {
  auto rows_of = [](TrafficPattern pattern) {
    BenchExchangeOptions o = small();
    o.strategy = "one_sided";
    o.ranks = 4;
    o.tokens = {32};
    o.pattern = pattern;
    return bench_exchange(o).rows.at(0).dispatch_rows;
  };
  EXPECT_EQ(rows_of(TrafficPattern::kLocal), 4 * 32);  // 4 choices, 4 experts a rank
  EXPECT_EQ(rows_of(TrafficPattern::kRing), 4 * 32);
  EXPECT_GT(rows_of(TrafficPattern::kBalanced), 4 * 32 * 2);
  EXPECT_GT(rows_of(TrafficPattern::kHotspot), 4 * 32);
}

// The four patterns told apart by the slots themselves, 4 of them on each of 4 ranks.
TEST(Traffic, EveryPatternChoosesItsOwnRanks) {
  constexpr std::int64_t kTokens = 32, kChoices = 4;
  for (int pattern = 0; pattern < 4; ++pattern)
    for (int rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE(std::string(to_string(TrafficPattern(pattern))) + " on rank " +
                   std::to_string(rank));
      api::TrafficSpec spec{
          .shape = {.ep = 4, .slots = 16, .top_k = kChoices, .capacity = kTokens, .hidden = 64},
          .pattern = TrafficPattern(pattern)};
      api::fit_shape(spec);
      const api::Traffic traffic(spec, rank);
      const std::int32_t* ids = traffic.args().ids;
      std::vector<int> first(4), rest(4);  // choices by the rank that holds them
      for (std::int64_t t = 0; t < kTokens; ++t) {
        EXPECT_EQ(std::set<std::int32_t>(ids + t * kChoices, ids + (t + 1) * kChoices).size(), 4U);
        for (std::int64_t j = 0; j < kChoices; ++j)
          ++(j < 2 ? first : rest).at(std::size_t(ids[t * kChoices + j] / 4));
      }
      std::vector<int> all_on_one(4, 0);
      all_on_one[std::size_t(spec.pattern == TrafficPattern::kLocal  ? rank
                             : spec.pattern == TrafficPattern::kRing ? (rank + 1) % 4
                                                                     : 0)] = 2 * kTokens;
      const auto even = testing::Each(testing::AllOf(testing::Gt(4), testing::Lt(32)));
      if (spec.pattern == TrafficPattern::kBalanced) {
        EXPECT_THAT(first, even);
      } else {
        EXPECT_EQ(first, all_on_one);
      }
      if (spec.pattern == TrafficPattern::kBalanced || spec.pattern == TrafficPattern::kHotspot) {
        EXPECT_THAT(rest, even);
      } else {
        EXPECT_EQ(rest, all_on_one);
      }
    }
}

TEST(Traffic, IsWhereItsPatternSaysAndItsFaultsAreSeen) {
  api::TrafficSpec spec{.shape = {.ep = 2, .slots = 8, .top_k = 3, .capacity = 40, .hidden = 64},
                        .payload = ExchangePayload::kMxfp8,
                        .pattern = TrafficPattern::kRing};
  api::fit_shape(spec);
  test::expect_all_well(test::on_thread_ranks(2, test::long_deadlines(), [&](comm::Group& g) {
    const comm::Strategy& strategy = comm::one_sided();
    const api::Traffic traffic(spec, g.rank());
    const comm::DispatchArgs args = traffic.args();
    for (std::int64_t i = 0; i < 40 * 3; ++i)  // all on the other rank, 4 slots each
      EXPECT_EQ(args.ids[i] / 4, 1 - g.rank());
    EXPECT_EQ(traffic.rows_needed(strategy.contract), 40);
    EXPECT_EQ(traffic.rows_needed(comm::expert_major().contract), 40 * 3);
    auto exchange = make_exchange(strategy, g, spec.shape);
    comm::Ticket ticket = exchange->dispatch(args);
    traffic.serve(ticket.received(), strategy.contract);
    std::vector<float> sums(40 * 64);
    exchange->combine(std::move(ticket),
                      {&sums, [](void* out, std::int64_t t, const float* sum) {
                         std::copy_n(sum, 64,
                                     static_cast<std::vector<float>*>(out)->data() + t * 64);
                       }});
    EXPECT_EQ(traffic.wrong(sums, strategy.contract), 0);
    sums[64 * 3 + 5] = 1e9F;  // the control: token 3 is among the checked ones
    EXPECT_EQ(traffic.wrong(sums, strategy.contract), 1);
    // The other contract rounds each choice: its reference differs.
    EXPECT_GT(traffic.wrong(sums, comm::expert_major().contract), 1);
    g.barrier("end");
  }));
}

// What is asked for before a row is made must not be more than what any strategy then takes.
TEST(BenchExchange, TheMemoryOfARowIsNotOverestimated) {
  for (std::int64_t top_k : {1, 2, 6}) {
    BenchExchangeOptions o = small();
    o.strategy = "all";
    o.tokens = {256};
    o.hidden = 4096, o.top_k = top_k, o.seconds = 1e-3;
    const double least = bench_exchange_bytes(o, 256);
    const double given = double(o.ranks * 256 * o.hidden) * (2 + 4);  // bf16 rows, fp32 sums
    EXPECT_GT(least, given);
    for (const BenchExchangeRow& row : bench_exchange(o).rows)
      EXPECT_LE(least, given + double(row.shared_bytes + o.ranks * row.own_bytes))
          << row.strategy << " " << top_k;
  }
}

TEST(BenchExchange, RefusesByName) {
  auto text_with = [](auto&& spoil) {
    BenchExchangeOptions o = small();
    spoil(o);
    return test::usage_error_of([&] { bench_exchange(o); });
  };
  EXPECT_THAT(text_with([](auto& o) { o.ranks = 1; }), HasSubstr("ranks = 1 is outside 2..256"));
  EXPECT_THAT(text_with([](auto& o) { o.hidden = 16; }), HasSubstr("hidden = 16 is outside 32.."));
  EXPECT_THAT(text_with([](auto& o) {
                o.hidden = 97;
                o.payload = ExchangePayload::kNvfp4;
              }),
              HasSubstr("hidden = 97 is odd"));
  EXPECT_THAT(text_with([](auto& o) { o.tokens = {}; }), HasSubstr("no tokens"));
  EXPECT_THAT(text_with([](auto& o) { o.tokens = {0}; }), HasSubstr("tokens = 0"));
  EXPECT_THAT(text_with([](auto& o) { o.seconds = 0; }), HasSubstr("seconds = 0"));
  EXPECT_THAT(text_with([](auto& o) { o.most_copied = 5; }), HasSubstr("most_copied = 5"));
  EXPECT_THAT(text_with([](auto& o) { o.top_k = 17; }), HasSubstr("17"));
  EXPECT_THAT(text_with([](auto& o) {
                o.hidden = 65536;
                o.tokens = {8, 100'000'000};
              }),
              testing::ContainsRegex("tokens = 100000000 x hidden = 65536 on [0-9]+ ranks takes "
                                     "about [0-9]+ MiB and [0-9]+ MiB are available"));
  EXPECT_THAT(text_with([](auto& o) { o.strategy = "pigeons"; }), HasSubstr("pigeons"));
  BenchExchangeOptions pinned = small();
  pinned.strategy = "nccl";
  try {
    bench_exchange(pinned);
    ADD_FAILURE();
  } catch (const CannotServe& e) {
    EXPECT_THAT(e.what(), HasSubstr("nccl: NCCL is not in this build"));
  }
  EXPECT_THAT(test::usage_error_of([] { to_exchange_payload("int3"); }), HasSubstr("int3"));
  EXPECT_THAT(test::usage_error_of([] { to_traffic_pattern("rng"); }), HasSubstr("ring"));
}

}  // namespace
}  // namespace switchyard
