// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"
#include "cli/layer_flags.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "switchyard/api/judge.h"
#include "switchyard/api/machine.h"
#include "switchyard/base/nearest.h"
#include "switchyard/core/preset.h"

namespace switchyard::cli {
namespace {

constexpr std::string_view kOneRank = "this version runs every layer on one rank";

RoutingSkew to_skew(const std::string& word) {
  const std::vector<std::string> names = {"uniform", "zipf", "one"};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i] == word) return RoutingSkew(i);
  throw UsageError(cat("routing '", word, "' is unknown; use one of ", join(names)));
}

/// Flags of features that this version does not have, so that asking for one is answered by name.
struct UnbuiltFlags {
  RankFlags ranks;
  std::string placement, finalize = "plain";
  std::optional<CombinePrecision> combine;

  void add(Arguments& args) {
    ranks.add(args);
    args.text("--placement", placement, "Placement of the slots (not built yet)", "FILE");
    args.text(
        "--combine", [this](const std::string& v) { combine = to_combine_precision(v); },
        "Precision of the combine: bf16 (fp8 and nvfp4 are not built yet)", "P");
    args.text("--finalize", finalize, "plain (fused and reduce are not built yet)", "HOW");
  }

  void check() const {
    Deployment d = ranks.deployment();
    require(d.ranks() == 1, "--ep ", d.ep, " x --tp ", d.tp, " = ", d.ranks(), " ranks: exchange ",
            "between ranks is not built, ", kOneRank, "; leave --ranks, --ep and --tp out");
    require(placement.empty(), "--placement ", placement, ": expert placement is not built, every ",
            "expert has one slot; leave the flag out");
    require(combine.value_or(CombinePrecision::kBf16) == CombinePrecision::kBf16, "--combine ",
            to_string(combine.value_or(CombinePrecision::kBf16)), ": a low-precision combine is ",
            "not built, ", kOneRank, " and combines nothing; use bf16 or leave the flag out");
    require(finalize == "plain" || finalize == "fused" || finalize == "reduce", "finalize '",
            finalize, "' is unknown; use plain");
    require(finalize == "plain", "--finalize ", finalize, ": the fused all-reduce is not built, ",
            kOneRank, "; use plain or leave the flag out");
  }

  /// A forced strategy that cannot serve is a verdict, not a mistake.
  void check_strategy() const {
    std::string name = pinned_strategy(environment(), ranks.comm);
    if (name == "auto") return;
    throw CannotServe(
        cat("strategy ", name, " cannot serve: path_not_enabled: exchange between ",
            "ranks is not built, ", kOneRank, "; leave --comm and SWITCHYARD_COMM out"),
        "{}");
  }
};

struct RunFlags {
  RunOptions options;
  BuildFlags build;
  UnbuiltFlags unbuilt;
  std::string preset;
  bool without_shared = false;
  bool json = false;

  void add(Arguments& args) {
    args.text("--preset", preset, cat("Published shape, random weights: ", join(preset_names())));
    args.text("--checkpoint", options.checkpoint, "Checkpoint directory: every MoE layer", "DIR");
    args.integer("--layer", kLayer, options.layer, "Only this layer of the checkpoint");
    args.integer(
        "--tokens", kTokens, [this](std::int64_t v) { options.tokens = v; },
        "T, tokens of a call (default 32); 0 is legal");
    args.text(
        "--routing", [this](const std::string& v) { options.routing = to_skew(v); },
        "How tokens spread over experts: uniform (default), zipf or one", "SKEW");
    build.add(args);
    args.integer("--top-k", {1, kMaxTopK}, build.build.top_k, "k, instead of the model's own");
    args.positive("--factor", build.build.routed_scaling_factor,
                  "Routed scaling factor, instead of the model's own");
    args.toggle("--without-shared", without_shared, "Leaves the shared expert out");
    unbuilt.add(args);
    args.toggle("--json", json, "Print JSON");
  }

  void finish() {
    require(preset.empty() || options.checkpoint.empty(), "--preset ", preset, " and --checkpoint ",
            options.checkpoint, " are both given; keep one");
    require(!options.layer || !options.checkpoint.empty(), "--layer ", options.layer.value_or(0),
            " needs --checkpoint, which is missing; a preset has one layer");
    if (!preset.empty()) options.preset = preset;
    unbuilt.check();
    build.build.with_shared = !without_shared;
    build.build.parallel = unbuilt.ranks.parallel;
    options.seed = build.build.seed;
  }
};

/// What `explain` says of the layers that are to run, for questions about their shape.
Json explained(const RunOptions& options) {
  ExplainOptions question;
  question.checkpoint = options.checkpoint;
  if (options.checkpoint.empty()) question.preset = options.preset;
  question.layer = options.layer;
  Json found = Json::parse(explain(question).json);
  return found.contains("layers") ? found["layers"] : Json::array({found});
}

