// SPDX-License-Identifier: Apache-2.0
// The built command as a user meets it: streams, and the switches that every command reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/command_json.h"

namespace switchyard {
namespace {

using test::data;
using test::Finished;
using test::Json;
using test::run_command;
using testing::HasSubstr;
using testing::MatchesRegex;

const std::vector<std::vector<std::string>> kThatBuild = {
    {"explain", "--preset", "tiny"},
    {"run", "--preset", "tiny", "--tokens", "1"},
    {"bench", "layer", "--preset", "tiny", "--tokens", "1", "--seconds", "0.001"},
    {"verify", data("mixtral"), "--tokens", "1"}};

TEST(Switches, AForcedStrategyIsAPinOfEveryCommandThatBuilds) {
  test::Start start;
  start.env = {{"SWITCHYARD_COMM", "nccl"}};
  for (const std::vector<std::string>& args : kThatBuild) {
    start.args = args;
    Finished done = run_command(start);
    EXPECT_EQ(done.status, 1) << args[0];
    EXPECT_THAT(done.out + done.err, HasSubstr("strategy nccl cannot serve: ranks = 1")) << args[0];
  }
}

TEST(Switches, ACombinePrecisionIsAskedOfEveryCommandThatBuilds) {
  test::Start start;
  start.env = {{"SWITCHYARD_COMBINE_PRECISION", "fp8"}};
  for (const std::vector<std::string>& args : kThatBuild) {
    start.args = args;
    Finished done = run_command(start);
    EXPECT_EQ(done.status, 0) << args[0] << done.err;
    const bool explains = args[0] == "explain";
    EXPECT_THAT(done.out, HasSubstr(explains ? "combine: asked fp8, effective none (one rank)"
                                             : "combine = fp8 has no effect: one rank"))
        << args[0];
  }
  EXPECT_THAT(run_command({"run", "--tokens", "1", "--combine", "fp8"}).out,
              HasSubstr("combine = fp8 has no effect"));
}

TEST(Streams, NoProgressBarWhenPiped) {
  Finished done = run_command({"verify", data("mixtral"), "--tokens", "1"});
  EXPECT_EQ(done.status, 0);
  EXPECT_EQ(done.err, "");
  EXPECT_THAT(done.out, HasSubstr("switchyard.cpu.fused_moe.none"));
}

TEST(Streams, AProgressBarOnATerminalOnly) {
  test::Start start;
  start.args = {"verify", data("mixtral"), "--tokens", "1", "--json"};
  start.terminal = true;
  Finished done = run_command(start);
  EXPECT_EQ(done.status, 0);
  EXPECT_THAT(done.err, HasSubstr("packing [####"));
  EXPECT_TRUE(done.err.ends_with("\r\x1b[K")) << "the bar is not wiped";
  EXPECT_TRUE(Json::accept(done.out));
}

TEST(Streams, AFullDiskIsNoticed) {
  test::Start start;
  start.out_path = "/dev/full";
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--help"}, {"doctor"}, {"explain", "--json"}}) {
    start.args = args;
    Finished done = run_command(start);
    EXPECT_EQ(done.status, 1) << args[0];
    EXPECT_THAT(done.err, HasSubstr("writing to stdout failed")) << args[0];
  }
}

// ---- switches ----

Finished with_switch(const std::vector<std::string>& args, const std::string& name,
                     const std::string& value) {
  test::Start start;
  start.args = args;
  start.env = {{name, value}};
  return run_command(start);
}

class UselessSwitch : public testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(UselessSwitch, WarnsOnceAndChangesNothing) {
  const auto& [name, says] = GetParam();
  const std::vector<std::string> args = {"verify", data("mixtral"), "--io",
                                         data("mixtral/moe_io.safetensors"), "--json"};
  Finished plain = run_command(args), switched = with_switch(args, name, "1");
  EXPECT_EQ(switched.status, 0);
  EXPECT_EQ(switched.out, plain.out);
  EXPECT_THAT(switched.err, MatchesRegex("switchyard: warning: " + name + "[^\n]*\n"));
  EXPECT_THAT(switched.err, HasSubstr(says));

