// SPDX-License-Identifier: Apache-2.0
// The built command as a user meets it: exit statuses and JSON keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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
using test::json_of;
using test::kCommands;
using test::Keys;
using test::keys;
using test::kHeader;
using test::run_command;
using test::with_header;
using test::words;
using testing::HasSubstr;
using testing::MatchesRegex;

TEST(Help, NamesEveryCommandAndIsQuietOnStderr) {
  Finished done = run_command({"--help"});
  EXPECT_EQ(done.status, 0);
  EXPECT_EQ(done.err, "");
  for (const std::string& command : kCommands) EXPECT_THAT(done.out, HasSubstr("\n  " + command));
  EXPECT_THAT(done.out, HasSubstr("Exit status: 0 ok"));
  EXPECT_EQ(run_command({"-h"}).out, done.out);
}

TEST(Help, EveryCommandHasAnExampleAndJson) {
  for (const std::string& command : kCommands) {
    Finished done = run_command(words(command, "--help"));
    EXPECT_EQ(done.status, 0);
    EXPECT_EQ(done.err, "");
    EXPECT_THAT(done.out, HasSubstr("Examples:\n  switchyard " + command));
    EXPECT_THAT(done.out, HasSubstr("--json"));
    EXPECT_EQ(run_command(words(command, "-h")).out, done.out);
    std::size_t start = 0, end = 0;
    for (; (end = done.out.find('\n', start)) != std::string::npos; start = end + 1)
      EXPECT_LE(end - start, 100u) << done.out.substr(start, end - start);
  }
}

TEST(Help, ReadsNeitherMachineNorSwitches) {
  test::Start start;
  start.env = {{"SWITCHYARD_CPU_ISA", "nonsense"}, {"SWITCHYARD_CMM", "x"}};
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--help"}, {"run", "--help"}}) {
    start.args = args;
    Finished done = run_command(start);
    EXPECT_EQ(done.status, 0);
    EXPECT_EQ(done.err, "");
  }
}

TEST(Help, ListsTheKindsOfACommand) {
  Finished done = run_command({"bench", "--help"});
  EXPECT_EQ(done.status, 0);
  for (const char* kind : {"layer", "routing", "exchange", "allreduce", "compare"})
    EXPECT_THAT(done.out, HasSubstr(std::string("\n  ") + kind));
}

TEST(Version, SaysVersionCommitAndTwins) {
  Finished done = run_command({"--version"});
  EXPECT_EQ(done.status, 0);
  EXPECT_THAT(done.out, MatchesRegex("switchyard [0-9.]+ \\(commit [0-9a-z]+\\)\ntwins: cpu "
                                     "portable.*\n"));
  EXPECT_EQ(keys(json_of({"--version"})), kHeader);
}

TEST(JsonKeys, HeaderIsTheSameEverywhere) {
  Json header = json_of({"--version"});
  EXPECT_EQ(keys(header["machine"]), (Keys{"cpu_isa", "cpu_best_isa", "cpus", "cpu_model",
                                           "l3_bytes", "gpus", "sm", "built_in", "twins"}));
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"doctor"}, {"explain"}, {"inspect", data("mixtral")}}) {
    Json json = json_of(args);
    for (const std::string& key : kHeader) EXPECT_EQ(json[key], header[key]) << args[0];
  }
}

TEST(JsonKeys, BenchLayerAndItsComparison) {
  const std::vector<std::string> args = {"bench", "layer", "--seconds", "0.001", "--tokens", "2"};
  const Json json = json_of(args);
  EXPECT_EQ(keys(json), with_header({"schema", "command", "date", "ok", "roof", "flush_bytes",
                                     "rules", "measurements", "skipped", "notices"}));
  EXPECT_EQ(json["command"], "switchyard bench layer --seconds 0.001 --tokens 2 --json");
  const Json& row = json["measurements"][0];
  EXPECT_EQ(keys(row),
            (Keys{"preset",         "layer",  "format", "activations", "tokens",  "overrides",
                  "routing",        "leaf",   "device", "isa",         "threads", "expert_bytes",
                  "packed_bytes",   "layers", "fresh",  "cold",        "warm",    "router_time_us",
                  "checked_tokens", "rel_l2", "budget", "ok",          "notices", "tactics",
                  "routing_launch"}));
  EXPECT_EQ(row["routing_launch"]["reason"], "on_cpu");
  EXPECT_EQ(keys(row["fresh"]),
            (Keys{"time_us", "distinct_experts", "gbps", "gflops", "share_of_roof", "slices"}));
  EXPECT_EQ(keys(row["warm"]["time_us"]), (Keys{"p50", "p90", "p99", "min", "samples"}));
  const std::string path = testing::TempDir() + "switchyard_bench.json";
  std::ofstream(path) << json;
  const Json same = json_of({"bench", "compare", path, path, "--noise", "0"});
  EXPECT_EQ(keys(same), with_header({"ok", "compared", "rule", "rows", "only_before", "only_after",
                                     "notices"}));
  EXPECT_EQ(same["rows"].size(), 3u);
  Json slower = json;
  slower["roof"]["end"] = slower["roof"]["start"];
  for (const char* q : {"p50", "p90"}) slower["measurements"][0]["fresh"]["time_us"][q] = 1e9;
  const std::string other = path + ".slower";
  std::ofstream(other) << slower;
  json_of({"bench", "compare", path, other}, 1);
}

