// SPDX-License-Identifier: Apache-2.0
// Processes of a launcher that were started with unlike words: each such start ends soon, on all of
// them, with one line that says which rank has what.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "switchyard/comm/mpi_group.h"
#include "tests/support/command_runner.h"
#include "tests/support/safetensors_writer.h"

namespace switchyard {
namespace {

using test::Finished;
using testing::HasSubstr;
using Words = std::vector<std::string>;

std::string data(const std::string& path) { return std::string(SWITCHYARD_TEST_DATA) + "/" + path; }

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

TEST_F(Unlike, WordsAreComparedFirst) {
  const auto differ = [](const Words& a, const Words& b, const std::string& name,
                         const std::string& of_a, const std::string& of_b) {
    const auto text = [&](const std::string& x, const std::string& y) {
      return "the ranks differ: rank 0 has " + name + " = '" + x + "', rank 1 has " + name +
             " = '" + y + "'";
    };
    refused({"", a}, {"", b}, text(of_a, of_b), text(of_b, of_a));
  };
  differ({"run", "--preset", "tiny"}, {"run", "--checkpoint", data("qwen3_moe")}, "the layer",
         "tiny", "of a checkpoint");
  differ({"run", "--checkpoint", data("afmoe"), "--layer", "1"},
         {"run", "--checkpoint", data("afmoe")}, "its number", "1", "every one");
  differ({"run", "--parallel", "ttp", "--routing", "zipf"}, {"run", "--parallel", "ttp"}, "routing",
         "zipf", "uniform");
  differ({"run", "--tokens", "4"}, {"run"}, "tokens", "4", "32");
  differ({"bench", "layer", "--tokens", "1"}, {"bench", "layer", "--tokens", "1,8"}, "tokens", "1",
         "1,8");
  differ({"run"}, {"bench", "layer"}, "the command", "run", "bench layer");
  differ({"bench", "allreduce", "--tokens", "4"}, {"bench", "allreduce", "--tokens", "8"}, "tokens",
         "4", "8");
}

// One goes on where another has nothing more to say.
TEST_F(Unlike, HelpIsNoPartner) {
  for (const auto& [a, b] :
       {std::pair{Words{"run", "--help"}, Words{"run"}}, {Words{"run"}, Words{"run", "--help"}}}) {
    const Finished done = two({"", a}, {"", b});
    EXPECT_EQ(done.status, 2) << done.err;
    EXPECT_EQ(done.out, "");
    EXPECT_THAT(done.err, HasSubstr("start all processes with the same words"));
  }
}

/// A copy of a checkpoint with the last bit of one tensor turned over.
std::string spoilt(test::TempDir& dir, const std::string& checkpoint, const std::string& tensor) {
  std::string out = dir.path() + "/spoilt";
  std::filesystem::copy(checkpoint, out);
  std::fstream file(out + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  std::uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  std::string header(length, ' ');
  file.read(header.data(), std::streamsize(length));
  const std::uint64_t end = nlohmann::json::parse(header).at(tensor)["data_offsets"][1];
  const auto last = std::streamoff(sizeof length + length + end - 1);
  file.seekg(last);
  const int byte = file.get();
  file.seekp(last);
  file.put(char(byte ^ 1));
  return out;
}

// Under tep no rank sees another's experts, and each is right about its own.
TEST_F(Unlike, WeightsAreToldApart) {
  test::TempDir dir;
  const Words run = {"run", "--parallel", "tep", "--tokens", "2", "--checkpoint"};
  Words same = run, other = run;
  same.push_back(data("mixtral"));
  other.push_back(
      spoilt(dir, data("mixtral"), "model.layers.0.block_sparse_moe.experts.6.w2.weight"));
  refused({"", same}, {"", other}, "the ranks differ: rank 0 has a checkpoint whose digest",
          "the ranks differ: rank 0 has a checkpoint whose digest");
  other.back() = dir.path() + "/again";
  std::filesystem::copy(data("mixtral"), other.back());
  const Finished done = two({"", same}, {"", other});
  EXPECT_EQ(done.status, 0) << done.err << "where the files lie is of no matter";
}

}  // namespace
}  // namespace switchyard
