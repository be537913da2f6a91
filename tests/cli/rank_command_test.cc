// SPDX-License-Identifier: Apache-2.0
// `run` on several ranks as a user meets it: threads, and processes under mpirun.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "switchyard/comm/mpi_group.h"
#include "tests/support/command_runner.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using test::Finished;
using test::run_command;
using testing::HasSubstr;
using Words = std::vector<std::string>;

std::string data(const std::string& path) { return std::string(SWITCHYARD_TEST_DATA) + "/" + path; }

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Json json_of(const Words& args) {
  const Finished done = run_command(with(args, {"--json"}));
  EXPECT_EQ(done.status, 0) << done.err;
  return Json::parse(done.out);
}

Json strategy(const Json& measurement, const std::string& name) {
  for (const Json& s : measurement["joined"]["strategies"])
    if (s["strategy"] == name) return s;
  ADD_FAILURE() << name << " is not reported";
  return {};
}

TEST(RunOnThreads, EveryStrategyAnswersAndTheChosenOneServes) {
  for (const char* name : {"one_sided", "two_sided", "compact", "expert_major", "all_gather"}) {
    const Json m = json_of({"run", "--ranks", "3", "--tokens", "5", "--comm", name, "--threads",
                            "1"})["measurements"][0];
    EXPECT_EQ(m["ok"], true) << name;
    EXPECT_EQ(m["strategy"], name);
    EXPECT_EQ(m["ranks"], 3);
    EXPECT_EQ(m["parallel"], "dep");
    EXPECT_EQ(m["checked_tokens"], 5);
    EXPECT_LT(m["rel_l2"], m["budget"]);
    EXPECT_EQ(m["joined"]["carriers"], "threads");
    EXPECT_EQ(m["joined"]["contract"]["weights"],
              std::string(name) == "expert_major" ? "combine" : "experts");
    EXPECT_EQ(strategy(m, name)["ok"], true);
    EXPECT_EQ(strategy(m, "nccl")["reason"], "dep_missing");
    std::int64_t rows = 0;
    for (std::int64_t n : m["expert_tokens"]) rows += n;
    EXPECT_EQ(rows, 3 * 5 * 2) << "every rank has tokens of its own";
  }
}

TEST(RunOnThreads, TheFourModesServe) {
  for (const Words& mode : std::vector<Words>{{"--ranks", "2", "--parallel", "tep"},
                                              {"--ranks", "2", "--parallel", "ttp"},
                                              {"--ranks", "2", "--parallel", "dtp"},
                                              {"--ep", "2", "--tp", "2"},
                                              {"--ep", "2", "--tp", "2", "--parallel", "tep"}}) {
    const Json m = json_of(with({"run", "--preset", "tiny", "--tokens", "4", "--threads", "1"},
                                mode))["measurements"][0];
    EXPECT_EQ(m["ok"], true) << m;
    EXPECT_EQ(m["combine"]["effective"], "bf16");
  }
}

TEST(RunOnThreads, ALowPrecisionCombineIsAskedForAndEffective) {
  for (const char* precision : {"fp8", "nvfp4"}) {
    const Json m = json_of(
        {"run", "--ranks", "2", "--tokens", "8", "--combine", precision})["measurements"][0];
    EXPECT_EQ(m["combine"], (Json{{"requested", precision}, {"effective", precision}}));
    EXPECT_EQ(m["ok"], true);
  }
}

