// SPDX-License-Identifier: Apache-2.0
// What an exchange refuses: shapes, arguments, tickets; each by name, and none harms what follows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "switchyard/base/check.h"
#include "tests/cases/exchange_case.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"

namespace switchyard::comm {
namespace {

using test::expect_all_well;
using test::long_deadlines;
using test::on_thread_ranks;
using test::PayloadKind;
using test::text_of;
using testing::HasSubstr;

const Strategy* const kBuilt[] = {&all_gather(), &one_sided(), &two_sided(), &expert_major(),
                                  &compact()};

ExchangeShape legal_shape() {
  return {.ep = 2,
          .tp = 1,
          .slots = 6,
          .top_k = 3,
          .capacity = 4,
          .hidden = 32,
          .row_bytes = 64,
          .scale_bytes = 8,
          .share_bytes = 64,
          .num_stats = 6};
}

/// One field moved to just beyond a limit.
struct BadShape {
  const char* text;
  void (*spoil)(ExchangeShape& s);
};

TEST(ExchangeShape, EveryFieldHasItsLimits) {
  legal_shape().check();
  const BadShape kCases[] = {
      {"ep = 0 is outside 1..256", [](ExchangeShape& s) { s.ep = 0; }},
      {"ep = 257 is outside 1..256", [](ExchangeShape& s) { s.ep = 257; }},
      {"tp = 0 is outside 1..256", [](ExchangeShape& s) { s.tp = 0; }},
      {"ranks = 260 is outside 1..256",
       [](ExchangeShape& s) {
         s.tp = 130;
         s.ep = 2;
       }},
      {"slots = 1 is outside 2..65536", [](ExchangeShape& s) { s.slots = 1; }},
      {"slots = 65537 is outside", [](ExchangeShape& s) { s.slots = 65537; }},
      {"top_k = 0 is outside 1..32", [](ExchangeShape& s) { s.top_k = 0; }},
      {"top_k = 33 is outside 1..32", [](ExchangeShape& s) { s.top_k = 33; }},
      {"hidden = 0 is outside 1..", [](ExchangeShape& s) { s.hidden = 0; }},
      {"hidden = ", [](ExchangeShape& s) { s.hidden = kMaxWidth + 1; }},
      {"row_bytes = 0 is outside 1..", [](ExchangeShape& s) { s.row_bytes = 0; }},
      {"row_bytes = ", [](ExchangeShape& s) { s.row_bytes = kMaxWidth * 4 + 1; }},
      {"scale_bytes = -1 is outside 0..", [](ExchangeShape& s) { s.scale_bytes = -1; }},
      {"scale_bytes = ", [](ExchangeShape& s) { s.scale_bytes = kMaxWidth * 4 + 1; }},
      {"share_bytes = 0 is outside 1..", [](ExchangeShape& s) { s.share_bytes = 0; }},
      {"share_bytes = ", [](ExchangeShape& s) { s.share_bytes = kMaxWidth * 4 + 1; }},
      {"num_stats = -1 is outside 0..65536", [](ExchangeShape& s) { s.num_stats = -1; }},
      {"num_stats = 65537 is outside", [](ExchangeShape& s) { s.num_stats = 65537; }},
      {"capacity = 0 is outside 1..357913941", [](ExchangeShape& s) { s.capacity = 0; }},
      {"capacity = 357913942 is outside", [](ExchangeShape& s) { s.capacity = 357913942; }}};
  for (const BadShape& c : kCases) {
    ExchangeShape s = legal_shape();
    c.spoil(s);
    try {
      s.check();
      ADD_FAILURE() << c.text << " was let through";
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), HasSubstr(c.text));
    }
  }
  ExchangeShape largest = legal_shape();
  largest.capacity = 357913941;  // 2 ranks * 3 slots * capacity < 2^31
  largest.top_k = kMaxChoices;
  largest.check();
}

