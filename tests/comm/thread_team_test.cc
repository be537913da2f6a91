// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/thread_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <system_error>

#include "switchyard/base/check.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/usage_error.h"

namespace switchyard::comm {
namespace {

using test::long_deadlines;
using testing::HasSubstr;

/// Every rank is run once, on its group.
void good_run(int ranks) {
  std::vector<Group> groups = make_thread_groups(ranks, long_deadlines());
  std::atomic<int> sum{0};
  run_on_threads(groups, [&](Group& g) {
    g.barrier("test");
    sum += 1 << g.rank();
  });
  EXPECT_EQ(sum, (1 << ranks) - 1);
}

TEST(ThreadTeam, RunsEveryRank) {
  for (int ranks : {1, 2, 5}) good_run(ranks);
}

std::atomic<int> started{0};
std::thread start_two(std::function<void()> body) {
  if (++started > 2)
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  return start_thread(std::move(body));
}

TEST(ThreadTeam, ASystemThatStartsTooFewThreadsIsTold) {
  started = 0;
  std::vector<Group> groups = make_thread_groups(4, long_deadlines());
  std::atomic<int> freed{0};
  const std::string text = test::usage_error_of([&] {
    run_on_threads(
        groups,
        [&](Group& g) {
          try {
            g.barrier("test");
          } catch (const PeerError&) {
            ++freed;
            throw;
          }
        },
        start_two);
  });
  EXPECT_THAT(text, HasSubstr("the system starts only 2 threads of the 4 ranks ("));
  EXPECT_EQ(freed, 2) << "those that ran wait for nobody";
  good_run(4);
}

TEST(ThreadTeam, TheCauseIsThrownBeforeWhatItBroughtOnOthers) {
  std::vector<Group> groups = make_thread_groups(3, long_deadlines());
  try {
    run_on_threads(groups, [](Group& g) {
      if (g.rank() == 2) throw std::runtime_error("the cause");
      g.barrier("test");
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "the cause");
  }
  groups = make_thread_groups(3, long_deadlines());
  EXPECT_THROW(run_on_threads(groups,
                              [](Group& g) {
                                if (g.rank() == 1) throw 7;
                                g.barrier("test");
                              }),
               int);
  good_run(3);
}

}  // namespace
}  // namespace switchyard::comm