TEST(JsonKeys, BenchExchange) {
  const Json json = json_of({"bench",     "exchange", "--strategy", "all",   "--ranks",   "2",
                             "--tokens",  "3",        "--hidden",   "64",    "--experts", "8",
                             "--top-k",   "2",        "--payload",  "mxfp8", "--combine", "fp8",
                             "--pattern", "ring",     "--seconds",  "0.001"});
  EXPECT_EQ(keys(json),
            with_header({"schema", "command", "date", "ok", "ranks", "hidden", "experts", "top_k",
                         "payload", "combine", "pattern", "cpus", "chosen", "copy", "rules",
                         "verdicts", "measurements", "skipped"}));
  EXPECT_EQ(json["schema"], "switchyard.bench.exchange.1");
  EXPECT_EQ(json["payload"], "mxfp8");
  EXPECT_EQ(json["combine"], "fp8");
  EXPECT_EQ(json["pattern"], "ring");
  EXPECT_EQ(keys(json["copy"]), (Keys{"gbps", "samples", "bytes", "start", "end"}));
  ASSERT_EQ(json["measurements"].size(), 5u);
  const Json& row = json["measurements"][0];
  EXPECT_EQ(keys(row),
            (Keys{"strategy", "tokens", "dispatch", "combine", "total", "gbps", "share_of_copy",
                  "shared_bytes", "own_bytes", "checked_tokens", "wrong_tokens", "ok"}));
  EXPECT_EQ(keys(row["dispatch"]), (Keys{"time_us", "rows", "bytes"}));
  EXPECT_EQ(keys(row["dispatch"]["time_us"]), (Keys{"p50", "p90", "p99", "min", "samples"}));
  EXPECT_EQ(row["dispatch"]["rows"], 2 * 3);
  ASSERT_EQ(json["verdicts"].size(), 7u);
  EXPECT_EQ(keys(json["verdicts"][0]), (Keys{"strategy", "eligible"}));
  EXPECT_EQ(json["verdicts"][2]["reason"], "dep_missing");
}