// The limits are asked before anything is allocated, and every rank hears of it.
TEST(ExchangeShape, IsCheckedAtCreation) {
  expect_all_well(on_thread_ranks(2, long_deadlines(), [](Group& g) {
    for (const Strategy* strategy : kBuilt) {
      ExchangeShape s = legal_shape();
      s.capacity = 357913942;
      EXPECT_THROW(make_exchange(*strategy, g, s), UsageError) << strategy->name;
      s = legal_shape();
      s.ep = 3;
      try {
        make_exchange(*strategy, g, s);
        ADD_FAILURE() << strategy->name;
      } catch (const UsageError& e) {
        EXPECT_THAT(e.what(), HasSubstr("make 3 ranks, the group has 2"));
      }
      s = legal_shape();
      s.ep = 1;
      s.tp = 2;
      if (strategy == &all_gather()) continue;
      try {
        make_exchange(*strategy, g, s);
        ADD_FAILURE() << strategy->name;
      } catch (const UsageError& e) {
        EXPECT_THAT(e.what(), HasSubstr("serves no cut experts (tp = 2); use all_gather"));
      }
    }
    for (const auto& [strategy, why] :
         {std::pair(&nccl(), "strategy nccl is not built in this version"),
          std::pair(&fused(), "strategy fused is a leaf that exchanges tokens itself")})
      try {
        make_exchange(*strategy, g, legal_shape());
        ADD_FAILURE() << strategy->name;
      } catch (const UsageError& e) {
        EXPECT_THAT(e.what(), HasSubstr(why));
      }
  }));
}

ExchangeShape single_shape(std::int64_t hidden, std::int64_t num_stats) {
  ExchangeShape s = test::exchange_shape(1, 6, 3, 4, hidden, PayloadKind::kFp8Block, Wire::kBf16);
  s.num_stats = num_stats;
  return s;
}

/// A good exchange of one rank; the arguments are as the input says.
void good_exchange(const Strategy& strategy, const ExchangeShape& shape) {
  expect_all_well(on_thread_ranks(1, long_deadlines(), [&](Group& g) {
    auto exchange = make_exchange(strategy, g, shape);
    test::ExchangeInput in(shape, 0, 4, 0, PayloadKind::kFp8Block, Wire::kBf16);
    DispatchArgs args = in.args();
    if (shape.num_stats == 0) args.stats = nullptr;
    Ticket ticket = exchange->dispatch(args);
    test::serve(ticket.received(), shape, strategy.contract, in.payload, 0);
    test::SumCollector got(4, shape.hidden);
    exchange->combine(std::move(ticket), got.sink());
    EXPECT_TRUE(test::same_bits(got.sums, test::expected_sums(in, strategy.contract)));
  }));
}

/// One argument broken.
struct BadArgs {
  const char* text;
  void (*spoil)(DispatchArgs& a);
  std::int64_t hidden = 32, num_stats = 6;
};

TEST(DispatchArgs, EveryFieldIsChecked) {
  static std::vector<std::int32_t> ids(12, -1);
  const BadArgs kCases[] = {
      {"dispatch of 5 tokens on rank 0 exceeds the capacity 4; split the batch or build the "
       "exchange for more",
       [](DispatchArgs& a) { a.tokens = 5; }},
      {"dispatch of -1 tokens", [](DispatchArgs& a) { a.tokens = -1; }},
      {"rows of 0 bytes; the exchange was built for 1..32",
       [](DispatchArgs& a) { a.row_bytes = 0; }},
      {"rows of 33 bytes", [](DispatchArgs& a) { a.row_bytes = 33; }},
      {"scales of -1 bytes a row; the exchange was built for 0..4",
       [](DispatchArgs& a) { a.scale_bytes = -1; }},
      {"scales of 5 bytes", [](DispatchArgs& a) { a.scale_bytes = 5; }},
      {"a share in f32 takes 128 bytes; the exchange was built for 64",
       [](DispatchArgs& a) { a.wire = Wire::kF32; }},
      {"hidden = 33 is odd", [](DispatchArgs& a) { a.wire = Wire::kNvfp4; }, 33},
      {"the exchange was built for none", [](DispatchArgs&) {}, 32, 0},
      {"are null with 4 tokens", [](DispatchArgs& a) { a.hidden = nullptr; }},
      {"are null with 4 tokens", [](DispatchArgs& a) { a.ids = nullptr; }},
      {"are null with 4 tokens", [](DispatchArgs& a) { a.weights = nullptr; }},
      {"are null with 4 tokens", [](DispatchArgs& a) { a.scales = nullptr; }},
      {"a stride is shorter than its row", [](DispatchArgs& a) { a.hidden_stride = 31; }},
      {"a stride is shorter than its row", [](DispatchArgs& a) { a.scale_stride = 3; }},
      {"choice 2 of token 1 has id 6; legal are 0..5 and -1",
       [](DispatchArgs& a) {
         ids.assign(12, -1);
         ids[5] = 6;
         a.ids = ids.data();
       }},
      {"choice 0 of token 0 has id -2",
       [](DispatchArgs& a) {
         ids.assign(12, -1);
         ids[0] = -2;
         a.ids = ids.data();
       }},
  };
  for (const Strategy* strategy : kBuilt) {
    for (const BadArgs& c : kCases) {
      const ExchangeShape shape = single_shape(c.hidden, c.num_stats);
      const test::ExchangeInput in(single_shape(c.hidden, 6), 0, 4, 0, PayloadKind::kFp8Block,
                                   Wire::kBf16);
      test::Outcomes out = on_thread_ranks(1, long_deadlines(), [&](Group& g) {
        auto exchange = make_exchange(*strategy, g, shape);
        DispatchArgs args = in.args();
        c.spoil(args);
        try {
          exchange->dispatch(args);
        } catch (...) {
          EXPECT_TRUE(g.aborted()) << c.text;
          throw;
        }
      });
      EXPECT_THAT(text_of<UsageError>(out[0]), HasSubstr(c.text)) << strategy->name;
    }
    good_exchange(*strategy, single_shape(32, 6));
    good_exchange(*strategy, single_shape(32, 0));
  }
}

