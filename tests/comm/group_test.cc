// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "switchyard/base/check.h"
#include "switchyard/comm/agreement.h"
#include "switchyard/comm/posix_memory.h"
#include "switchyard/comm/symmetric_memory.h"
#include "tests/comm/thread_ranks.h"

namespace switchyard::comm {
namespace {

using test::expect_all_well;
using test::long_deadlines;
using test::on_thread_ranks;
using test::Outcomes;
using test::short_deadlines;
using test::text_of;
using testing::HasSubstr;

constexpr int kSizes[] = {1, 2, 3, 4, 8};

TEST(Sequence, ComparesAcrossTheWrap) {
  EXPECT_TRUE(reached(5, 5));
  EXPECT_TRUE(reached(6, 5));
  EXPECT_FALSE(reached(4, 5));
  EXPECT_TRUE(reached(1, 0xffffffffU));
  EXPECT_FALSE(reached(0xffffffffU, 1));
}

TEST(ThreadGroup, BarrierHoldsEverybodyBack) {
  for (int size : kSizes) {
    std::atomic<int> arrived{0};
    std::atomic<bool> early{false};
    expect_all_well(on_thread_ranks(size, long_deadlines(), [&](Group& g) {
      constexpr int kRounds = 50;
      for (int round = 1; round <= kRounds; ++round) {
        ++arrived;
        g.barrier("test");
        if (arrived < round * size) early = true;
        g.barrier("test");
      }
    }));
    EXPECT_FALSE(early) << size;
    EXPECT_EQ(arrived, 50 * size);
  }
}

TEST(ThreadGroup, AllGatherKeepsOrderAndLengths) {
  for (int size : kSizes) {
    expect_all_well(on_thread_ranks(size, long_deadlines(), [&](Group& g) {
      for (std::size_t length : {0U, 1U, 1023U, 1024U, 1025U, 5000U}) {
        auto text = [&](int r) {
          return std::string(length * std::size_t(r + 1) / 2, char('a' + r));
        };
        std::vector<std::string> all = g.all_gather(text(g.rank()), "test");
        ASSERT_EQ(int(all.size()), size);
        for (int r = 0; r < size; ++r) EXPECT_EQ(all[std::size_t(r)], text(r)) << length;
      }
    }));
  }
}

TEST(ThreadGroup, VoteNeedsEveryVoice) {
  expect_all_well(on_thread_ranks(4, long_deadlines(), [](Group& g) {
    EXPECT_TRUE(g.vote(true, "test"));
    EXPECT_FALSE(g.vote(g.rank() != 2, "test"));
    EXPECT_TRUE(g.vote(true, "test"));
  }));
}

TEST(ThreadGroup, RefusesSizesOutsideItsRange) {
  EXPECT_THROW(make_thread_groups(0, long_deadlines()), UsageError);
  EXPECT_THROW(make_thread_groups(kMaxGroupRanks + 1, long_deadlines()), UsageError);
  EXPECT_EQ(make_thread_groups(kMaxGroupRanks, long_deadlines()).size(), kMaxGroupRanks);
}

TEST(Guarded, EveryRankLearnsOfEveryFailure) {
  expect_all_well(on_thread_ranks(3, long_deadlines(), [](Group& g) {
    auto some_fail = [&] {
      if (g.rank() != 1) throw UsageError(cat("trouble of ", g.rank()));
    };
    try {
      guarded(g, "packing", some_fail);
      ADD_FAILURE() << "nothing was thrown on rank " << g.rank();
    } catch (const UsageError& e) {
      EXPECT_STREQ(e.what(), "packing failed: rank 0: trouble of 0; rank 2: trouble of 2");
    }
    guarded(g, "packing", [] {});  // the group is still in step
  }));
}

// 64 ranks that say one thing say it in one line, and not in 64.
TEST(JoinedErrors, SaysEachTextOnce) {
  std::vector<std::string> all(64, "no memory");
  EXPECT_EQ(joined_errors(all), "all 64 ranks: no memory");
  all[3] = "";
  all[5] = "no disk";
  EXPECT_TRUE(joined_errors(all).starts_with("ranks 0, 1, 2, 4, 6, 7, "));
  EXPECT_TRUE(joined_errors(all).ends_with(", 63: no memory; rank 5: no disk"));
  for (std::size_t r = 0; r < all.size(); ++r) all[r] = cat("trouble of ", r);
  EXPECT_TRUE(joined_errors(all).ends_with("rank 7: trouble of 7; 56 more ranks fail"));
  EXPECT_EQ(joined_errors(std::vector<std::string>(3)), "");
  EXPECT_EQ(joined_errors(std::vector<std::string>{"alone"}), "rank 0: alone");
}

TEST(Agree, PrintsBothSides) {
  expect_all_well(on_thread_ranks(3, long_deadlines(), [](Group& g) {
    std::vector<Agreed> same = {{"fingerprint", "aa"}, {"slots", "8"}};
    agree(g, same, "group creation");
    std::vector<Agreed> other = {{"fingerprint", "aa"}, {"slots", g.rank() == 2 ? "10" : "8"}};
    try {
      agree(g, other, "group creation");
      ADD_FAILURE() << "nothing was thrown on rank " << g.rank();
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), HasSubstr("rank 0 has slots = '8', rank 2 has slots = '10'"));
    }
    if (g.rank() == 1) same.pop_back();
    EXPECT_THROW(agree(g, same, "group creation"), UsageError);
    agree(g, {}, "group creation");
  }));
}