TEST(JsonKeys, BenchAllReduce) {
  const Json json = json_of({"bench",    "allreduce",      "--pattern", "7",
                             "--quant",  "nvfp4",          "--shared",  "--routed-scaling-factor",
                             "2.5",      "--scale-layout", "8x4",       "--strategy",
                             "two_shot", "--dtype",        "fp16",      "--ranks",
                             "3",        "--tokens",       "3,12",      "--hidden",
                             "96",       "--top-k",        "2",         "--seed",
                             "5",        "--seconds",      "0.001"});
  EXPECT_EQ(keys(json), with_header({"schema", "command", "date", "ok", "rules", "rows"}));
  EXPECT_EQ(json["schema"], "switchyard.bench.allreduce.1");
  EXPECT_EQ(keys(json["rules"]), (Keys{"fused", "separate", "bytes", "copy"}));
  ASSERT_EQ(json["rows"].size(), 2U);
  const Json& row = json["rows"][1];
  EXPECT_EQ(keys(row),
            (Keys{"pattern",        "quant",       "ranks",  "hidden",    "tokens",
                  "strategy",       "isa",         "ok",     "fused",     "separate",
                  "speedup",        "bytes",       "gbps",   "copy_gbps", "share_of_copy",
                  "checked_tokens", "equal_ranks", "rel_l2", "dtype",     "seed",
                  "scale_layout",   "experts",     "top_k",  "shared",    "routed_scaling_factor",
                  "device",         "carriers"}));
  EXPECT_EQ(row["device"], "cpu");
  EXPECT_EQ(row["carriers"], "threads");
  EXPECT_EQ(row["pattern"], "kMoEFinalizeARResidualRMSNorm");
  EXPECT_EQ(row["quant"], "nvfp4");
  EXPECT_EQ(row["scale_layout"], "8x4");
  EXPECT_EQ(row["strategy"], "two_shot");
  EXPECT_EQ(row["dtype"], "fp16");
  EXPECT_EQ(row["shared"], true);
  EXPECT_EQ(row["routed_scaling_factor"], 2.5);
  EXPECT_EQ(row["ranks"], 3);
  EXPECT_EQ(row["hidden"], 96);
  EXPECT_EQ(row["tokens"], 12);
  EXPECT_EQ(row["top_k"], 2);
  EXPECT_EQ(row["seed"], 5);
  EXPECT_TRUE(row["experts"].is_null()) << "of pattern 6 alone";
  EXPECT_EQ(row["equal_ranks"], true);
  EXPECT_EQ(row["checked_tokens"], 8);
  EXPECT_EQ(keys(row["rel_l2"]), (Keys{"residual_out", "norm_out", "quant_out"}));
  EXPECT_EQ(keys(row["fused"]["time_us"]), (Keys{"p50", "p90", "p99", "min", "samples"}));
  const Json plain = json_of(
      {"bench", "allreduce", "--tokens", "2", "--hidden", "64", "--seconds", "0.001"})["rows"][0];
  EXPECT_EQ(plain["pattern"], "kARResidualRMSNorm");
  for (const char* key : {"scale_layout", "top_k", "experts", "shared", "routed_scaling_factor"})
    EXPECT_TRUE(plain[key].is_null()) << key;
}

TEST(JsonKeys, BenchRouting) {
  const Json json = json_of({"bench", "routing", "--preset", "tiny", "--tokens", "2", "--methods",
                             "TopK,Sigmoid", "--seconds", "0.001"});
  EXPECT_EQ(keys(json),
            with_header({"schema", "command", "date", "ok", "rules", "gemm", "choice", "skipped"}));
  ASSERT_EQ(json["choice"].size(), 2u);
  EXPECT_EQ(keys(json["gemm"][0]),
            (Keys{"preset", "hidden", "experts", "device", "threads", "tokens", "gemm",
                  "ns_per_token", "naive_ns_per_token", "gbps", "max_error"}));
  EXPECT_EQ(keys(json["choice"][1]),
            (Keys{"preset", "hidden", "experts", "device", "threads", "tokens", "method", "top_k",
                  "choice", "ns_per_token", "naive_ns_per_token", "checked_tokens", "ids_agreeing",
                  "ids_near_tie", "ids_differing", "max_weight_error"}));
  EXPECT_EQ(json["choice"][0]["method"], "TopK");
}

TEST(JsonKeys, Explain) {
  Keys report = {"problem",  "deployment", "requested", "winner",   "selected_by",
                 "eligible", "rejected",   "assumed",   "degraded", "degraded_from",
                 "knobs",    "warnings",   "schema",    "ok"};
  EXPECT_EQ(keys(json_of({"explain", "--preset", "tiny"})), with_header(report));
  report.insert("strategies");
  Json ranks = json_of({"explain", "--preset", "tiny", "--ranks", "2"});
  EXPECT_EQ(keys(ranks), with_header(report));
  EXPECT_EQ(keys(ranks["rejected"][0]), (Keys{"candidate", "reason", "detail"}));
  EXPECT_EQ(keys(ranks["strategies"][0]), (Keys{"strategy", "reason", "detail"}));
  EXPECT_EQ(ranks["deployment"]["ep"], 2);
  EXPECT_EQ(ranks["deployment"]["parallel"], "dep");
  EXPECT_EQ(keys(json_of({"explain", "--checkpoint", data("mixtral")})),
            with_header({"ok", "layers", "notices"}));
}

