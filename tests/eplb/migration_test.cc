// SPDX-License-Identifier: Apache-2.0
// Slots of experts, the choice among replicas, and the copies between two placements.
#include "switchyard/eplb/migration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "switchyard/base/random.h"
#include "switchyard/eplb/placement.h"
#include "switchyard/eplb/slot_map.h"
#include "tests/support/usage_error.h"

namespace switchyard::eplb {
namespace {

using test::usage_error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using Slots = std::vector<std::int32_t>;

TEST(SlotMap, ListsReplicasInAscendingOrder) {
  const SlotMap map(Slots{0, 1, 2, 2, 0, 2}, 3);
  EXPECT_EQ(map.num_slots(), 6);
  EXPECT_EQ(map.num_experts(), 3);
  EXPECT_THAT(map.replicas(0), ElementsAre(0, 4));
  EXPECT_THAT(map.replicas(1), ElementsAre(1));
  EXPECT_THAT(map.replicas(2), ElementsAre(2, 3, 5));
}

TEST(SlotMap, RefusesLostAndUnknownExperts) {
  EXPECT_THAT(usage_error_of([] { SlotMap(Slots{0, 1}, 3); }), HasSubstr("expert 2 has no slot"));
  EXPECT_THAT(usage_error_of([] { SlotMap(Slots{0, 3}, 2); }), HasSubstr("slot 1 holds expert 3"));
  EXPECT_THAT(usage_error_of([] {
                SlotMap(Slots{0, -1}, 1);
              }),
              HasSubstr("slot 1 holds expert -1"));
}

TEST(SlotMap, OneSlotEachIsTheIdentity) {
  Slots slots(11);
  std::iota(slots.begin(), slots.end(), 0);
  const SlotMap map(slots, 11);
  Slots ids{3, -1, 10, 0};
  map.route(ids, 0x123);
  EXPECT_EQ(ids, (Slots{3, -1, 10, 0}));
}

std::vector<std::byte> row_of(std::int64_t token) {
  std::vector<std::byte> row(256);
  const Random random(5, std::uint64_t(token));
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = std::byte(random.bits(i));
  return row;
}

/// How often each replica is taken when `tokens` tokens choose every expert of `map` at once.
std::vector<std::int64_t> shares(const SlotMap& map, std::int64_t tokens, bool same_token) {
  std::vector<std::int64_t> count(std::size_t(map.num_slots()), 0);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t e = 0; e < map.num_experts(); ++e) {
      const std::int32_t slot = map.slot_of(std::int32_t(e), token_key(row_of(same_token ? 0 : t)));
      EXPECT_EQ(map.experts()[std::size_t(slot)], e);
      ++count[std::size_t(slot)];
    }
  return count;
}

TEST(SlotMap, SharesTokensEvenlyAmongReplicas) {
  const Slots slots{0, 1, 2, 3, 0, 1, 2, 0, 1, 0, 0};  // 5, 3, 2 and 1 replicas
  const SlotMap map(slots, 4);
  constexpr std::int64_t kTokens = 6000;
  constexpr double kOff = 0.1;  // three standard errors of 1200 tokens are 8 %
  const auto worst = [&](bool same_token) {
    const std::vector<std::int64_t> count = shares(map, kTokens, same_token);
    double out = 0;
    for (std::size_t s = 0; s < slots.size(); ++s) {
      const double even = double(kTokens) / double(map.replicas(slots[s]).size());
      out = std::max(out, std::abs(double(count[s]) - even) / even);
    }
    return out;
  };
  EXPECT_LT(worst(false), kOff);
  EXPECT_GT(worst(true), kOff) << "the control: one token over and over has one replica";
}

TEST(SlotMap, ExpertsDrawIndependently) {
  // Were the draw the token's alone, two experts with two replicas each would always go together.
  const SlotMap map(Slots{0, 1, 0, 1}, 2);
  std::int64_t together = 0;
  constexpr std::int64_t kTokens = 4000;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const std::uint64_t key = token_key(row_of(t));
    together += (map.slot_of(0, key) >= 2) == (map.slot_of(1, key) >= 2);
  }
  EXPECT_GT(together, kTokens * 2 / 5);
  EXPECT_LT(together, kTokens * 3 / 5);
}

