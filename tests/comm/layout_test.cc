// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "switchyard/base/check.h"
#include "tests/cases/exchange_case.h"

namespace switchyard::comm {
namespace {

ExchangeShape odd_shape(std::int64_t capacity) {
  ExchangeShape shape = test::exchange_shape(2, 3, 3, capacity, 64);
  shape.row_bytes = 65;
  shape.scale_bytes = 5;
  shape.share_bytes = 131;
  return shape;
}

/// A region as its owner uses it.
struct Region {
  const char* name;
  std::int64_t begin, bytes;
};

std::vector<Region> regions_of(const ExchangeLayout& l, const ExchangeShape& s, bool fifo) {
  std::vector<Region> out = {
      {"flags", l.flags, kNumFlags * s.ranks() * ExchangeLayout::kLineBytes},
      {"bell", l.bell, ExchangeLayout::kLineBytes},
      {"headers", l.headers, 2 * s.ranks() * std::int64_t(sizeof(MessageHeader))},
      {"counts", l.counts, 2 * s.ranks() * l.counts_per_source * 4},
      {"stats", l.stats, 2 * s.ranks() * s.num_stats * 4}};
  if (fifo) {
    out.push_back({"fifos", l.fifos, s.ranks() * l.fifo_depth * l.entry_stride});
    return out;
  }
  out.push_back({"hidden", l.hidden, l.rows * l.row_stride});
  out.push_back({"scales", l.scales, l.rows * l.scale_stride});
  out.push_back({"ids", l.ids, l.rows * l.ids_per_row * 4});
  out.push_back({"weights", l.weights, l.rows * l.ids_per_row * 4});
  out.push_back({"shares", l.shares, l.rows * l.share_stride});
  return out;
}

std::vector<std::pair<ExchangeLayout, bool>> layouts_of(const ExchangeShape& shape) {
  return {{make_push_layout(shape, RowLayout::kRankMajor), false},
          {make_push_layout(shape, RowLayout::kCompact), false},
          {make_push_layout(shape, RowLayout::kExpertMajor), false},
          {make_fifo_layout(shape), true}};
}

TEST(Layout, RegionsOfOddSizesAreAlignedApartAndGuarded) {
  for (std::int64_t capacity : {1, 3, 5, 127}) {
    const ExchangeShape shape = odd_shape(capacity);
    for (const auto& [layout, fifo] : layouts_of(shape)) {
      std::int64_t end = 0;
      const std::vector<Region> regions = regions_of(layout, shape, fifo);
      ASSERT_EQ(layout.num_guards, std::int64_t(regions.size()));
      for (std::size_t i = 0; i < regions.size(); ++i) {
        const Region& r = regions[i];
        EXPECT_EQ(r.begin % 128, 0) << r.name;
        EXPECT_GE(r.begin, end) << r.name << " begins inside the one before it";
        EXPECT_EQ(layout.guards[i], r.begin + r.bytes) << r.name << " ends at its guard";
        end = r.begin + r.bytes + ExchangeLayout::kGuardBytes;
      }
      EXPECT_EQ(layout.bytes, end);
      EXPECT_EQ(layout.row_stride % 16, 0);
      EXPECT_EQ(layout.scale_stride % 16, 0);
      EXPECT_EQ(layout.share_stride % 16, 0);
      EXPECT_EQ(layout.entry_stride % 64, 0);
      EXPECT_GE(layout.row_stride, shape.row_bytes);
      EXPECT_GE(layout.share_stride, shape.share_bytes);
    }
  }
}

TEST(Layout, RowsOfEachForm) {
  const ExchangeShape shape = odd_shape(5);  // 2 ranks, 3 slots, k 3
  const ExchangeLayout rank_major = make_push_layout(shape, RowLayout::kRankMajor);
  EXPECT_EQ(rank_major.rows, 2 * 5);
  EXPECT_EQ(rank_major.ids_per_row, 3);
  EXPECT_EQ(rank_major.counts_per_source, 0);
  const ExchangeLayout compact = make_push_layout(shape, RowLayout::kCompact);
  EXPECT_EQ(compact.rows, 2 * 5);
  EXPECT_EQ(compact.counts_per_source, 2);
  const ExchangeLayout expert_major = make_push_layout(shape, RowLayout::kExpertMajor);
  EXPECT_EQ(expert_major.rows, 2 * 5 * 2);  // a rank holds two slots at most
  EXPECT_EQ(expert_major.ids_per_row, 1);
  EXPECT_EQ(expert_major.counts_per_source, 2);
  ExchangeShape larger = shape;
  larger.capacity = 500;
  EXPECT_EQ(make_fifo_layout(shape).bytes, make_fifo_layout(larger).bytes);
  EXPECT_GT(make_push_layout(larger, RowLayout::kRankMajor).bytes, rank_major.bytes);
}

// Exchanges one apart never share a header, count or statistic; two apart do.
TEST(Layout, BanksAlternate) {
  const ExchangeShape shape = odd_shape(5);
  const ExchangeLayout l = make_push_layout(shape, RowLayout::kExpertMajor);
  for (std::uint32_t sequence : {0U, 1U, 0xffffffffU}) {
    EXPECT_NE(l.header(sequence, 1), l.header(sequence + 1, 1));
    EXPECT_EQ(l.header(sequence, 1), l.header(sequence + 2, 1));
    EXPECT_NE(l.count(sequence, 1), l.count(sequence + 1, 1));
    EXPECT_NE(l.stat(sequence, 1), l.stat(sequence + 1, 1));
    EXPECT_EQ(l.header(sequence, 1) - l.header(sequence, 0), std::int64_t(sizeof(MessageHeader)));
    EXPECT_EQ(l.stat(sequence, 1) - l.stat(sequence, 0), shape.num_stats * 4);
  }
  for (int f = 0; f < kNumFlags; ++f)
    for (int r = 0; r < 2; ++r)
      EXPECT_EQ(l.flag(Flag(f), r), l.flags + (f * 2 + r) * ExchangeLayout::kLineBytes);
}

// The control of every canaries_intact() elsewhere: one byte of one guard is enough.
TEST(Layout, EveryByteOfEveryGuardIsWatched) {
  for (const auto& [layout, fifo] : layouts_of(odd_shape(3))) {
    std::vector<std::byte> slice(std::size_t(layout.bytes));
    EXPECT_FALSE(guards_intact(layout, slice.data())) << "not yet filled";
    fill_guards(layout, slice.data());
    EXPECT_TRUE(guards_intact(layout, slice.data()));
    for (std::int64_t g = 0; g < layout.num_guards; ++g)
      for (std::int64_t i : {std::int64_t(0), ExchangeLayout::kGuardBytes - 1}) {
        std::byte& b = slice[std::size_t(layout.guards[std::size_t(g)] + i)];
        b ^= std::byte{1};
        EXPECT_FALSE(guards_intact(layout, slice.data())) << "guard " << g << " byte " << i;
        b ^= std::byte{1};
      }
    for (const Region& r : regions_of(layout, odd_shape(3), fifo))
      std::fill_n(slice.data() + r.begin, r.bytes, std::byte{0x11});
    EXPECT_TRUE(guards_intact(layout, slice.data())) << "a full region touches no guard";
  }
}

}  // namespace
}  // namespace switchyard::comm
