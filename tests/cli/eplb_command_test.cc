// SPDX-License-Identifier: Apache-2.0
// eplb plan and eplb simulate, from files to files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "switchyard/eplb/placement_file.h"
#include "switchyard/eplb/planner.h"
#include "tests/support/command_runner.h"
#include "tests/support/safetensors_writer.h"

namespace switchyard {
namespace {

using nlohmann::json;
using test::Finished;
using test::run_command;
using test::TempDir;
using testing::HasSubstr;

const char* const kLoads = "# eight experts, two layers\n100,1,1,1,1,1,1,1\n8,7,6,5,4,3,2,1\n";

json run_json(std::vector<std::string> args) {
  args.push_back("--json");
  Finished done = run_command(args);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.err, "");
  return json::parse(done.out);
}

TEST(EplbCommand, PlansWritesAndJudgesWhatItWrote) {
  TempDir dir;
  const std::string loads = dir.write("loads.csv", kLoads), out = dir.path() + "/placement.json";
  json plan = run_json({"eplb", "plan", loads, "--slots", "10", "--ranks", "2", "--out", out,
                        "--expert-bytes", "1000"});
  ASSERT_EQ(plan["layers"].size(), 2u);
  EXPECT_EQ(plan["out"], out);
  EXPECT_EQ(plan["before"], "linear");
  EXPECT_EQ(plan["experts"], 8);
  EXPECT_GE(plan["plan_ms"], 0.0);
  std::int64_t moves = 0;
  for (const json& layer : plan["layers"]) {
    EXPECT_LE(layer["max_over_mean"], layer["before"]);
    EXPECT_GE(layer["max_over_mean"], layer["lower_bound"]);
    EXPECT_EQ(layer["migrate_bytes"], 1000 * layer["moves"].get<std::int64_t>());
    moves += layer["moves"].get<std::int64_t>();
  }
  EXPECT_EQ(plan["moves"], moves);
  EXPECT_EQ(plan["migrate_bytes"], 1000 * moves);

  const eplb::Placement written = eplb::read_placement(out);
  const eplb::LoadTable table = eplb::read_loads(loads);
  const eplb::BalancePlan own =
      eplb::plan_placement({.loads = &table, .num_slots = 10, .num_ranks = 2});
  EXPECT_EQ(written, own.placement);

  json judged = run_json({"eplb", "simulate", loads, "--placement", out});
  json simulated = run_json({"eplb", "simulate", loads, "--slots", "10", "--ranks", "2"});
  for (std::size_t l = 0; l < 2; ++l) {
    EXPECT_EQ(judged["layers"][l]["max_over_mean"], plan["layers"][l]["max_over_mean"]);
    EXPECT_EQ(simulated["layers"][l]["max_over_mean"], plan["layers"][l]["max_over_mean"]);
    EXPECT_EQ(judged["layers"][l]["moves"], plan["layers"][l]["moves"]);
    EXPECT_TRUE(judged["layers"][l]["migrate_bytes"].is_null()) << "no size was given";
  }
  EXPECT_FALSE(simulated.contains("out"));

  json again =
      run_json({"eplb", "plan", loads, "--slots", "10", "--ranks", "2", "--previous", out});
  EXPECT_EQ(again["moves"], 0);
  EXPECT_EQ(again["before"], out);
  json exact = run_json({"eplb", "plan", loads, "--slots", "10", "--ranks", "2", "--previous", out,
                         "--tolerance", "0", "--expert-bytes", "68719476736"});
  EXPECT_EQ(exact["migrate_bytes"], 0) << "the plan stands, and no tolerance is a tolerance";
}

TEST(EplbCommand, ReadsJsonLoadsAndPlansByNodes) {
  TempDir dir;
  const std::string loads =
      dir.write("loads.json", R"({"loads": [[9, 1, 2, 3, 4, 8, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]]})");
  json plan = run_json(
      {"eplb", "plan", loads, "--slots", "12", "--ranks", "4", "--nodes", "2", "--groups", "4"});
  EXPECT_EQ(plan["nodes"], 2);
  EXPECT_EQ(plan["groups"], 4);
  EXPECT_EQ(plan["layers"].size(), 2u);
}

TEST(EplbCommand, TextNamesEveryLayerAndTheSum) {
  TempDir dir;
  const std::string loads = dir.write("loads.csv", kLoads);
  Finished done = run_command(
      {"eplb", "plan", loads, "--slots", "10", "--ranks", "2", "--expert-bytes", "3000"});
  EXPECT_EQ(done.status, 0) << done.err;
  for (const char* part : {"8 experts in 10 slots on 2 ranks", "linear", "lower bound", "moves",
                           "worst layer", "bytes", "planned in"})
    EXPECT_THAT(done.out, HasSubstr(part));
  EXPECT_EQ(std::count(done.out.begin(), done.out.end(), '\n'), 5);
  EXPECT_THAT(run_command({"eplb", "--help"}).out, HasSubstr("simulate"));
  EXPECT_THAT(run_command({"eplb", "plan", "--help"}).out, HasSubstr("--previous"));
}

TEST(EplbCommand, EveryMistakeIsOneLine) {
  TempDir dir;
  const std::string loads = dir.write("loads.csv", kLoads),
                    bad = dir.write("bad.csv", "1,2\n3,-4\n"),
                    placement = dir.write("p.json",
                                          R"({"format": "switchyard.placement", "version": 1,
      "num_experts": 2, "num_slots": 2, "num_ranks": 1, "layers": [[0, 0]]})");
  struct Case {
    std::vector<std::string> args;
    std::vector<std::string> says;
  };
  const Case cases[] = {
      {{"eplb"}, {"plan, simulate"}},
      {{"eplb", "plann"}, {"did you mean plan"}},
      {{"eplb", "plan"}, {"LOADS is missing"}},
      {{"eplb", "plan", loads}, {"--slots is missing"}},
      {{"eplb", "plan", loads, "--slots", "8"}, {"--ranks is missing"}},
      {{"eplb", "plan", loads, "--slots", "9", "--ranks", "2"}, {"ranks = 2", "slots = 9"}},
      {{"eplb", "plan", loads, "--slots", "4", "--ranks", "2"}, {"slots = 4", "8"}},
      {{"eplb", "plan", loads, "--slots", "x", "--ranks", "2"}, {"--slots = 'x'"}},
      {{"eplb", "plan", bad, "--slots", "2", "--ranks", "1"}, {"line 2, column 3", "'-4'"}},
      {{"eplb", "plan", dir.path() + "/none", "--slots", "2", "--ranks", "1"}, {"none"}},
      {{"eplb", "plan", dir.path(), "--slots", "2", "--ranks", "1"}, {"directory"}},
      {{"eplb", "plan", loads, "--slots", "8", "--ranks", "2", "--nodes", "2"}, {"groups = 1"}},
      {{"eplb", "plan", loads, "--slots", "8", "--ranks", "2", "--groups", "2"},
       {"--groups is given without --nodes"}},
      {{"eplb", "plan", loads, "--slots", "8", "--ranks", "2", "--expert-bytes", "68719476737"},
       {"--expert-bytes", "68719476736"}},
      {{"eplb", "plan", loads, "--slots", "8", "--ranks", "2", "--tolerance", "-0.1"},
       {"--tolerance = '-0.1'", "from 0 on"}},
      {{"eplb", "plan", loads, "--slots", "8", "--ranks", "2", "--tolerance", "0.1"},
       {"--tolerance", "--previous"}},
      {{"eplb", "plan", loads, "--slots", "8", "--ranks", "2", "--out", dir.path() + "/no/p"},
       {"cannot be written"}},
      {{"eplb", "plan", loads, "--slots", "8", "--ranks", "2", "--previous", placement},
       {"expert 0", "twice"}},
      {{"eplb", "simulate", loads}, {"--slots is missing"}},
      {{"eplb", "simulate", loads, "--placement", placement}, {"expert 0", "twice on rank 0"}},
      {{"eplb", "simulate", loads, "--placement", loads}, {"JSON"}},
      {{"eplb", "simulate", loads, "--placement", placement, "--slots", "8"}, {"--placement"}},
  };
  for (const Case& c : cases) {
    Finished done = run_command(c.args);
    const std::string call = testing::PrintToString(c.args) + "\n" + done.err;
    EXPECT_EQ(done.status, 2) << call;
    EXPECT_EQ(done.out, "") << call;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << call;
    for (const std::string& part : c.says) EXPECT_THAT(done.err, HasSubstr(part)) << call;
  }
  EXPECT_EQ(run_command({"eplb", "plan", loads, "--slots", "8", "--ranks", "2"}).status, 0);
}

}  // namespace
}  // namespace switchyard