// Rank 2 never comes: the first that loses patience names it, the others hear of that.
TEST(Deadline, NamesWhoIsMissingAndFreesTheOthers) {
  const auto start = std::chrono::steady_clock::now();
  Outcomes out = on_thread_ranks(4, short_deadlines(), [](Group& g) {
    if (g.rank() != 2) g.barrier("roll call");
  });
  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_GE(elapsed, short_deadlines().warm_up);
  EXPECT_FALSE(out[2]);
  int first = 0;
  for (int r : {0, 1, 3}) {
    std::string text = text_of<PeerError>(out[std::size_t(r)]);
    EXPECT_THAT(text, HasSubstr("for rank 2 in roll call")) << r;
    if (text.starts_with(cat("rank ", r, " waited"))) ++first;
    try {
      std::rethrow_exception(out[std::size_t(r)]);
    } catch (const PeerError& e) {
      EXPECT_EQ(e.facts().rank, r);
      EXPECT_EQ(e.facts().phase, "roll call");
      EXPECT_GT(e.facts().elapsed_s, 0);
    }
  }
  EXPECT_GE(first, 1);
  // The process is none the worse: a new group works.
  expect_all_well(on_thread_ranks(4, long_deadlines(), [](Group& g) { g.barrier("again"); }));
}

TEST(Abort, EndsWaitsLongBeforeTheirDeadline) {
  const auto start = std::chrono::steady_clock::now();
  Outcomes out = on_thread_ranks(3, long_deadlines(), [](Group& g) {
    if (g.rank() == 1) {
      g.abort("its tokens exceed the capacity");
      g.abort("a second text loses");
      EXPECT_TRUE(g.aborted());
      return;
    }
    g.barrier("dispatch");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  for (std::size_t r : {0U, 2U})
    EXPECT_THAT(text_of<PeerError>(out[r]),
                HasSubstr("rank 1 gave up (its tokens exceed the capacity)"));
}

TEST(Deadlines, ComeFromTheSwitches) {
  Environment env;
  env.local_flags = {{"SWITCHYARD_SERVING_TIMEOUT_S", "7"},
                     {"SWITCHYARD_WARMUP_TIMEOUT_S", "86400"}};
  EXPECT_EQ(deadlines_of(env).serving, std::chrono::seconds(7));
  EXPECT_EQ(deadlines_of(env).warm_up, std::chrono::seconds(86400));
  EXPECT_THROW(deadlines_of(Environment{}), InternalError);
}

TEST(SymmetricMemory, EveryRankSeesEverySlice) {
  for (int size : kSizes) {
    expect_all_well(on_thread_ranks(size, long_deadlines(), [&](Group& g) {
      for (std::size_t bytes : {std::size_t(1), std::size_t(4096), std::size_t(100'000)}) {
        const SymmetricMemory memory(g, bytes);
        EXPECT_GE(memory.total_bytes(), bytes * std::size_t(size));
        for (int r = 0; r < size; ++r) {
          EXPECT_EQ(std::uintptr_t(memory.slice(r)) % 4096, 0U);
          EXPECT_EQ(memory.slice(r)[bytes - 1], std::byte(0));
        }
        g.barrier("test");
        for (int r = 0; r < size; ++r)  // one byte of every slice is mine
          if (bytes > 8) memory.slice(r)[g.rank()] = std::byte(10 * r + g.rank() + 1);
        g.barrier("test");
        for (int r = 0; r < size && bytes > 8; ++r)
          for (int w = 0; w < size; ++w) EXPECT_EQ(memory.slice(r)[w], std::byte(10 * r + w + 1));
        g.barrier("test");
      }
    }));
  }
}

TEST(SymmetricMemory, UnequalSizesAreRefusedOnEveryRank) {
  expect_all_well(on_thread_ranks(2, long_deadlines(), [](Group& g) {
    EXPECT_THROW(SymmetricMemory(g, g.rank() == 0 ? 4096 : 8192), UsageError);
    EXPECT_THROW(SymmetricMemory(g, std::size_t(1) << 60), UsageError);
    const SymmetricMemory good(g, 64);
    EXPECT_EQ(good.slice(1)[63], std::byte(0));
  }));
}

TEST(PosixMemory, IsSharedByNameAndGivenBack) {
  PosixMemory mine = PosixMemory::create(8192);
  std::string name = mine.name();
  ASSERT_FALSE(name.empty());
  PosixMemory theirs = PosixMemory::open(name, 8192);
  std::memset(mine.mapped().bytes.data(), 0x5a, 8192);
  EXPECT_EQ(theirs.mapped().bytes[8191], std::byte(0x5a));
  mine.unlink();
  EXPECT_TRUE(mine.name().empty());
  EXPECT_THROW(PosixMemory::open(name, 8192), UsageError);
  EXPECT_EQ(theirs.mapped().bytes[0], std::byte(0x5a));  // mappings outlive the name
  EXPECT_THROW(PosixMemory::create(std::size_t(1) << 50), UsageError);
}

}  // namespace
}  // namespace switchyard::comm
