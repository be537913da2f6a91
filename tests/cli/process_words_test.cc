// SPDX-License-Identifier: Apache-2.0
// Processes of a launcher that were started with unlike words: each such start ends soon, on all of
// them, with one line that says which rank has what.
#include <gmock/gmock.h>

#include <algorithm>

#include "switchyard/comm/mpi_group.h"
#include "tests/support/command_runner.h"

namespace switchyard {
namespace {

using test::Finished;
using testing::HasSubstr;
using Words = std::vector<std::string>;

/// One process of a start: a switch of its own, as NAME=VALUE or empty, and its words.
struct Rank {
  std::string sets;
  Words words;
};

/// Two processes, of which each has its own words.
Finished two(const Rank& first, const Rank& second) {
  Words words = {"--allow-run-as-root", "--oversubscribe"};
  for (const Rank* rank : {&first, &second}) {
    if (rank == &second) words.emplace_back(":");
    words.insert(words.end(), {"-n", "1"});
    if (!rank->sets.empty()) words.insert(words.end(), {"-x", rank->sets});
    if (rank == &second) words.emplace_back(SWITCHYARD_COMMAND);
    if (rank == &first) words.emplace_back("");  // where the command goes
    words.insert(words.end(), rank->words.begin(), rank->words.end());
  }
  const auto at = std::find(words.begin(), words.end(), "");
  test::Start start;
  start.launcher.assign(words.begin(), at);
  start.launcher.insert(start.launcher.begin(), "mpirun");
  start.args.assign(at + 1, words.end());
  start.env = {{"ASAN_OPTIONS", "detect_leaks=0"}};  // MPI never frees some of its start-up memory
  return run_command(start);
}

class Unlike : public testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_mpi()) GTEST_SKIP() << "this build has no MPI";
  }

  /// Both ways round: whichever rank is the odd one, the start fails with such a line.
  static void refused(const Rank& a, const Rank& b, const std::string& odd_first,
                      const std::string& odd_second) {
    for (bool swapped : {false, true}) {
      const Finished done = swapped ? two(b, a) : two(a, b);
      EXPECT_EQ(done.status, 2) << done.err;
      EXPECT_EQ(done.out, "");
      EXPECT_THAT(done.err, HasSubstr(swapped ? odd_second : odd_first));
    }
  }
};

// A process that cannot read its switches still comes to the meeting, to say so.
TEST_F(Unlike, ASwitchThatIsNoneEndsAll) {
  const Words run = {"run", "--tokens", "2"};
  for (const std::string& sets :
       {std::string("SWITCHYARD_COMM=bogus"), std::string("SWITCHYARD_WARMUP_TIMEOUT_S=x"),
        std::string("SWITCHYARD_CPU_ISA=sse2")})
    refused({sets, run}, {"", run}, "rank 0: " + sets.substr(0, sets.find('=')),
            "rank 1: " + sets.substr(0, sets.find('=')));
}

}  // namespace
}  // namespace switchyard
