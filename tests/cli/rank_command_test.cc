// SPDX-License-Identifier: Apache-2.0
// `run` on several ranks as a user meets it: threads, and processes under mpirun.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "switchyard/comm/mpi_group.h"
#include "tests/support/command_runner.h"
#include "tests/support/safetensors_writer.h"

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

/// The one layer's measurement.
Json measured(const Words& args) {
  const Json json = json_of(args);
  EXPECT_EQ(json["measurements"].size(), 1u);
  return json["measurements"].at(0);
}

Json combine(const std::string& requested, const std::string& effective) {
  return {{"requested", requested}, {"effective", effective}};
}

// Two shares add up to a number half way between two of the output's half of the time.
TEST(RankRun, OneTokenOnRanksIsJudgedByWhatTheSumOfSharesMayLose) {
  double worst = 0;
  for (const char* format : {"nvfp4", "fp8"})
    for (const char* seed : {"1", "2", "6"}) {
      const Json m =
          measured({"run", "--ranks", "4", "--tokens", "1", "--format", format, "--seed", seed});
      EXPECT_TRUE(m["ok"]) << format << ", seed " << seed << ": " << m["rel_l2"];
      EXPECT_DOUBLE_EQ(m["budget"], 1.2247449 * 2e-3);
      worst = std::max(worst, m["rel_l2"].get<double>());
    }
  EXPECT_GT(worst, 2e-3) << "the control: one rank's budget would not do";
  EXPECT_DOUBLE_EQ(measured({"run", "--tokens", "1", "--format", "nvfp4"})["budget"], 2e-3);
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
    EXPECT_EQ(strategy(m, name)["detail"], "");
    const char* other = std::string(name) == "compact" ? "two_sided" : "compact";
    EXPECT_EQ(strategy(m, other)["detail"], std::string(name) + " is pinned");
    EXPECT_EQ(strategy(m, "nccl")["reason"], "dep_missing");
    std::int64_t rows = 0;
    for (std::int64_t n : m["expert_tokens"]) rows += n;
    EXPECT_EQ(rows, 3 * 5 * 2) << "every rank has tokens of its own";
  }
}

struct Mode {
  Words flags;
  std::string parallel, strategy;
  int ep, tp;
};

TEST(RunOnThreads, TheFourModesServe) {
  for (const Mode& mode :
       {Mode{{"--ranks", "2", "--parallel", "tep"}, "tep", "all_reduce", 2, 1},
        Mode{{"--ranks", "2", "--parallel", "ttp"}, "ttp", "all_reduce", 1, 2},
        Mode{{"--ranks", "2", "--parallel", "dtp"}, "dtp", "all_gather", 1, 2},
        Mode{{"--ep", "2", "--tp", "2"}, "dep", "all_gather", 2, 2},
        Mode{{"--ep", "2", "--tp", "2", "--parallel", "tep"}, "tep", "all_reduce", 2, 2}}) {
    const Json m =
        measured(with({"run", "--preset", "tiny", "--tokens", "4", "--threads", "1"}, mode.flags));
    EXPECT_EQ(m["ok"], true) << m;
    EXPECT_EQ(m["parallel"], mode.parallel);
    EXPECT_EQ(m["strategy"], mode.strategy) << mode.parallel;
    EXPECT_EQ(m["ep"], mode.ep);
    EXPECT_EQ(m["tp"], mode.tp);
    EXPECT_EQ(m["ranks"], mode.ep * mode.tp);
    EXPECT_EQ(m["slots"], 8);
    EXPECT_EQ(m["combine"], combine("bf16", "bf16"));
  }
}

TEST(RunOnThreads, ALowPrecisionCombineIsAskedForAndEffective) {
  for (const char* precision : {"fp8", "nvfp4"}) {
    const Json m = measured({"run", "--ranks", "2", "--tokens", "8", "--combine", precision});
    EXPECT_EQ(m["combine"], combine(precision, precision));
    EXPECT_EQ(m["ok"], true);
    test::Start start;
    start.env = {{"SWITCHYARD_COMBINE_PRECISION", precision}};
    start.args = {"run", "--ranks", "2", "--tokens", "2", "--combine", "bf16", "--json"};
    EXPECT_EQ(Json::parse(run_command(start).out)["measurements"][0]["combine"],
              combine(precision, precision))
        << "the switch beats the argument";
  }
  // What travels is the wire's form, not a repeated request: rows of f32 states are not rounded.
  EXPECT_EQ(measured({"run", "--ranks", "2", "--tokens", "2", "--activations", "f32"})["combine"],
            combine("bf16", "f32"));
}