TEST(JsonKeys, Doctor) {
  Json json = json_of({"doctor"});
  EXPECT_EQ(keys(json["gpu"]), (Keys{"count", "sm", "peer_access"}));
  if (json["gpu"]["count"] < 2) {
    EXPECT_TRUE(json["gpu"]["peer_access"].is_null());
  }
  EXPECT_EQ(keys(json),
            with_header({"ok", "twins", "cpu", "gpu", "built_in", "switches", "warnings", "formats",
                         "strategies", "allreduce_patterns", "tile_kernels", "shipped_tactics"}));
  ASSERT_EQ(json["shipped_tactics"].size(), 1u);
  const Json& shipped = json["shipped_tactics"][0];
  EXPECT_EQ(keys(shipped), (Keys{"gpu", "choices", "kernels", "used", "detail"}));
  EXPECT_EQ(shipped["used"].get<bool>(), shipped["kernels"] == json["tile_kernels"]);
  EXPECT_EQ(json["formats"].size(), 16u);
  for (const Json& f : json["formats"]) {
    EXPECT_EQ(keys(f), (Keys{"format", "device", "leaf", "ok", "reason", "detail"}));
    EXPECT_EQ(f["ok"].get<bool>(), f["reason"].is_null());
  }
  EXPECT_EQ(json["switches"][0]["name"], "SWITCHYARD_COMM");
  EXPECT_EQ(keys(json["switches"][0]),
            (Keys{"name", "status", "doc", "value", "default", "in_fingerprint"}));
  EXPECT_EQ(json["strategies"].size(), 7u);
  EXPECT_EQ(json_of({"doctor", "--device", "cpu"})["formats"].size(), 8u);
  ASSERT_EQ(json["allreduce_patterns"].size(), 24u);
  for (const Json& p : json["allreduce_patterns"]) {
    EXPECT_EQ(keys(p), (Keys{"value", "pattern", "device", "ok", "reason", "detail"}));
    EXPECT_EQ(p["ok"], p["device"] == "cpu");
  }
}

TEST(JsonKeys, Inspect) {
  Json json = json_of({"inspect", data("qwen3_moe_nvfp4")});
  EXPECT_EQ(keys(json), with_header({"ok", "path", "kind", "family", "schema", "num_tensors",
                                     "file_bytes", "layers", "tensors", "notices"}));
  EXPECT_EQ(json["layers"][0]["format"], "nvfp4");
  Json file = json_of({"inspect", data("mixtral/model.safetensors")});
  EXPECT_EQ(file["kind"], "file");
  EXPECT_FALSE(file["tensors"].empty());
  Finished text = run_command({"inspect", data("qwen3_moe_nvfp4")});
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.out, HasSubstr("model.layers.0.mlp  nvfp4"));
  EXPECT_EQ(text.err, "");
}

TEST(JsonKeys, Verify) {
  Json json = json_of({"verify", data("mixtral"), "--io", data("mixtral/moe_io.safetensors")});
  EXPECT_EQ(keys(json), with_header({"ok", "checkpoint", "layers", "notices"}));
  EXPECT_EQ(json["ok"], true);
  const Json& layer = json["layers"][0];
  EXPECT_EQ(keys(layer), (Keys{"layer", "block", "format", "leaf", "tokens", "rel_l2",
                               "rel_l2_oracle", "budget", "ids_differing", "ids_near_tie", "codes",
                               "codes_differing", "worst_row", "ok", "notices", "tactics"}));
  EXPECT_EQ(keys(layer["worst_row"]), (Keys{"row", "rel_l2_oracle"}));
  EXPECT_EQ(keys(layer["budget"]), (Keys{"rel_l2", "rel_l2_oracle"}));
  EXPECT_EQ(layer["format"], "bf16");
  EXPECT_EQ(layer["tokens"], 24);
  EXPECT_GT(layer["rel_l2"], 0);
}

TEST(JsonKeys, VerifyOfRequantisedWeightsHasNoBudgetForTheOutput) {
  Json json = json_of({"verify", data("mixtral"), "--io", data("mixtral/moe_io.safetensors"),
                       "--format", "w4a16_mxfp4"});
  const Json& layer = json["layers"][0];
  EXPECT_EQ(layer["format"], "w4a16_mxfp4");
  EXPECT_TRUE(layer["budget"]["rel_l2"].is_null());
  EXPECT_TRUE(layer["budget"]["rel_l2_oracle"].is_number());
}

TEST(JsonKeys, VerifyPerExpert) {
  Json json = json_of({"verify", data("qwen3_moe_nvfp4"), "--layer", "0", "--per-expert"});
  const Json& experts = json["layers"][0]["experts"];
  EXPECT_EQ(experts.size(), 16u);
  for (const Json& e : experts)
    EXPECT_EQ(keys(e), (Keys{"expert", "rows", "rel_l2_oracle", "rel_l2_unquantised",
                             "fc1_input_scale", "fc2_input_scale", "note"}));
  Finished text = run_command({"verify", data("qwen3_moe_nvfp4"), "--layer", "0", "--per-expert"});
  EXPECT_THAT(text.out, HasSubstr("expert  rows  to oracle  to unquantised"));
}