// 8 experts in 10 slots on 2 ranks: the first strategy in order serves it, uneven or not.
TEST(RunOnThreads, ReplicatedSlotsServe) {
  const Json m = json_of({"run", "--preset", "tiny", "--ranks", "2", "--slots", "10", "--tokens",
                          "16"})["measurements"][0];
  EXPECT_EQ(m["ok"], true);
  EXPECT_EQ(m["strategy"], "one_sided");
  EXPECT_EQ(m["expert_tokens"].size(), 8u) << "by expert, not by slot";
  for (const char* name : {"two_sided", "compact", "expert_major", "all_gather"})
    EXPECT_EQ(strategy(m, name)["ok"], true) << name;
  const Finished odd = run_command({"run", "--ranks", "2", "--slots", "9"});
  EXPECT_EQ(odd.status, 1);
  EXPECT_THAT(odd.err, HasSubstr("slots_not_divisible_by_ep"));
  const Finished wrong = run_command({"run", "--ranks", "2", "--placement", "/no/file"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("/no/file"));
}

TEST(RunOnThreads, ACalibratedFormatServes) {
  const Json m =
      json_of({"run", "--ranks", "2", "--tokens", "4", "--format", "nvfp4"})["measurements"][0];
  EXPECT_EQ(m["ok"], true);
  EXPECT_THAT(m["notices"].dump(), HasSubstr("calibrated on 256 tokens"));
}

TEST(RunOnThreads, APinThatCannotServeIsAVerdict) {
  for (const Words& pin :
       std::vector<Words>{{"--ranks", "2", "--comm", "nccl"},
                          {"--ranks", "2", "--parallel", "tep", "--comm", "one_sided"},
                          {"--ep", "2", "--tp", "2", "--comm", "compact"},
                          {"--tp", "2", "--parallel", "dep", "--comm", "one_sided"}}) {
    const Finished run = run_command(with({"run", "--preset", "tiny"}, pin));
    const Finished explain = run_command(with({"explain", "--preset", "tiny", "--json"}, pin));
    EXPECT_EQ(run.status, 1);
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, HasSubstr("cannot serve"));
    EXPECT_EQ(explain.status, 1) << "explain agrees with run";
    EXPECT_EQ(Json::parse(explain.out)["winner"], "");
  }
}

TEST(RunOnThreads, TheSwitchBeatsTheArgument) {
  test::Start start;
  start.env = {{"SWITCHYARD_COMM", "compact"}};
  start.args = {"run", "--ranks", "2", "--tokens", "2", "--comm", "two_sided", "--json"};
  EXPECT_EQ(Json::parse(run_command(start).out)["measurements"][0]["strategy"], "compact");
}

TEST(Explain, AgreesWithRunOnRanks) {
  const Json report = json_of({"explain", "--preset", "tiny", "--ranks", "4"});
  EXPECT_EQ(report["winner"], "switchyard.cpu.fused_moe.none");
  EXPECT_EQ(report["strategies"][0]["strategy"], "one_sided");
  EXPECT_TRUE(report["strategies"][0]["reason"].is_null());
}

/// The command as `processes` processes.
Finished mpirun(int processes, const Words& args) {
  test::Start start;
  start.launcher = {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n",
                    std::to_string(processes)};
  start.args = args;
  start.env = {{"ASAN_OPTIONS", "detect_leaks=0"}};  // MPI never frees some of its start-up memory
  return run_command(start);
}

int count_of(const std::string& text, const std::string& word) {
  int n = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

class RunOnProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_mpi()) GTEST_SKIP() << "this build has no MPI";
  }
};

TEST_F(RunOnProcesses, FourOfThemPrintOneAnswer) {
  const Finished done = mpirun(
      4, {"run", "--checkpoint", data("qwen3_moe"), "--ep", "4", "--comm", "two_sided", "--json"});
  EXPECT_EQ(done.status, 0) << done.err;
  const Json json = Json::parse(done.out);
  EXPECT_EQ(json["ok"], true);
  for (const Json& m : json["measurements"]) {
    EXPECT_EQ(m["strategy"], "two_sided");
    EXPECT_EQ(m["ranks"], 4);
    EXPECT_EQ(m["joined"]["carriers"], "processes");
    EXPECT_EQ(m["checked_tokens"], 8);
  }
}

TEST_F(RunOnProcesses, AreTheRanksWithoutAFlag) {
  const Finished done = mpirun(2, {"run", "--tokens", "3", "--parallel", "tep", "--json"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(Json::parse(done.out)["measurements"][0]["ranks"], 2);
}

TEST_F(RunOnProcesses, OneErrorForAll) {
  Finished done = mpirun(3, {"run", "--ranks", "2"});
  EXPECT_EQ(done.status, 2);
  EXPECT_EQ(done.out, "");
  EXPECT_EQ(count_of(done.err, "the launcher started 3 processes and the layer is for 2 ranks"), 1);
  done = mpirun(2, {"run", "--bogus"});
  EXPECT_EQ(done.status, 2);
  EXPECT_EQ(count_of(done.err, "--bogus"), 1) << done.err;
  done = mpirun(2, {"run", "--comm", "nccl"});
  EXPECT_EQ(done.status, 1);
  EXPECT_EQ(count_of(done.err, "strategy nccl cannot serve"), 1);
}

}  // namespace
}  // namespace switchyard