// 8 experts in 10 slots on 2 ranks: the first strategy in order serves it, uneven or not.
TEST(RunOnThreads, ReplicatedSlotsServe) {
  const Json m =
      measured({"run", "--preset", "tiny", "--ranks", "2", "--slots", "10", "--tokens", "16"});
  EXPECT_EQ(m["ok"], true);
  EXPECT_EQ(m["strategy"], "one_sided");
  EXPECT_EQ(m["slots"], 10);
  EXPECT_EQ(m["joined"]["slot_experts"], (Json{0, 1, 2, 3, 4, 4, 5, 6, 7, 0}));
  EXPECT_EQ(m["expert_tokens"].size(), 8u) << "by expert, not by slot";
  for (const char* name : {"two_sided", "compact", "expert_major", "all_gather"}) {
    EXPECT_EQ(strategy(m, name)["ok"], true) << name;
    EXPECT_EQ(strategy(m, name)["detail"], "behind one_sided in the order of preference");
  }
  const Finished odd = run_command({"run", "--ranks", "2", "--slots", "9"});
  EXPECT_EQ(odd.status, 1);
  EXPECT_THAT(odd.err, HasSubstr("slots_not_divisible_by_ep"));
  const Finished wrong = run_command({"run", "--ranks", "2", "--placement", "/no/file"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_THAT(wrong.err, HasSubstr("/no/file"));
}

/// Plans `loads` into a file of `dir`.
std::string planned(test::TempDir& dir, const std::string& loads, const Words& shape) {
  std::string out = dir.path() + "/placement" + shape[1] + "_" + shape[3] + ".json";
  const Finished done =
      run_command(with({"eplb", "plan", dir.write("loads.csv", loads), "--out", out}, shape));
  EXPECT_EQ(done.status, 0) << done.err;
  return out;
}

TEST(RunOnThreads, APlannedPlacementIsTheOneThatRuns) {
  test::TempDir dir;
  const std::string file =
      planned(dir, "10,80,60,10,10,10,10,10\n", {"--slots", "10", "--ranks", "2"});
  const Json want = Json::parse(std::ifstream(file))["layers"][0];
  const Words run = {"run", "--tokens", "16", "--ranks", "2", "--placement"};
  const Json m = measured(with(run, {file}));
  EXPECT_EQ(m["ok"], true);
  EXPECT_EQ(m["slots"], 10);
  EXPECT_EQ(m["joined"]["slot_experts"], want);
  EXPECT_NE(want, (Json{0, 1, 2, 3, 4, 4, 5, 6, 7, 0})) << "the control: not the linear one";

  const auto refused = [&](const Words& args) {
    const Finished done = run_command(args);
    EXPECT_EQ(done.status, 2);
    EXPECT_EQ(done.out, "");
    return done.err;
  };
  EXPECT_THAT(refused(with(run, {file, "--slots", "8"})), HasSubstr("the placement has 10"));
  EXPECT_THAT(refused({"run", "--placement", file}), HasSubstr("ask for more ranks"));
  EXPECT_THAT(refused(with(run, {planned(dir, "1,2,3,4\n", {"--slots", "8", "--ranks", "2"})})),
              HasSubstr("of 4 experts on 2 ranks, the layer has 8"));
  const std::string five = planned(dir, "1,2,3,4,5,6,7,8\n", {"--slots", "10", "--ranks", "5"});
  EXPECT_THAT(refused(with(run, {five})),
              testing::AllOf(HasSubstr(five), HasSubstr("is for 5 ranks, and ep = 2")));
  EXPECT_EQ(measured(with(run, {file}))["ok"], true) << "a good call after";
}

// By layer in order: two layers of a checkpoint in the two of a file.
TEST(RunOnThreads, EachLayerHasItsOwnPlacement) {
  test::TempDir dir;
  std::string loads;
  for (int layer = 0; layer < 2; ++layer)
    for (int e = 0; e < 16; ++e)
      loads += std::to_string(e == 3 + 9 * layer ? 100 : e + 1) + (e == 15 ? "\n" : ",");
  const std::string file = planned(dir, loads, {"--slots", "18", "--ranks", "2"});
  const Json layers = Json::parse(std::ifstream(file))["layers"];
  const Json json = json_of({"run", "--checkpoint", data("deepseek_v4"), "--tokens", "4", "--ranks",
                             "2", "--placement", file});
  ASSERT_EQ(json["measurements"].size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(json["measurements"][i]["ok"], true);
    EXPECT_EQ(json["measurements"][i]["joined"]["slot_experts"], layers[i]);
  }
  EXPECT_NE(layers[0], layers[1]);
  const auto refused = [&](const Words& args, const char* says) {
    const Finished done = run_command(args);
    EXPECT_EQ(done.status, 2);
    EXPECT_THAT(done.err, HasSubstr(says));
  };
  refused({"run", "--checkpoint", data("deepseek_v4"), "--layer", "0", "--tokens", "4", "--ranks",
           "2", "--placement", file},
          "the placement has 2 layers and the run 1");
  const std::string three = planned(dir, loads + loads.substr(0, loads.find('\n') + 1),
                                    {"--slots", "18", "--ranks", "2"});
  refused({"run", "--checkpoint", data("deepseek_v4"), "--tokens", "4", "--ranks", "2",
           "--placement", three},
          "the placement has 3 layers and the run 2");
}

TEST(RunOnThreads, ACalibratedFormatServes) {
  const Json m =
      json_of({"run", "--ranks", "2", "--tokens", "4", "--format", "nvfp4"})["measurements"][0];
  EXPECT_EQ(m["ok"], true);
  EXPECT_THAT(m["notices"].dump(), HasSubstr("calibrated on 256 tokens"));
}

TEST(RunOnThreads, APinnedLeafIsNotReplacedByTheFusedOne) {
  const Words fused = {"run", "--preset", "tiny", "--ranks", "2", "--comm", "fused"};
  const Finished done = run_command(with(fused, {"--leaf", "cpu.fused_moe.none"}));
  EXPECT_EQ(done.status, 2);
  EXPECT_THAT(done.err, HasSubstr("the leaf is pinned to cpu.fused_moe.none"));
  EXPECT_EQ(run_command(with(fused, {"--leaf", "none"})).status, 0)
      << "a format names both kernels";
}

// The output does not depend on it, so what shows is the report.
TEST(RunOnThreads, ChunksOfACallAreReported) {
  const Words run = {"run", "--preset", "tiny", "--ranks", "3", "--tokens", "7"};
  const Json cut = measured(with(run, {"--chunk-tokens", "3"})), whole = measured(run);
  EXPECT_EQ(cut["ok"], true);
  EXPECT_EQ(cut["joined"]["chunk_tokens"], 3);
  EXPECT_EQ(whole["joined"]["chunk_tokens"], 7);
  EXPECT_EQ(cut["expert_tokens"], whole["expert_tokens"]);
  EXPECT_EQ(measured(with(run, {"--parallel", "tep"}))["joined"]["chunk_tokens"], nullptr);
  EXPECT_THAT(run_command(with(run, {"--chunk-tokens", "3"})).out,
              HasSubstr("chunks   of at most 3 tokens of a rank"));
}

// Each kind of result that ranks have is one that `bench compare` reads.
TEST(BenchOnRanks, ResultsAreComparedWithThemselves) {
  test::TempDir dir;
  for (const Words& bench : std::vector<Words>{
           {"bench", "layer", "--ranks", "2", "--tokens", "2", "--search", "parallel,graph"},
           {"bench", "exchange", "--ranks", "2", "--tokens", "8", "--hidden", "64", "--experts",
            "8", "--top-k", "2", "--seconds", "0.01", "--strategy", "all"},
           {"bench", "allreduce", "--ranks", "2", "--tokens", "4", "--hidden", "64", "--seconds",
            "0.01"}}) {
    const Finished done = run_command(with(bench, {"--json"}));
    ASSERT_EQ(done.status, 0) << done.err;
    const std::string file = dir.write(bench[1] + ".json", done.out);
    const Finished same = run_command({"bench", "compare", file, file, "--json"});
    EXPECT_EQ(same.status, 0) << same.err;
    const Json rows = Json::parse(same.out)["rows"];
    EXPECT_GE(rows.size(), 2U) << bench[1];
    for (const Json& row : rows) EXPECT_EQ(row["ratio"], 1.0);
  }
}

// One rank has nobody to join: what a switch pins is said to be the switch's.
TEST(RunOnThreads, ASwitchThatCannotServeIsNamed) {
  test::Start start;
  start.env = {{"SWITCHYARD_COMM", "fused"}};
  for (const Words& args : std::vector<Words>{{"verify", data("mixtral")}, {"run"}}) {
    start.args = args;
    const Finished done = run_command(start);
    EXPECT_EQ(done.status, 1);
    EXPECT_THAT(done.err, HasSubstr("strategy fused cannot serve"));
    EXPECT_THAT(done.err, HasSubstr("(SWITCHYARD_COMM pins it)"));
  }
  const Finished argued = run_command({"run", "--comm", "fused"});
  EXPECT_EQ(argued.status, 1);
  EXPECT_EQ(argued.err.find("SWITCHYARD_COMM"), std::string::npos) << "the flag is not the switch";
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
  const Json m = Json::parse(run_command(start).out)["measurements"][0];
  EXPECT_EQ(m["strategy"], "compact");
  EXPECT_THAT(m["notices"].dump(),
              HasSubstr("strategy two_sided was asked for, and SWITCHYARD_COMM "
                        "= compact takes its place"));
  start.env = {{"SWITCHYARD_COMBINE_PRECISION", "fp8"}};
  start.args = {"run", "--ranks", "2", "--tokens", "2", "--combine", "nvfp4", "--json"};
  const Json c = Json::parse(run_command(start).out)["measurements"][0];
  EXPECT_EQ(c["combine"], combine("fp8", "fp8"));
  EXPECT_THAT(c["notices"].dump(), HasSubstr("combine nvfp4 was asked for, and "
                                             "SWITCHYARD_COMBINE_PRECISION = fp8 takes its place"));
  start.args = {"run", "--ranks", "2", "--tokens", "2", "--combine", "fp8", "--json"};
  EXPECT_EQ(Json::parse(run_command(start).out)["measurements"][0]["notices"], Json::array())
      << "the control: both say the same";
}

TEST(Explain, NamesTheChosenStrategyAmongAll) {
  const Words tiny = {"--preset", "tiny", "--ranks", "2"};
  for (const Words& pin : {Words{}, Words{"--comm", "two_sided"}, Words{"--comm", "fused"}}) {
    const Json run = measured(with(with({"run", "--tokens", "2"}, tiny), pin));
    const Json report = json_of(with(with({"explain"}, tiny), pin));
    EXPECT_EQ(report["winner"], run["leaf"]);
    EXPECT_EQ(report["eligible"][0], run["leaf"]);
    EXPECT_EQ(report["requested"]["comm"], pin.empty() ? "" : pin[1]);
    ASSERT_EQ(report["strategies"].size(), run["joined"]["strategies"].size());
    for (const Json& s : report["strategies"]) {
      const std::string name = s["strategy"];
      const bool chosen = name == run["strategy"];
      EXPECT_EQ(strategy(run, name)["ok"], s["reason"].is_null()) << name;
      EXPECT_EQ(s["detail"], chosen ? Json("chosen") : strategy(run, name)["detail"]) << name;
    }
    const std::string text = run_command(with(with({"explain"}, tiny), pin)).out;
    EXPECT_THAT(text, HasSubstr(run["strategy"].get<std::string>() + "  can serve, chosen"));
  }
  EXPECT_THAT(run_command({"explain", "--preset", "tiny"}).out,
              HasSubstr("strategies   none, one rank has nobody to join"));
  EXPECT_THAT(run_command(with(with({"explain"}, tiny), {"--comm", "compact"})).out,
              HasSubstr("requested    strategy compact"));
  test::Start start;
  start.env = {{"SWITCHYARD_COMM", "compact"}};
  start.args = with(with({"explain"}, tiny), {"--comm", "two_sided"});
  EXPECT_THAT(run_command(start).out, HasSubstr("SWITCHYARD_COMM = compact takes its place"));
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
  ASSERT_FALSE(json["measurements"].empty());
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

// A process that fails before it meets the others does not leave them waiting.
TEST_F(RunOnProcesses, OneThatEndsEarlyIsToldToTheOthers) {
  const Words two = {"run", "--ep", "2", ":", "-n", "1", SWITCHYARD_COMMAND};
  Finished done = mpirun(1, with(two, {"run", "--ep", "3"}));
  EXPECT_EQ(done.status, 2) << done.err;
  EXPECT_EQ(count_of(done.err, "the ranks differ: rank 0 has ep = '2', rank 1 has ep = '3'"), 1)
      << done.err;
  done = mpirun(
      1, with({"run", "--ep", "3", ":", "-n", "1", SWITCHYARD_COMMAND}, {"run", "--ep", "2"}));
  EXPECT_EQ(done.status, 2) << done.err;
  EXPECT_EQ(count_of(done.err, "the ranks differ: rank 0 has ep = '3', rank 1 has ep = '2'"), 1)
      << done.err;
  done = mpirun(1, with(two, {"run", "--bogus"}));
  EXPECT_EQ(done.status, 2) << done.err;
  EXPECT_EQ(count_of(done.err, "--bogus"), 1) << done.err;
  done = mpirun(1, with(two, {"run", "--ep", "2", "--json"}));
  EXPECT_EQ(done.status, 0) << done.err;
}

// What a user can set is named with both sides, and no hash of it.
TEST_F(RunOnProcesses, SeedsAndSwitchesThatDifferAreNamed) {
  const Words two = {"run", "--tokens", "2", ":", "-n", "1", SWITCHYARD_COMMAND};
  Finished done = mpirun(1, with(two, {"run", "--tokens", "2", "--seed", "7"}));
  EXPECT_EQ(done.status, 2) << done.err;
  EXPECT_THAT(done.err, HasSubstr("rank 0 has seed = '1', rank 1 has seed = '7'"));
  done =
      mpirun(1, {"run", "--tokens", "2", ":", "-n", "1", "-x", "SWITCHYARD_POST_QUANT_DISPATCH=0",
                 SWITCHYARD_COMMAND, "run", "--tokens", "2"});
  EXPECT_EQ(done.status, 2) << done.err;
  EXPECT_THAT(done.err, HasSubstr("rank 0 has SWITCHYARD_POST_QUANT_DISPATCH = '1', rank 1 has "
                                  "SWITCHYARD_POST_QUANT_DISPATCH = '0'"));
}

TEST_F(RunOnProcesses, ALayerIsBenchedAndSearched) {
  const Words bench = {"bench", "layer", "--tokens", "2", "--json"};
  Finished done = mpirun(2, bench);
  EXPECT_EQ(done.status, 0) << done.err;
  Json json = Json::parse(done.out);
  ASSERT_EQ(json["measurements"].size(), 1U);
  EXPECT_EQ(json["measurements"][0]["ranks"], 2);
  EXPECT_EQ(json["measurements"][0]["ok"], true);
  done = mpirun(2, with(bench, {"--search", "comm", "--max-configs", "2"}));
  EXPECT_EQ(done.status, 0) << done.err;
  json = Json::parse(done.out);
  EXPECT_EQ(json["measurements"].size(), 2U);
  EXPECT_EQ(json["choice"]["strategy"], "one_sided");
  done = mpirun(2, with(bench, {"--ep", "1"}));
  EXPECT_EQ(done.status, 2);
  EXPECT_EQ(count_of(done.err, "the launcher started 2 processes and the layer is for 1 rank"), 1);
}

TEST_F(RunOnProcesses, OtherCommandsAreRefused) {
  const Finished done = mpirun(2, {"bench", "exchange", "--tokens", "4"});
  EXPECT_EQ(done.status, 2);
  EXPECT_EQ(done.out, "");
  EXPECT_THAT(done.err,
              HasSubstr("the launcher started 2 processes, and this command runs in one"));
}

}  // namespace
}  // namespace switchyard
