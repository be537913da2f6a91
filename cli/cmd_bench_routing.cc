// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cli/bench_json.h"
#include "cli/command.h"
#include "cli/layer_flags.h"
#include "cli/progress.h"
#include "switchyard/api/bench_routing.h"
#include "switchyard/base/nearest.h"
#include "switchyard/core/preset.h"

namespace switchyard::cli {
namespace {

constexpr std::string_view kSchema = "switchyard.bench.routing.1";
constexpr std::string_view kNaive =
    "naive: plain loops in double on one thread, at most 64 tokens, which is the oracle that the "
    "ids are held against";

Json row_base(const BenchRoutingResult& r, std::int64_t tokens) {
  return {{"preset", r.preset},   {"hidden", r.hidden},
          {"experts", r.experts}, {"device", std::string(to_string(r.device))},
          {"threads", r.threads}, {"tokens", tokens}};
}

Json to_json(const BenchRoutingResult& result) {
  Json gemm = Json::array(), choice = Json::array(), skipped = Json::array();
  for (const RouterGemmRow& g : result.gemm) {
    gemm.push_back(row_base(result, g.tokens));
    gemm.back().update(Json{{"gemm", {{"time_us", time_json(g.time)}}},
                            {"ns_per_token", g.ns_per_token},
                            {"naive_ns_per_token", g.naive_ns_per_token},
                            {"gbps", g.gbps},
                            {"max_error", g.max_error}});
  }
  for (const RouteChoiceRow& c : result.choice) {
    choice.push_back(row_base(result, c.tokens));
    choice.back().update(Json{{"method", to_string(c.method)},
                              {"top_k", c.top_k},
                              {"choice", {{"time_us", time_json(c.time)}}},
                              {"ns_per_token", c.ns_per_token},
                              {"naive_ns_per_token", c.naive_ns_per_token},
                              {"checked_tokens", c.checked},
                              {"ids_agreeing", c.agreeing},
                              {"ids_near_tie", c.near_tie},
                              {"ids_differing", c.differing},
                              {"max_weight_error", c.max_weight_error}});
  }
  for (const SkippedMethod& s : result.skipped)
    skipped.push_back({{"method", to_string(s.method)}, {"reason", s.reason}});
  return {{"ok", result.ok},
          {"rules", {{"naive", kNaive}}},
          {"gemm", std::move(gemm)},
          {"choice", std::move(choice)},
          {"skipped", std::move(skipped)}};
}

std::string text_of(const BenchRoutingResult& result) {
  std::string out = cat(
      "preset   ", result.preset, ", hidden ", result.hidden, ", ", result.experts, " experts, ",
      result.device == Device::kCuda
          ? std::string("cuda\n")
          : cat(result.threads, result.threads == 1 ? " thread\n" : " threads\n"));
  Table gemm({"router GEMM", ">tokens", ">p50 us", ">p90 us", ">p99 us", ">min us", ">calls",
              ">ns/token", ">naive ns/token", ">GB/s", ">max error"});
  for (const RouterGemmRow& g : result.gemm)
    gemm.add({"fp32", cat(g.tokens), fixed(g.time.p50, 2), fixed(g.time.p90, 2),
              fixed(g.time.p99, 2), fixed(g.time.least, 2), cat(g.time.samples),
              fixed(g.ns_per_token, 0), fixed(g.naive_ns_per_token, 0), fixed(g.gbps, 1),
              error_text(g.max_error)});
  Table choice({"choice", ">tokens", ">k", ">p50 us", ">p90 us", ">p99 us", ">min us", ">calls",
                ">ns/token", ">naive ns/token", "ids agreeing", ">weight error"});
  for (const RouteChoiceRow& c : result.choice)
    choice.add({std::string(to_string(c.method)), cat(c.tokens), cat(c.top_k), fixed(c.time.p50, 2),
                fixed(c.time.p90, 2), fixed(c.time.p99, 2), fixed(c.time.least, 2),
                cat(c.time.samples), fixed(c.ns_per_token, 0), fixed(c.naive_ns_per_token, 0),
                cat(c.agreeing, " of ", c.checked, c.differing > 0 ? " FAILED" : ""),
                error_text(c.max_weight_error)});
  out += cat(gemm.str(), "\n", choice.str());
  for (const SkippedMethod& s : result.skipped)
    out += cat(to_string(s.method), " is skipped: ", s.reason, "\n");
  return out + cat(kNaive, "\n");
}

struct RoutingFlags {
  BenchRoutingOptions options;
  std::optional<float> seconds;
  bool json = false;

  void add(Arguments& args) {
    args.text("--preset", options.preset,
              cat("Shape and groups (default ", options.preset, "): ", join(preset_names())));
    args.words(
        "--methods", [this](const std::string& v) { take_method(v); },
        "Routing methods, e.g. Renormalize,DeepSeekV3; every one by default", "NAME,...");
    args.text(
        "--device", [this](const std::string& v) { options.device = to_device(v); },
        "cpu (default) or cuda: one of 24 calls in a graph", "DEV");
    args.integers("--tokens", {1, kTokens.high}, options.tokens,
                  "T, tokens of a call (default 1,8,64,512)");
    args.positive("--seconds", seconds, "Time for the calls of a row (default 0.25)");
    args.integer(
        "--threads", kThreads, [this](std::int64_t v) { options.threads = int(v); },
        "Threads; every CPU by default");
    args.integer(
        "--seed", kSeed, [this](std::int64_t v) { options.seed = std::uint64_t(v); },
        "Seed of everything random (default 1)");
    args.toggle("--json", json, "Print JSON");
  }

 private:
  void take_method(const std::string& word) {
    const RoutingMethodType method = to_routing_method(word);
    require(
        std::find(options.methods.begin(), options.methods.end(), method) == options.methods.end(),
        "--methods names ", to_string(method), " twice; name it once");
    options.methods.push_back(method);
  }
};

Answer run_command(Arguments& args) {
  RoutingFlags flags;
  flags.add(args);
  if (!args.parse()) return {kOk, args.help()};
  if (flags.seconds) flags.options.seconds = *flags.seconds;
  StatusLine status;
  flags.options.progress = status.callback();
  const BenchRoutingResult result = bench_routing(flags.options);
  status.wipe();
  const int exit = result.ok ? kOk : kFailed;
  if (!flags.json) return {exit, text_of(result)};
  Json body = record_json({std::string(kSchema), args.line()});
  body.update(to_json(result));
  return {exit, json_text(body)};
}

}  // namespace

const Command kBenchRouting = {
    .name = "bench routing",
    .summary = "Times the router's GEMM and every routing method, and checks the ids",
    .example =
        "switchyard bench routing\n"
        "switchyard bench routing --preset deepseek-v3 --methods DeepSeekV3 --tokens 1,512 "
        "--json",
    .run = run_command};

}  // namespace switchyard::cli