void check_slots(const RunOptions& options, std::optional<std::int64_t> slots) {
  if (!slots) return;
  for (const Json& report : explained(options)) {
    std::int64_t experts = report["problem"]["routing"]["num_experts"];
    require(*slots == experts, "--slots ", *slots, " differs from the layer's ", experts,
            " experts: replicated experts are not built; use ", experts, " or leave the flag out");
  }
}

RunResult run_layers(const RunFlags& flags) {
  ProgressBar bar("packing");
  RunOptions options = flags.options;
  options.calibrate = flags.build.calibrate;
  options.build = flags.build.options();
  options.build.progress = bar.callback();
  return run(options);
}

Json to_json(const Measurement& m) {
  Json out = m.checkpoint.empty() ? Json{{"preset", m.preset}} : Json{{"checkpoint", m.checkpoint}};
  out.update(Json{{"layer", m.layer},
                  {"format", show_format(m.format)},
                  {"activations", m.activations},
                  {"leaf", m.leaf},
                  {"device", m.device},
                  {"ranks", m.ranks},
                  {"parallel", m.parallel},
                  {"strategy", m.strategy},
                  {"tokens", m.tokens},
                  {"checked_tokens", m.checked_tokens},
                  {"distinct_experts", m.distinct_experts},
                  {"calls", m.calls},
                  {"time_us", {{"p50", m.time_p50}, {"p90", m.time_p90}, {"p99", m.time_p99}}},
                  {"router_time_us", {{"p50", m.router_time_p50}}},
                  {"gbps", m.gbps},
                  {"gflops", m.gflops},
                  {"roof", {{"gbps", m.roof_gbps}, {"gflops", m.roof_gflops}}},
                  {"share_of_roof", m.share_of_roof},
                  {"rel_l2", m.rel_l2},
                  {"budget", m.budget},
                  {"ok", m.ok},
                  {"notices", m.notices}});
  return out;
}

std::string json_of(const RunResult& result) {
  Json measurements = Json::array();
  for (const Measurement& m : result.measurements) measurements.push_back(to_json(m));
  return json_text(
      {{"ok", result.ok}, {"measurements", std::move(measurements)}, {"notices", result.notices}});
}

std::string heading(const Measurement& m) {
  return cat("leaf     ", m.leaf, "\n", m.checkpoint.empty() ? "preset   " : "from     ",
             m.checkpoint.empty() ? m.preset : m.checkpoint, ", format ", show_format(m.format),
             ", activations ", m.activations, "\n", "on       ", m.device, ", ", m.ranks,
             m.ranks == 1 ? " rank, " : " ranks, ", m.parallel, ", strategy ", m.strategy, "\n",
             "roof     ", fixed(m.roof_gbps, 1), " GB/s, ", fixed(m.roof_gflops, 0),
             " GFLOP/s, measured\n");
}

std::string text_of(const RunResult& result) {
  std::string out;
  const auto& all = result.measurements;
  for (std::size_t i = 0; i < all.size();) {
    out += cat(i == 0 ? "" : "\n", heading(all[i]));
    Table table({">layer", ">tokens", ">checked", ">experts", ">p50 us", ">p90 us", ">p99 us",
                 ">GB/s", ">GFLOP/s", ">roof", ">rel L2", "ok"});
    std::vector<std::string> notes;
    for (std::string leaf = all[i].leaf; i < all.size() && all[i].leaf == leaf; ++i) {
      const Measurement& m = all[i];
      table.add({cat(m.layer), cat(m.tokens), cat(m.checked_tokens), cat(m.distinct_experts),
                 fixed(m.time_p50, 1), fixed(m.time_p90, 1), fixed(m.time_p99, 1), fixed(m.gbps, 1),
                 fixed(m.gflops, 1), cat(fixed(100 * m.share_of_roof, 0), "%"),
                 error_text(m.rel_l2), m.ok ? "ok" : cat("FAILED, limit ", error_text(m.budget))});
      for (const std::string& notice : m.notices)
        notes.push_back(cat("layer ", m.layer, ": ", notice, "\n"));
    }
    out += table.str() + join(notes, "");
  }
  for (const std::string& notice : result.notices) out += notice + "\n";
  return out;
}

Answer run_command(Arguments& args) {
  RunFlags flags;
  flags.add(args);
  if (!args.parse()) return {kOk, args.help()};
  flags.finish();
  check_slots(flags.options, flags.unbuilt.ranks.slots);
  flags.unbuilt.check_strategy();
  RunResult result = run_layers(flags);
  return {result.ok ? kOk : kFailed, flags.json ? json_of(result) : text_of(result)};
}

}  // namespace

const Command kRun = {.name = "run",
                      .summary = "Runs layers, checks them against the oracle, and times them",
                      .example =
                          "switchyard run\n"
                          "switchyard run --preset qwen3-30b-a3b --format nvfp4 --tokens 1\n"
                          "switchyard run --checkpoint DIR --layer 3 --activations bf16 --json",
                      .run = run_command};

}  // namespace switchyard::cli
