// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cli/bench_json.h"
#include "cli/bench_search.h"
#include "cli/command.h"
#include "cli/process_ranks.h"
#include "cli/progress.h"
#include "cli/run_flags.h"
#include "switchyard/api/bench.h"
#include "switchyard/base/nearest.h"
#include "switchyard/core/preset.h"
#include "switchyard/leaves/registry.h"

namespace switchyard::cli {
namespace {

constexpr std::string_view kSchema = "switchyard.bench.layer.1";

constexpr std::string_view kNoBar =
    "--bars is given and no row has a bar to be held to; bars stand for qwen3-30b-a3b and "
    "gpt-oss-20b as published, at 1, 8, 64 and 512 tokens with uniform routing, and on cuda for "
    "qwen3-30b-a3b, gpt-oss-120b and deepseek-v3 --without-shared, at 4096 and 8192 too";

struct BenchLayerFlags {
  BenchLayerOptions options;
  SourceFlags source;
  std::optional<float> seconds;
  BenchSearchOptions search;
  std::optional<std::int64_t> max_configs;
  bool searches = false, bars = false, json = false;

  void add(Arguments& args) {
    source.add(args);
    args.words(
        "--formats", [this](const std::string& v) { take_format(v, options.formats); },
        "Formats to convert to, or all; the layer's own by default", "F,...");
    args.integers("--tokens", {1, kTokens.high}, options.tokens,
                  "T, tokens of a call (default 1,8,64,512)");
    args.words(
        "--routing", [this](const std::string& v) { take_routing(v); },
        "How tokens spread over experts: uniform (default), zipf, one", "SKEW,...");
    args.words(
        "--state", [this](const std::string& v) { take_state(v); },
        "States to time: fresh, cold (cpu), warm, eager (cuda: no graph); all by default",
        "STATE,...");
    args.positive(
        "--seconds", seconds,
        "Time for the calls of a row and cache state on one rank (default 2); with ranks or "
        "--search calls are made as run makes them");
    args.toggle(
        "--bars", bars,
        "Holds each row to its bar, for the shapes that have one; a miss, and a format with "
        "a bar that cannot be built, exit with 1");
    args.words(
        "--search", [this](const std::string& v) { take_axis(v, search.axes), searches = true; },
        "Ranks configurations by time: leaf, comm, parallel, graph, or several of them",
        "AXES,...");
    args.integer("--max-configs", {1, 1 << 12}, max_configs,
                 "Most configurations that --search measures at a token count (default 16)");
    args.toggle("--json", json, "Print JSON");
  }

  void finish(Processes& processes) {
    source.spread.ranks.start_with(processes.size());
    source.finish();
    require(options.formats.empty() || !source.build.build.format,
            "--format and --formats are both given; keep one");
    source.fill(options.source);
    options.source.processes = &processes;
    require(!bars || options.fresh,
            "--bars holds fresh calls, and --state leaves them out; add fresh");
    require(!bars || any_bar(), kNoBar);
    if (seconds) options.seconds = *seconds;
    require(searches || !max_configs, "--max-configs is for --search, which is missing");
    require(ranked() || processes.size() == 1, "the launcher started ", processes.size(),
            " processes and the layer is for 1 rank; each process is a rank, give no number of "
            "ranks");
    if (!ranked()) return;
    require(
        options.formats.empty() && !bars && !state_given_ && !seconds &&
            options.routing.size() == 1,
        "--formats, --bars, --state, --seconds and several --routing are for layers on one rank "
        "without --search; leave them out");
    require(!search.axes.parallel || !source.spread.ranks.parallel,
            "--parallel pins what --search parallel varies; leave one of the two out");
    search.source = options.source;
    search.source.routing = options.routing.front();
    search.tokens = options.tokens;
    if (max_configs) search.max_configs = *max_configs;
  }

  /// Whether configurations are ranked, or a layer of several ranks is timed: as `run` does it.
  bool ranked() const { return searches || options.source.build.ep * options.source.build.tp > 1; }

 private:
  bool any_bar() const {
    if (!options.source.checkpoint.empty()) return false;
    std::vector<std::string> formats = options.formats;
    if (formats.empty())
      formats.push_back(
          options.source.build.format.value_or(make_preset(options.source.preset).format));
    return std::any_of(formats.begin(), formats.end(),
                       [this](const std::string& f) { return has_bar(options, f); });
  }

  void take_routing(const std::string& word) {
    if (!routing_given_) options.routing.clear();
    routing_given_ = true;
    options.routing.push_back(to_skew(word));
  }

  void take_state(const std::string& word) {
    require(word == "fresh" || word == "cold" || word == "warm" || word == "eager", "--state has '",
            word, "'; use fresh, cold, warm, eager or several of them");
    if (!state_given_) options.fresh = options.cold = options.warm = options.eager = false;
    state_given_ = true;
    (word == "fresh"  ? options.fresh
     : word == "cold" ? options.cold
     : word == "warm" ? options.warm
                      : options.eager) = true;
  }

  bool routing_given_ = false, state_given_ = false;
};

bool holds_bar(const BenchLayerResult& r) {
  return std::any_of(r.rows.begin(), r.rows.end(), [](const auto& row) { return bool(row.bar); }) ||
         std::any_of(r.skipped.begin(), r.skipped.end(), [](const auto& s) { return s.barred; });
}

Answer run_on(Processes& processes, Arguments& args) {
  BenchLayerFlags flags;
  if (!read_together(processes, flags, args)) return {kOk, args.help(), ""};
  StatusLine status;
  if (flags.ranked()) {
    if (processes.rank() == 0) flags.search.progress = status.callback();
    Answer out = answer_search(flags.search, flags.json, args.line());
    status.wipe();
    return out;
  }
  flags.options.progress = status.callback();
  const BenchLayerResult result = bench_layer(flags.options);
  status.wipe();
  require(!flags.bars || holds_bar(result), kNoBar);
  const int exit = result.ok && !(flags.bars && result.misses_bar()) ? kOk : kFailed;
  if (!flags.json) return {exit, bench_layer_text(result, flags.bars), ""};
  Json body = record_json({std::string(kSchema), args.line()});
  body.update(bench_layer_json(result));
  return {exit, json_text(body), ""};
}

Answer run_command(Arguments& args) {
  return on_processes([&](Processes& processes) { return run_on(processes, args); });
}

}  // namespace

const Command kBenchLayer = {
    .name = "bench layer",
    .summary = "Times layers with cold and warm caches against the machine's measured roof",
    .example =
        "switchyard bench layer\n"
        "switchyard bench layer --preset qwen3-30b-a3b --formats all --bars\n"
        "switchyard bench layer --ranks 4 --search comm,parallel --tokens 64\n"
        "mpirun -n 4 switchyard bench layer --ep 4 --tokens 64  # processes\n"
        "switchyard bench layer --checkpoint DIR --tokens 1,512 --routing uniform,zipf --json",
    .run = run_command};

}  // namespace switchyard::cli
