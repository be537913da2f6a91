// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"
#include "cli/output.h"
#include "cli/process_ranks.h"
#include "cli/progress.h"
#include "cli/run_flags.h"
#include "cli/tactic_json.h"
#include "switchyard/api/judge.h"
#include "switchyard/base/nearest.h"

namespace switchyard::cli {
namespace {

struct RunFlags {
  RunOptions options;
  SourceFlags source;
  bool json = false;

  void add(Arguments& args) {
    source.add(args);
    args.integer(
        "--tokens", kTokens, [this](std::int64_t v) { options.tokens = v; },
        "T, tokens of a call (default 32); 0 is legal");
    args.text(
        "--routing", [this](const std::string& v) { options.routing = to_skew(v); },
        "How tokens spread over experts: uniform (default), zipf or one", "SKEW");
    args.toggle("--json", json, "Print JSON");
  }

  void finish(Processes& processes) {
    source.spread.ranks.start_with(processes.size());
    source.finish();
    source.fill(options);
    options.processes = &processes;
  }
};

RunResult run_layers(const RunFlags& flags) {
  ProgressBar bar("packing");
  RunOptions options = flags.options;
  if (options.processes->rank() == 0) options.build.progress = bar.callback();
  return run(options);
}

Json to_json(const JoinedRanks& j) {
  Json strategies = Json::array();
  for (const StrategyAnswer& s : j.strategies)
    strategies.push_back({{"strategy", s.strategy},
                          {"ok", s.serves},
                          {"reason", s.serves ? Json(nullptr) : Json(s.reason)},
                          {"detail", s.detail}});
  return {
      {"carriers", j.carriers},
      {"contract", {{"rows", j.layout}, {"weights", j.weights}}},
      {"payload",
       {{"form", j.payload},
        {"bytes", j.payload_bytes},
        {"why_unquantised", j.payload_reason.empty() ? Json(nullptr) : Json(j.payload_reason)}}},
      {"chunk_tokens", j.chunk_tokens == 0 ? Json(nullptr) : Json(j.chunk_tokens)},
      {"slot_experts", j.slot_experts},
      {"strategies", std::move(strategies)}};
}

Json to_json(const Measurement& m) {
  Json out = m.checkpoint.empty() ? Json{{"preset", m.preset}} : Json{{"checkpoint", m.checkpoint}};
  out.update(Json{
      {"layer", m.layer},
      {"format", show_format(m.format)},
      {"activations", m.activations},
      {"leaf", m.leaf},
      {"device", m.device},
      {"ranks", m.ranks},
      {"ep", m.ep},
      {"tp", m.tp},
      {"slots", m.slots},
      {"parallel", m.parallel},
      {"strategy", m.strategy},
      {"joined", m.ranks == 1 ? Json(nullptr) : to_json(m.joined)},
      {"combine", {{"requested", m.combine_requested}, {"effective", m.combine_effective}}},
      {"finalize", m.finalize},
      {"tokens", m.tokens},
      {"checked_tokens", m.checked_tokens},
      {"distinct_experts", m.distinct_experts},
      {"calls", m.calls},
      {"time_us", {{"p50", m.time_p50}, {"p90", m.time_p90}, {"p99", m.time_p99}}},
      {"router_time_us", {{"p50", m.router_time_p50}}},
      {"gbps", m.gbps},
      {"gflops", m.gflops},
      {"roof", {{"gbps", m.roof_gbps}, {"gflops", m.roof_gflops}, {"samples", m.roof_samples}}},
      {"share_of_roof", m.share_of_roof},
      {"rel_l2", m.rel_l2},
      {"budget", m.budget},
      {"expert_tokens", m.expert_tokens},
      {"tactics", tactics_json(m.tactics)},
      {"routing_launch", routing_launch_json(m.routing_launch)},
      {"ok", m.ok},
      {"notices", m.notices}});
  return out;
}

std::string json_of(const RunResult& result) {
  Json measurements = Json::array();
  for (const Measurement& m : result.measurements) measurements.push_back(to_json(m));
  return json_text({{"ok", result.ok},
                    {"measurements", std::move(measurements)},
                    {"rules",
                     {{"distinct_experts", run_rules().distinct_experts},
                      {"expert_tokens", run_rules().expert_tokens}}},
                    {"notices", result.notices}});
}

/// On several ranks: the combine, and why not each other strategy.
std::string joined_text(const Measurement& m) {
  if (m.ranks == 1) return "";
  std::string out = cat("combine  asked ", m.combine_requested, ", effective ", m.combine_effective,
                        "; weights by the ", m.joined.weights, "\n");
  out += cat("payload  ", m.joined.payload, ", ", m.joined.payload_bytes, " bytes a row",
             m.joined.payload_reason.empty() ? "" : cat("; ", m.joined.payload_reason), "\n");
  if (m.joined.chunk_tokens > 0 && m.joined.chunk_tokens < m.tokens)
    out += cat("chunks   of at most ", m.joined.chunk_tokens, " tokens of a rank\n");
  std::string label = "others   ";
  for (const StrategyAnswer& s : m.joined.strategies) {
    if (s.strategy == m.strategy) continue;
    out += cat(label, s.strategy, ": ",
               s.serves ? cat("can serve, ", s.detail) : cat(s.reason, ", ", s.detail), "\n");
    label = "         ";
  }
  return out;
}

std::string heading(const Measurement& m) {
  return cat("leaf     ", m.leaf, "\n", m.checkpoint.empty() ? "preset   " : "from     ",
             m.checkpoint.empty() ? m.preset : m.checkpoint, ", format ", show_format(m.format),
             ", activations ", m.activations, "\n", "on       ", m.device, ", ", m.ranks,
             m.ranks == 1 ? " rank, " : cat(" ranks (", m.joined.carriers, "), "), m.parallel,
             ", strategy ", m.strategy, m.finalize == "plain" ? "" : cat(", finalize ", m.finalize),
             "\n", joined_text(m), "roof     ", fixed(m.roof_gbps, 1), " GB/s, ",
             fixed(m.roof_gflops, 0), " GFLOP/s, measured before and after\n");
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
      if (!m.tactics.empty())
        notes.push_back(cat("layer ", m.layer, ": ", tactics_text(m.tactics), "\n"));
      if (m.device == "cuda")
        notes.push_back(cat("layer ", m.layer, ": ", m.routing_launch.text, "\n"));
      for (const std::string& notice : m.notices)
        notes.push_back(cat("layer ", m.layer, ": ", notice, "\n"));
    }
    out += table.str() + join(notes, "");
  }
  for (const std::string& notice : result.notices) out += notice + "\n";
  return out;
}

Answer run_on(Processes& processes, Arguments& args) {
  RunFlags flags;
  if (!read_together(processes, flags, args)) return {kOk, args.help(), ""};
  RunResult result = run_layers(flags);
  return {result.ok ? kOk : kFailed, flags.json ? json_of(result) : text_of(result), ""};
}

Answer run_command(Arguments& args) {
  return on_processes([&](Processes& processes) { return run_on(processes, args); });
}

}  // namespace

const Command kRun = {.name = "run",
                      .summary = "Runs layers, checks them against the oracle, and times them",
                      .example =
                          "switchyard run\n"
                          "switchyard run --preset qwen3-30b-a3b --format nvfp4 --tokens 1\n"
                          "switchyard run --checkpoint DIR --layer 3 --activations bf16 --json\n"
                          "switchyard run --tokens 512 --routing zipf --json  # expert_tokens\n"
                          "switchyard run --ranks 4 --comm two_sided  # threads\n"
                          "mpirun -n 4 switchyard run --ep 4          # processes",
                      .run = run_command};

}  // namespace switchyard::cli