  const std::vector<std::string> question = {"explain", "--preset", "tiny", "--json"};
  Json before = Json::parse(run_command(question).out);
  Json after = Json::parse(with_switch(question, name, "1").out);
  EXPECT_EQ(after["warnings"].size(), 1u);
  for (const char* key : {"winner", "eligible", "rejected", "fingerprint", "knobs"})
    EXPECT_EQ(after[key], before[key]) << key;
}

INSTANTIATE_TEST_SUITE_P(
    Switches, UselessSwitch,
    testing::Values(std::pair{"TRTLLM_GEN_FUSED_MOE_USE_FLASHINFER", "always runs"},
                    std::pair{"SWITCHYARD_CPU_ISSA", "did you mean SWITCHYARD_CPU_ISA"}));

TEST(Switch, AnHonouredOneChangesTheFingerprint) {
  const std::vector<std::string> args = {"--version", "--json"};
  Json plain = Json::parse(run_command(args).out);
  Json pinned = Json::parse(with_switch(args, "SWITCHYARD_CPU_ISA", "portable").out);
  EXPECT_EQ(pinned["machine"]["cpu_isa"], "portable");
  EXPECT_EQ(pinned["machine"]["cpu_best_isa"], plain["machine"]["cpu_best_isa"]);
  if (plain["machine"]["cpu_isa"] != "portable") {
    EXPECT_NE(pinned["fingerprint"], plain["fingerprint"]);
  }
}

/// One good call of every command, as cheap as it gets; each takes --json too.
std::vector<std::vector<std::string>> one_call_of_each() {
  const std::string loads = testing::TempDir() + "switchyard_loads.csv",
                    bench = testing::TempDir() + "switchyard_routing.json";
  std::ofstream(loads) << "1,2,3,4\n";
  std::vector<std::vector<std::string>> calls = {
      {"bench", "routing", "--preset", "tiny", "--tokens", "1", "--methods", "TopK", "--seconds",
       "0.001"},
      {"run", "--tokens", "0"},
      {"verify", data("mixtral"), "--tokens", "1"},
      {"explain", "--preset", "tiny"},
      {"inspect", data("mixtral")},
      {"doctor"},
      {"bench", "layer", "--preset", "tiny", "--tokens", "1", "--seconds", "0.001"},
      {"bench", "exchange", "--tokens", "1", "--seconds", "0.001"},
      {"bench", "allreduce", "--tokens", "1", "--hidden", "64", "--seconds", "0.001"},
      {"eplb", "plan", loads, "--slots", "4", "--ranks", "2"},
      {"eplb", "simulate", loads, "--slots", "4", "--ranks", "2"}};
  std::vector<std::string> json = calls[0];
  json.push_back("--json");
  std::ofstream(bench) << run_command(json).out;
  calls.push_back({"bench", "compare", bench, bench});
  return calls;
}

TEST(Switch, AMisspeltOneWarnsOnceInEveryCommand) {
  for (std::vector<std::string> args : one_call_of_each())
    for (bool json : {false, true}) {
      if (json) args.push_back("--json");
      Finished done = with_switch(args, "SWITCHYARD_CMM", "1");
      EXPECT_EQ(done.status, 0) << testing::PrintToString(args) << done.err;
      EXPECT_THAT(done.err, MatchesRegex("switchyard: warning: SWITCHYARD_CMM[^\n]*\n"))
          << testing::PrintToString(args);
    }
}

TEST(Switch, AnIllegalValueIsAMistakeInEveryCommand) {
  for (const std::vector<std::string>& args : one_call_of_each()) {
    Finished done = with_switch(args, "SWITCHYARD_CPU_ISA", "avx1024");
    EXPECT_EQ(done.status, 2) << testing::PrintToString(args);
    EXPECT_EQ(done.out, "");
    EXPECT_THAT(done.err,
                MatchesRegex("switchyard: [^\n]*SWITCHYARD_CPU_ISA[^\n]*avx1024[^\n]*\n"));
  }
}

}  // namespace
}  // namespace switchyard