TEST(TokenKey, DependsOnTheRowsFirstBytesOnly) {
  const std::vector<std::byte> row = row_of(1);
  const std::uint64_t key = token_key(row);
  for (std::size_t i = 0; i < kTokenKeyBytes; ++i) {
    std::vector<std::byte> other = row;
    other[i] ^= std::byte(1);
    EXPECT_NE(token_key(other), key) << "byte " << i;
  }
  EXPECT_EQ(token_key(std::span(row).first(kTokenKeyBytes)), key);
  // A short row, whose last word is not whole.
  const std::uint64_t part = token_key(std::span(row).first(13));
  std::vector<std::byte> cut(row.begin(), row.begin() + 13);
  EXPECT_EQ(token_key(cut), part);
  cut[12] ^= std::byte(1);
  EXPECT_NE(token_key(cut), part);
}

/// `before` after the moves, every source read from `before`.
Slots carried_out(const Slots& before, std::span<const Move> moves) {
  Slots out = before;
  for (const Move& m : moves) {
    EXPECT_EQ(before[std::size_t(m.from)], m.expert);
    out[std::size_t(m.slot)] = before[std::size_t(m.from)];
  }
  return out;
}

TEST(Moves, SwapTakesBothFromWhatStood) {
  const Slots before{0, 1, 2, 3}, after{2, 1, 0, 3};
  EXPECT_THAT(plan_moves(before, after, 2), ElementsAre(Move{0, 2, 2}, Move{2, 0, 0}));
}

TEST(Moves, PreferTheOwnRankThenTheOneLeastAsked) {
  // Rank 0 holds 0 1, rank 1 holds 0 2, rank 2 holds 3 4, rank 3 holds 5 6.
  const Slots before{0, 1, 0, 2, 3, 4, 5, 6};
  const Slots after{0, 1, 2, 0, 0, 4, 0, 6};
  // Slot 3 takes expert 0 from its own rank; slots 4 and 6 spread over both holders.
  EXPECT_THAT(plan_moves(before, after, 4),
              ElementsAre(Move{2, 3, 2}, Move{3, 2, 0}, Move{4, 0, 0}, Move{6, 2, 0}));
}

TEST(Moves, RefuseWhatCannotBeCarriedOut) {
  EXPECT_THAT(usage_error_of([] {
                plan_moves(Slots{0, 1}, Slots{0, 1, 1}, 1);
              }),
              HasSubstr("2 slots are to become 3"));
  EXPECT_THAT(usage_error_of([] {
                plan_moves(Slots{0, 1, 2}, Slots{0, 1, 2}, 2);
              }),
              HasSubstr("ranks = 2 do not divide slots = 3"));
  EXPECT_THAT(usage_error_of([] {
                plan_moves(Slots{0, 1}, Slots{0, 2}, 2);
              }),
              HasSubstr("slot 1 is to hold expert 2, which no slot holds now"));
}

Slots shuffled(Slots slots, std::uint64_t seed) {
  const Random random(seed);
  for (std::size_t i = slots.size(); i > 1; --i) std::swap(slots[i - 1], slots[random.bits(i) % i]);
  return slots;
}

TEST(Moves, RoundsShowEachRanksSlotOnceAndCarryEveryMove) {
  constexpr std::int64_t kRanks = 4, kSlots = 24;
  Slots slots;
  for (std::int32_t s = 0; s < kSlots; ++s) slots.push_back(s % 17);
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const Slots before = shuffled(slots, seed), after = shuffled(slots, seed + 1000);
    const std::vector<Move> moves = plan_moves(before, after, kRanks);
    EXPECT_EQ(carried_out(before, moves), after) << seed;
    std::map<std::int64_t, std::set<std::int64_t>> sources;
    for (const Move& m : moves) sources[m.from / (kSlots / kRanks)].insert(m.from);
    std::size_t least = 0;  // a rank shows one of its sources a round
    for (const auto& [rank, of_rank] : sources) least = std::max(least, of_rank.size());
    std::vector<Move> all;
    const std::vector<std::vector<Move>> rounds = in_rounds(moves, kSlots / kRanks);
    EXPECT_EQ(rounds.size(), least) << seed;
    for (const std::vector<Move>& round : rounds) {
      EXPECT_FALSE(round.empty()) << seed;
      std::map<std::int64_t, std::set<std::int64_t>> shown;
      for (const Move& m : round) {
        shown[m.from / (kSlots / kRanks)].insert(m.from);
        all.push_back(m);
      }
      for (const auto& [rank, of_rank] : shown) EXPECT_EQ(of_rank.size(), 1U) << seed;
    }
    const auto by_slot = [](const Move& a, const Move& b) { return a.slot < b.slot; };
    std::sort(all.begin(), all.end(), by_slot);
    EXPECT_EQ(all, moves) << seed;
  }
  EXPECT_TRUE(in_rounds({}, 6).empty());
}

}  // namespace
}  // namespace switchyard::eplb
