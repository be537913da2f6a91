// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cli/bench_json.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/run_flags.h"
#include "cli/tactic_json.h"
#include "switchyard/api/tune.h"
#include "switchyard/base/nearest.h"
#include "switchyard/leaves/registry.h"

namespace switchyard::cli {
namespace {

constexpr std::string_view kSchema = "switchyard.tune.1";

struct TuneFlags {
  TuneOptions options;
  SourceFlags source;
  std::optional<float> seconds;
  bool json = false, ways = false;

  void add(Arguments& args) {
    source.add(args);
    args.words(
        "--formats", [this](const std::string& v) { take_format(v, options.formats); },
        "Formats to convert to, or all; the layer's own by default", "F,...");
    args.integers("--tokens", {1, kTokens.high}, options.tokens,
                  "T, tokens of a call; each stands for those up to the next power of two "
                  "(default 1,8,64,512)");
    args.text(
        "--routing", [this](const std::string& v) { options.source.routing = to_skew(v); },
        "How tokens spread over experts: uniform (default), zipf or one", "SKEW");
    args.positive("--seconds", seconds, "Time for a call of a number of tokens (default 4)");
    args.text("--out", options.out, "The table to write, or to add to; run it with --tuning FILE",
              "FILE");
    args.toggle("--again", options.again, "Tunes what the table of --out has already, too");
    args.toggle("--ways", ways, "Print the time of every way that was tried, too");
    args.toggle("--json", json, "Print JSON");
  }

  std::int64_t ranks() const { return options.source.build.ep * options.source.build.tp; }

  void finish() {
    source.finish();
    require(options.formats.empty() || !source.build.build.format,
            "--format and --formats are both given; keep one");
    require(source.build.build.tuning.empty(), "--tuning ", source.build.build.tuning,
            " is for layers that run; tune compares with the plans, and writes with --out");
    source.fill(options.source);
    require(!options.again || !options.out.empty(),
            "--again is given without --out, and so there is nothing to tune a second time; name "
            "the table, or leave --again out");
    if (seconds) options.seconds = *seconds;
  }
};

Json ways_json(const TunedCall& t) {
  Json ways = Json::array();
  for (const auto& [tactic, us] : t.ways)
    ways.push_back({{"tactic", tactic_json(tactic)}, {"time_us", us}});
  return ways;
}

/// Every way of every call that was compared, in the order in which they are planned.
std::string ways_text(const TuneResult& result) {
  Table table({">layer", "format", "call", ">up to", ">us", "tactic"});
  for (const TunedCall& t : result.calls)
    for (const auto& [tactic, us] : t.ways)
      table.add({cat(t.layer), std::string(show_format(t.format)), t.call, cat(t.tokens),
                 fixed(us, 1), to_string(tactic)});
  return table.str();
}

Json to_json(const TunedCall& t) {
  return {{"layer", t.layer},
          {"format", show_format(t.format)},
          {"leaf", t.leaf},
          {"call", t.call},
          {"tokens", t.tokens},
          {"plan", tactic_json(t.plan)},
          {"tactic", tactic_json(t.tactic)},
          {"changed", t.changed()},
          {"plan_time_us", t.plan_us},
          {"time_us", t.us},
          {"ratio", t.ratio},
          {"noise", t.noise},
          {"candidates", t.candidates},
          {"ways", ways_json(t)},
          {"rounds", t.rounds},
          {"known", t.known},
          {"why", t.why}};
}

std::string json_of(const TuneFlags& flags, const TuneResult& result, const std::string& line) {
  Json calls = Json::array();
  for (const TunedCall& t : result.calls) calls.push_back(to_json(t));
  Json body = record_json({std::string(kSchema), line});
  body.update(Json{{"ok", true},
                   {"rule", tune_rule(flags.ranks())},
                   {"out", flags.options.out.empty() ? Json(nullptr) : Json(flags.options.out)},
                   {"entries", result.entries},
                   {"calls", std::move(calls)},
                   {"notices", result.notices}});
  return json_text(body);
}

std::string text_of(const TuneFlags& flags, const TuneResult& result) {
  Table table({">layer", "format", "call", ">up to", ">ways", ">rounds", ">plan us", ">us", ">gain",
               ">noise", "tactic"});
  for (const TunedCall& t : result.calls)
    table.add({cat(t.layer), std::string(show_format(t.format)), t.call, cat(t.tokens),
               cat(t.candidates), cat(t.rounds), fixed(t.plan_us, 1), fixed(t.us, 1),
               t.changed() ? cat(fixed(100 * (1 - t.ratio), 1), "%") : "-",
               cat(fixed(100 * t.noise, 1), "%"),
               cat(t.changed() ? to_string(t.tactic) : "the plan's", "; ", t.why)});
  std::string out = table.str();
  if (flags.ways) out += ways_text(result);
  for (const std::string& notice : result.notices) out += notice + "\n";
  out += cat(tune_rule(flags.ranks()), "\n");
  if (flags.options.out.empty()) return out + "nothing is written; --out FILE keeps the choices\n";
  return out + cat(flags.options.out, ": ", result.entries,
                   result.entries == 1 ? " entry" : " entries", "; run with --tuning ",
                   flags.options.out, "\n");
}

Answer run_command(Arguments& args) {
  TuneFlags flags;
  flags.add(args);
  if (!args.parse()) return {kOk, args.help()};
  flags.finish();
  StatusLine status;
  flags.options.progress = status.callback();
  const TuneResult result = tune_layers(flags.options);
  status.wipe();
  return {kOk, flags.json ? json_of(flags, result, args.line()) : text_of(flags, result)};
}

}  // namespace

const Command kTune = {
    .name = "tune",
    .summary = "Times the ways to run a layer that give the same bits, and keeps the fastest",
    .example =
        "switchyard tune --preset tiny --tokens 1,8 --seconds 0.5\n"
        "switchyard tune --preset qwen3-30b-a3b --formats all --out tuning.json\n"
        "switchyard run --preset qwen3-30b-a3b --tuning tuning.json",
    .run = run_command};

}  // namespace switchyard::cli