TEST(DispatchArgs, WithoutTokensNothingIsRead) {
  for (const Strategy* strategy : kBuilt)
    expect_all_well(on_thread_ranks(1, long_deadlines(), [&](Group& g) {
      auto exchange = make_exchange(*strategy, g, single_shape(32, 6));
      Ticket ticket = exchange->dispatch({.tokens = 0, .row_bytes = 32, .wire = Wire::kBf16});
      EXPECT_EQ(ticket.received().num_rows, 0);
      EXPECT_TRUE(ticket.received().segments.empty());
      EXPECT_EQ(ticket.received().stats, nullptr);
      test::SumCollector got(0, 32);
      exchange->combine(std::move(ticket), got.sink());
      EXPECT_EQ(got.rows, 0);
    }));
}

TEST(Ticket, BelongsToOneExchangeAndOneDispatch) {
  for (const Strategy* strategy : kBuilt) {
    const ExchangeShape shape = single_shape(32, 6);
    const test::ExchangeInput in(shape, 0, 4, 0, PayloadKind::kFp8Block, Wire::kBf16);
    test::SumCollector sums(4, 32);
    auto provoke = [&](auto&& f) {
      return text_of<UsageError>(on_thread_ranks(1, long_deadlines(), [&](Group& g) {
        auto one = make_exchange(*strategy, g, shape), other = make_exchange(*strategy, g, shape);
        f(*one, *other);
      })[0]);
    };
    EXPECT_THAT(provoke([&](Exchange& one, Exchange& other) {
                  Ticket ticket = one.dispatch(in.args());
                  other.combine(std::move(ticket), sums.sink());
                }),
                HasSubstr("not of this exchange's last dispatch"));
    EXPECT_THAT(provoke([&](Exchange& one, Exchange& other) {
                  [[maybe_unused]] Ticket ticket = one.dispatch(in.args());
                  Ticket foreign = other.dispatch(in.args());  // of the same sequence number
                  one.combine(std::move(foreign), sums.sink());
                }),
                HasSubstr("not of this exchange's last dispatch"));
    EXPECT_THAT(provoke([&](Exchange& one, Exchange&) {
                  Ticket ticket = one.dispatch(in.args());
                  test::serve(ticket.received(), shape, strategy->contract, in.payload, 0);
                  Ticket moved = std::move(ticket);
                  one.combine(std::move(moved), sums.sink());
                  one.combine(std::move(ticket), sums.sink());  // NOLINT: the misuse in question
                }),
                HasSubstr("not of this exchange's last dispatch"));
    EXPECT_THAT(provoke([&](Exchange& one, Exchange&) {
                  [[maybe_unused]] Ticket first = one.dispatch(in.args());
                  [[maybe_unused]] Ticket second = one.dispatch(in.args());
                }),
                HasSubstr("dispatch before the combine of the last one"));
    EXPECT_THAT(text_of<InternalError>(on_thread_ranks(1, long_deadlines(),
                                                       [&](Group& g) {
                                                         auto one =
                                                             make_exchange(*strategy, g, shape);
                                                         one->combine(one->dispatch(in.args()), {});
                                                       })[0]),
                HasSubstr("a combine without a sink"));
    good_exchange(*strategy, shape);
  }
}

}  // namespace
}  // namespace switchyard::comm
