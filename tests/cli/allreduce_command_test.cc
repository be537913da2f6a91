// SPDX-License-Identifier: Apache-2.0
// `bench allreduce` as a user meets it: every flag arrives at the call that the oracle judges, and
// processes are held against MPI_Iallreduce.
#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "switchyard/comm/mpi_group.h"
#include "tests/support/command_runner.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using test::Finished;
using test::run_command;
using testing::HasSubstr;
using Words = std::vector<std::string>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The last row of a command that goes well: every output is near the oracle's.
Json row_of(const Words& flags) {
  Words args = {"bench", "allreduce", "--json"};
  const Finished done = run_command(with(args, flags));
  EXPECT_EQ(done.status, 0) << done.err;
  if (done.status != 0) return {};
  const Json json = Json::parse(done.out);
  EXPECT_EQ(json["ok"], true);
  return json["rows"].back();
}

/// A flag, what stands before it, and where it shows: a key of the row, and whether the errors
/// against the oracle, of other numbers now, change too.
struct FlagCase {
  std::string flag;
  Words base, given;
  std::string key;
  Json value;
  bool numbers;
};

std::vector<FlagCase> flag_cases() {
  const Words untyped = {"--seconds", "0.00001", "--tokens", "9", "--hidden", "160"};
  const Words plain = with(untyped, {"--dtype", "f32"});  // whose errors are never quite 0
  const Words six = with(plain, {"--pattern", "6"}), seven = with(plain, {"--pattern", "7"}),
              three = with(plain, {"--pattern", "3"}), shapeless = {"--seconds", "0.00001"};
  return {{"--pattern", plain, {"2"}, "pattern", "kARResidualRMSNormFP8Quant", true},
          {"--tokens", shapeless, {"3", "--hidden", "160"}, "tokens", 3, false},
          {"--hidden", shapeless, {"96", "--tokens", "9"}, "hidden", 96, false},
          {"--dtype", untyped, {"f32"}, "dtype", "f32", true},
          {"--ranks", plain, {"3"}, "ranks", 3, true},
          {"--strategy", plain, {"two_shot"}, "strategy", "two_shot", false},
          {"--top-k", seven, {"3"}, "top_k", 3, true},
          {"--experts", six, {"3"}, "experts", 3, true},
          {"--routed-scaling-factor", seven, {"2.5"}, "routed_scaling_factor", 2.5, true},
          {"--routed-scaling-factor", six, {"2.5"}, "routed_scaling_factor", 2.5, true},
          {"--shared", seven, {}, "shared", true, true},
          {"--shared", six, {}, "shared", true, true},
          {"--quant", seven, {"fp8_token"}, "quant", "fp8_token", true},
          {"--scale-layout", three, {"linear"}, "scale_layout", "linear", false},
          {"--seed", plain, {"7"}, "seed", 7, true}};
}

TEST(BenchAllReduceFlags, EachReachesTheCallThatTheOracleJudges) {
  for (const FlagCase& c : flag_cases()) {
    SCOPED_TRACE(c.flag);
    const Json row = row_of(with(c.base, with({c.flag}, c.given)));
    ASSERT_TRUE(row.contains(c.key));
    EXPECT_EQ(row[c.key], c.value);
    const bool shape = c.flag == "--tokens" || c.flag == "--hidden";
    if (shape) continue;
    const Json base = row_of(c.base);
    EXPECT_NE(base[c.key], c.value);
    EXPECT_EQ(row["rel_l2"] != base["rel_l2"], c.numbers) << row["rel_l2"] << base["rel_l2"];
  }
}

// Flags that change no number have what they change looked at here.
TEST(BenchAllReduceFlags, TimeAndDeviceAreHeeded) {
  const Words small = {"--tokens", "1", "--hidden", "64"};
  const Json brief = row_of(with(small, {"--seconds", "0.00001"})),
             longer = row_of(with(small, {"--seconds", "0.2"}));
  EXPECT_LT(brief["fused"]["time_us"]["samples"], longer["fused"]["time_us"]["samples"]);
  const Finished gpus = run_command(with({"bench", "allreduce", "--device", "cuda"}, small));
  EXPECT_NE(gpus.status, 2);
  if (gpus.status != 0) {
    EXPECT_THAT(gpus.err, HasSubstr("cuda"));
  }
}

TEST(BenchAllReduceFlags, NoneIsWithoutACase) {
  std::set<std::string> named = {"--seconds", "--device", "--json", "--help"};
  for (const FlagCase& c : flag_cases()) named.insert(c.flag);
  const std::string help = run_command({"bench", "allreduce", "--help"}).out;
  std::set<std::string> offered;
  const std::regex flag("\n +(-[a-z],)?(--[a-z-]+)");
  for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at)
    offered.insert((*at)[2]);
  EXPECT_GE(offered.size(), 10U) << help;
  for (const std::string& f : offered) EXPECT_TRUE(named.contains(f)) << f << " has no case";
}

class BenchAllReduceOnProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_mpi()) GTEST_SKIP() << "this build has no MPI";
  }
  static Finished mpirun(int processes, const Words& args) {
    test::Start start;
    start.launcher = {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n",
                      std::to_string(processes)};
    start.args = args;
    start.env = {{"ASAN_OPTIONS", "detect_leaks=0"}};  // MPI keeps some of its start-up memory
    return run_command(start);
  }
};

TEST_F(BenchAllReduceOnProcesses, IsHeldAgainstMpi) {
  const Words call = {"bench", "allreduce", "--tokens", "2,9",   "--hidden",
                      "160",   "--seconds", "0.001",    "--json"};
  for (const char* pattern : {"0", "1", "5", "7"}) {
    const Finished done = mpirun(3, with(call, {"--pattern", pattern}));
    ASSERT_EQ(done.status, 0) << done.err;
    const Json json = Json::parse(done.out);
    ASSERT_EQ(json["rows"].size(), 2U);
    for (const Json& row : json["rows"]) {
      EXPECT_EQ(row["ok"], true);
      EXPECT_EQ(row["ranks"], 3);
      EXPECT_EQ(row["carriers"], "processes");
      EXPECT_EQ(row["separate"]["by"], "MPI_Iallreduce of floats");
      EXPECT_GE(row["separate"]["time_us"]["samples"], 5);
    }
  }
}

TEST_F(BenchAllReduceOnProcesses, AnotherNumberOfRanksIsRefused) {
  const Finished done = mpirun(2, {"bench", "allreduce", "--ranks", "3", "--tokens", "1"});
  EXPECT_EQ(done.status, 2);
  EXPECT_THAT(done.err, HasSubstr("ranks = 3 and the launcher started 2 processes"));
}

}  // namespace
}  // namespace switchyard
