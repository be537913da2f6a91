// SPDX-License-Identifier: Apache-2.0
// Run as R processes: mpirun --allow-run-as-root --oversubscribe -n R mpi_group_test
#include "switchyard/comm/mpi_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "switchyard/base/check.h"
#include "switchyard/comm/symmetric_memory.h"
#include "tests/comm/thread_ranks.h"

namespace switchyard::comm {
namespace {

MpiSession& session() {
  static MpiSession instance;
  return instance;
}

class MpiGroup : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  }
};

TEST_F(MpiGroup, RanksAreProcessesThatShareMemory) {
  Group g = session().form_group(test::long_deadlines());
  EXPECT_EQ(g.size(), session().size());
  std::vector<std::string> pids = g.all_gather(cat(getpid()), "test");
  EXPECT_EQ(std::set<std::string>(pids.begin(), pids.end()).size(), std::size_t(g.size()));
  const SymmetricMemory memory(g, 100'000);
  for (int r = 0; r < g.size(); ++r) memory.slice(r)[g.rank()] = std::byte(10 * r + g.rank() + 1);
  g.barrier("test");
  for (int r = 0; r < g.size(); ++r)
    for (int w = 0; w < g.size(); ++w) EXPECT_EQ(memory.slice(r)[w], std::byte(10 * r + w + 1));
  EXPECT_EQ(g.vote(g.rank() != g.size() - 1, "test"), false);
  g.barrier("end");
}

TEST_F(MpiGroup, UnequalRanksAreToldSo) {
  Group g = session().form_group(test::long_deadlines());
  if (g.size() == 1) GTEST_SKIP() << "needs two processes; start with mpirun";
  const Agreed mine{"capacity", g.rank() == 1 ? "64" : "32"};
  try {
    agree(g, {&mine, 1}, "group creation");
    ADD_FAILURE() << "nothing was thrown on rank " << g.rank();
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(),
                testing::HasSubstr("rank 0 has capacity = '32', rank 1 has capacity = '64'"));
  }
}

TEST_F(MpiGroup, ANewGroupFollowsOneThatGaveUp) {
  {
    Group g = session().form_group(test::short_deadlines());
    if (g.size() == 1) GTEST_SKIP() << "needs two processes; start with mpirun";
    if (g.rank() != 1) {
      EXPECT_THROW(g.barrier("roll call"), PeerError);
    }
  }
  Group again = session().form_group(test::long_deadlines());
  again.barrier("test");
}

TEST_F(MpiGroup, TextsMayDifferInLength) {
  const std::string mine(std::size_t(session().rank()) * 1000, 'x');
  const std::vector<std::string> all = session().all_gather(mine, test::long_deadlines().warm_up);
  ASSERT_EQ(all.size(), std::size_t(session().size()));
  for (std::size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r].size(), r * 1000);
}

TEST_F(MpiGroup, NoNameIsLeftBehind) {
  Group g = session().form_group(test::long_deadlines());
  const SymmetricMemory memory(g, 4096);
  std::vector<std::string> pids = g.all_gather(cat(getpid()), "test");
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    for (const std::string& pid : pids)
      EXPECT_FALSE(entry.path().filename().string().starts_with(cat("switchyard.", pid, ".")))
          << entry.path();
  g.barrier("end");
}

// The last one: behind it the session serves nobody.
TEST_F(MpiGroup, ZOtherCallsAreToldApart) {
  if (session().size() == 1) GTEST_SKIP() << "needs two processes; start with mpirun";
  const auto budget = test::long_deadlines().warm_up;
  try {
    if (session().rank() == 1) {
      session().all_gather("mine", budget);
    } else {
      session().form_group(test::long_deadlines());
    }
    ADD_FAILURE() << "nothing was thrown on rank " << session().rank();
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(),
                testing::HasSubstr("rank 0 is in group formation, rank 1 in exchange of texts"));
  }
  EXPECT_THROW(session().all_gather("mine", budget), PeerError);
}

}  // namespace
}  // namespace switchyard::comm