// The researcher's question: 512 tokens, how many came to each expert?
TEST(Run, CountsTheTokensOfEachExpert) {
  auto counts = [](std::vector<std::string> args) {
    args.insert(args.end(), {"--tokens", "512", "--threads", "1"});
    const Json json = json_of(args);
    return json["measurements"][0]["expert_tokens"].get<std::vector<std::int64_t>>();
  };
  auto sum = [](const std::vector<std::int64_t>& n) {
    std::int64_t out = 0;
    for (std::int64_t v : n) out += v;
    return out;
  };
  const std::vector<std::int64_t> even = counts({"run"}),
                                  skewed = counts({"run", "--routing", "zipf"}),
                                  one = counts({"run", "--routing", "one"});
  EXPECT_EQ(even.size(), 8u);
  for (const auto& n : {even, skewed, one}) EXPECT_EQ(sum(n), 512 * 2);
  EXPECT_EQ(one, (std::vector<std::int64_t>{512, 512, 0, 0, 0, 0, 0, 0}));
  EXPECT_LT(*std::max_element(even.begin(), even.end()), 200);
  EXPECT_GT(skewed[0], 2 * skewed[7]);
  // Where a table over token ids routes, the skew is one of the ids.
  const std::vector<std::int64_t> hashed =
      counts({"run", "--checkpoint", data("deepseek_v4"), "--layer", "0", "--routing", "one"});
  EXPECT_EQ(std::count(hashed.begin(), hashed.end(), 512), sum(hashed) / 512);
}

// Outputs below bf16's normal range have no relative precision to lose.
TEST(Run, AFactorThatMakesTheOutputSubnormalKeepsTheBudget) {
  const Json json = json_of({"run", "--factor", "1e-39", "--tokens", "4", "--threads", "1"});
  EXPECT_EQ(json["ok"], true);
}

TEST(Explain, SlotsThatNothingFillsHaveNoWinner) {
  Json json = json_of({"explain", "--preset", "tiny", "--slots", "16"}, 1);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["winner"], "");
  EXPECT_THAT(json["rejected"].dump(), HasSubstr("where replicas balance nothing"));
  EXPECT_THAT(json["rejected"].dump(), HasSubstr("eplb_unsupported"));
  EXPECT_EQ(run_command({"run", "--preset", "tiny", "--slots", "16"}).status, 1);
  // Nor where every rank holds columns of all experts, or more slots than there are experts.
  for (const std::vector<std::string>& spread :
       {std::vector<std::string>{"--parallel", "ttp", "--slots", "10"},
        {"--parallel", "dtp", "--slots", "10"},
        {"--slots", "20"}}) {
    std::vector<std::string> words = {"explain", "--preset", "tiny", "--ranks", "2"};
    words.insert(words.end(), spread.begin(), spread.end());
    EXPECT_THAT(json_of(words, 1)["rejected"].dump(), HasSubstr("eplb_unsupported"));
    words[0] = "run";
    EXPECT_EQ(run_command(words).status, 1) << "run agrees";
  }
  EXPECT_EQ(json_of({"explain", "--preset", "tiny", "--slots", "8"})["ok"], true);
}

TEST(Explain, ACheckpointsSharedExpertIsAskedToo) {
  Json json = json_of({"explain", "--checkpoint", data("deepseek_v3_fp8_block")});
  for (const Json& layer : json["layers"])
    EXPECT_EQ(layer["shared_leaf"], "switchyard.cpu.fused_moe.fp8_block_scales");
  EXPECT_FALSE(
      json_of({"explain", "--checkpoint", data("mixtral")})["layers"][0].contains("shared_leaf"));
}

TEST(JsonKeys, Run) {
  Keys measurement = {"preset",
                      "layer",
                      "format",
                      "activations",
                      "leaf",
                      "device",
                      "ranks",
                      "parallel",
                      "strategy",
                      "tokens",
                      "checked_tokens",
                      "finalize",
                      "distinct_experts",
                      "calls",
                      "time_us",
                      "router_time_us",
                      "gbps",
                      "gflops",
                      "roof",
                      "share_of_roof",
                      "rel_l2",
                      "budget",
                      "ok",
                      "notices",
                      "expert_tokens",
                      "tactics",
                      "routing_launch",
                      "joined",
                      "combine",
                      "ep",
                      "tp",
                      "slots"};
  Json json = json_of({"run", "--tokens", "3", "--threads", "1"});
  EXPECT_EQ(keys(json), with_header({"ok", "measurements", "rules", "notices"}));
  EXPECT_EQ(json["rules"]["distinct_experts"],
            "the median over the timed calls, each with routing of its own");
  EXPECT_EQ(json["rules"]["expert_tokens"],
            "of one call, the judged one, which repeats the untimed first call");
  const Json& m = json["measurements"][0];
  EXPECT_EQ(keys(m), measurement);
  EXPECT_EQ(m["preset"], "tiny");
  EXPECT_EQ(m["format"], "bf16");
  EXPECT_EQ(m["tokens"], 3);
  EXPECT_EQ(m["checked_tokens"], 3);
  EXPECT_EQ(m["slots"], 8);
  EXPECT_EQ(m["combine"], (Json{{"requested", "bf16"}, {"effective", "none"}}));
  EXPECT_EQ(keys(m["time_us"]), (Keys{"p50", "p90", "p99"}));
  EXPECT_EQ(keys(m["roof"]), (Keys{"gbps", "gflops", "samples"}));
  EXPECT_EQ(m["roof"]["samples"], 6) << "taken before and after the calls";
  measurement.erase("preset");
  measurement.insert("checkpoint");
  json = json_of({"run", "--checkpoint", data("mixtral"), "--tokens", "9", "--threads", "2"});
  EXPECT_EQ(keys(json["measurements"][0]), measurement);
  EXPECT_EQ(json["measurements"][0]["checked_tokens"], 8);
}

TEST(Run, TakesEveryFlagThatOneRankServes) {
  Json json = json_of({"run",
                       "--preset=tiny",
                       "--tokens",
                       "5",
                       "--ranks",
                       "1",
                       "--ep",
                       "1",
                       "--tp",
                       "1",
                       "--parallel",
                       "dep",
                       "--slots",
                       "8",
                       "--device",
                       "cpu",
                       "--format",
                       "nvfp4",
                       "--activations",
                       "bf16",
                       "--leaf",
                       "nvfp4",
                       "--comm",
                       "auto",
                       "--combine",
                       "bf16",
                       "--finalize",
                       "plain",
                       "--top-k",
                       "3",
                       "--factor",
                       "2.5",
                       "--without-shared",
                       "--routing",
                       "zipf",
                       "--threads",
                       "1",
                       "--seed",
                       "7"});
  const Json& m = json["measurements"][0];
  EXPECT_EQ(m["leaf"], "switchyard.cpu.fused_moe.nvfp4");
  EXPECT_EQ(m["activations"], "bf16");
}

TEST(Run, ZeroTokensAreLegal) {
  Json json = json_of({"run", "--tokens", "0"});
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["measurements"][0]["checked_tokens"], 0);
}

TEST(Run, CalibratesOnTheGivenTokens) {
  std::string io = data("gpt_oss_mxfp4/moe_io.safetensors");
  Json json = json_of({"run", "--checkpoint", data("gpt_oss_mxfp4"), "--tokens", "2", "--format",
                       "w4a8_mxfp4_fp8", "--calibrate", io});
  for (const Json& layer : json["measurements"])
    EXPECT_THAT(layer["notices"].dump(), HasSubstr("24 of them given"));
}

TEST(Verify, CalibratesEachLayerOnItsOwnTokens) {
  std::string io = data("deepseek_v4/moe_io.safetensors");
  Json json = json_of(
      {"verify", data("deepseek_v4"), "--io", io, "--format", "w4a8_mxfp4_fp8", "--calibrate", io});
  ASSERT_EQ(json["layers"].size(), 2u);
  for (const Json& layer : json["layers"])
    EXPECT_THAT(layer["notices"].dump(), HasSubstr("24 of them given"));
}

TEST(ExitStatus, OneWhenNothingCanServe) {
  Finished done = run_command(
      {"explain", "--preset", "tiny", "--format", "nvfp4", "--device", "cuda", "--sm", "89"});
  EXPECT_EQ(done.status, 1);
  EXPECT_EQ(done.err, "");
  EXPECT_THAT(done.out, HasSubstr("sm_unsupported"));
  done = run_command({"explain", "--preset", "tiny", "--leaf", "nvfp4"});
  EXPECT_EQ(done.status, 1);
  EXPECT_THAT(done.out, HasSubstr("quant_unsupported"));
}

}  // namespace
}  // namespace switchyard
