// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_json.h"

#include <chrono>
#include <ctime>

#include "cli/run_flags.h"
#include "cli/tactic_json.h"
#include "switchyard/base/nearest.h"
#include "switchyard/core/identity.h"

namespace switchyard::cli {
namespace {

std::string today() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

Json roof_json(const MeasuredRoof& roof) { return {{"gbps", roof.gbps}, {"gflops", roof.gflops}}; }

Json state_json(const CacheState& s) {
  Json out = {{"time_us", time_json(s.time)},
              {"distinct_experts", s.distinct_experts},
              {"gbps", s.gbps},
              {"gflops", s.gflops},
              {"share_of_roof", s.share_of_roof}};
  for (const RoofSlice& slice : s.slices)
    out["slices"].push_back({{"p50", slice.p50}, {"roof", roof_json(slice.roof)}});
  return out;
}

Json rules_json() {
  const BenchRules& r = bench_rules();
  return {{"fresh", r.fresh},   {"cold", r.cold},   {"warm", r.warm},
          {"cuda", r.cuda},     {"bytes", r.bytes}, {"flops", r.flops},
          {"router", r.router}, {"roof", r.roof},   {"bar", r.bar}};
}

Json row_json(const BenchLayerRow& r) {
  Json out = r.checkpoint.empty() ? Json{{"preset", r.preset}} : Json{{"checkpoint", r.checkpoint}};
  out.update(Json{{"layer", r.layer},
                  {"format", show_format(r.format)},
                  {"activations", r.activations},
                  {"tokens", r.tokens},
                  {"routing", to_string(r.routing)},
                  {"overrides", r.overrides},
                  {"leaf", r.leaf},
                  {"device", r.device},
                  {"isa", r.isa},
                  {"threads", r.threads},
                  {"expert_bytes", r.expert_bytes},
                  {"packed_bytes", r.packed_bytes},
                  {"layers", r.layers}});
  if (r.fresh) out["fresh"] = state_json(*r.fresh);
  if (r.cold) out["cold"] = state_json(*r.cold);
  if (r.warm) out["warm"] = state_json(*r.warm);
  if (r.eager) out["eager"] = state_json(*r.eager);
  out.update(Json{{"router_time_us", {{"p50", r.router_p50}}},
                  {"checked_tokens", r.checked_tokens},
                  {"rel_l2", r.rel_l2},
                  {"budget", r.budget},
                  {"tactics", tactics_json(r.tactics)},
                  {"routing_launch", routing_launch_json(r.routing_launch)},
                  {"ok", r.ok},
                  {"notices", r.notices}});
  if (r.bar)
    out["bar"] = {{"share_of_roof", *r.bar},
                  {"time_us", r.fresh->time.p50 * r.fresh->share_of_roof / *r.bar},
                  {"met", !r.misses_bar()}};
  return out;
}

std::string percent(double share) { return cat(fixed(100 * share, 0), "%"); }
std::string drift(double start, double end) { return fixed(100 * (end / start - 1), 0); }

std::string heading(const BenchLayerResult& result) {
  const BenchLayerRow& first = result.rows.front();
  return cat(
      first.checkpoint.empty() ? "preset   " : "from     ",
      first.checkpoint.empty() ? first.preset : first.checkpoint,
      first.overrides.empty() ? "" : " (", join(first.overrides),
      first.overrides.empty() ? "" : ")", ", ", first.device, " ", first.isa, ", ", first.threads,
      first.threads == 1 ? " thread" : " threads", "\n", "roof     ", fixed(result.roof.gbps, 1),
      " GB/s, ", fixed(result.roof.gflops, 0), " GFLOP/s in ", result.roof_samples,
      " samples; drift ", drift(result.roof_start.gbps, result.roof_end.gbps), "% and ",
      drift(result.roof_start.gflops, result.roof_end.gflops), "%\n",
      first.fresh || first.cold || first.eager ? "" : "caches   warm in every column\n",
      first.fresh ? cat("fresh    ", first.layers, " layers in turn\n") : "",
      first.cold ? cat("flush    ", result.flush_bytes >> 20, " MiB before a cold call\n") : "");
}

std::string rules_text() {
  const BenchRules& r = bench_rules();
  return cat("fresh: ", r.fresh, "\ncold: ", r.cold, "\nwarm: ", r.warm, "\n", r.cuda, "\n",
             r.bytes, "\n", r.flops, "\n", r.router, "\nroof: ", r.roof, "\n");
}

std::string bar_text(const BenchLayerRow& r) {
  if (!r.bar) return "";
  return cat(percent(*r.bar), r.misses_bar() ? " MISSED" : " met");
}

}  // namespace

Json record_json(const BenchRecord& record) {
  return {{"schema", record.schema}, {"command", record.command}, {"date", today()}};
}

Json time_json(const TimeSummary& t) {
  return {{"p50", t.p50}, {"p90", t.p90}, {"p99", t.p99}, {"min", t.least}, {"samples", t.samples}};
}

Json bench_layer_json(const BenchLayerResult& result) {
  Json rows = Json::array(), skipped = Json::array();
  for (const BenchLayerRow& r : result.rows) rows.push_back(row_json(r));
  for (const SkippedFormat& s : result.skipped)
    skipped.push_back(
        {{"layer", s.layer}, {"format", s.format}, {"reason", s.reason}, {"barred", s.barred}});
  return {{"ok", result.ok},
          {"roof",
           {{"gbps", result.roof.gbps},
            {"gflops", result.roof.gflops},
            {"samples", result.roof_samples},
            {"start", roof_json(result.roof_start)},
            {"end", roof_json(result.roof_end)}}},
          {"flush_bytes", result.flush_bytes},
          {"rules", rules_json()},
          {"measurements", std::move(rows)},
          {"skipped", std::move(skipped)},
          {"notices", result.notices}};
}

std::string bench_layer_text(const BenchLayerResult& result, bool bars) {
  const bool cuda = result.rows.front().device == "cuda";
  std::vector<std::string> heads = {">layer",   "format",
                                    ">tokens",  "routing",
                                    ">experts", ">p50 us",
                                    ">p90 us",  ">p99 us",
                                    ">min us",  ">calls",
                                    ">GB/s",    ">GFLOP/s",
                                    ">of roof", cuda ? ">eager us" : ">cold us",
                                    ">warm us", ">router us",
                                    ">rel L2",  "ok"};
  if (bars) heads.emplace_back("bar");
  Table table(heads);
  std::vector<std::string> notes;
  for (const BenchLayerRow& r : result.rows) {
    const CacheState& c = r.shown();
    const std::optional<CacheState>& second = cuda ? r.eager : r.cold;
    std::vector<std::string> cells = {cat(r.layer),
                                      std::string(show_format(r.format)),
                                      cat(r.tokens),
                                      to_string(r.routing),
                                      cat(c.distinct_experts),
                                      fixed(c.time.p50, 1),
                                      fixed(c.time.p90, 1),
                                      fixed(c.time.p99, 1),
                                      fixed(c.time.least, 1),
                                      cat(c.time.samples),
                                      fixed(c.gbps, 1),
                                      fixed(c.gflops, 1),
                                      percent(c.share_of_roof),
                                      second ? fixed(second->time.p50, 1) : "-",
                                      r.warm ? fixed(r.warm->time.p50, 1) : "-",
                                      fixed(r.router_p50, 1),
                                      error_text(r.rel_l2),
                                      r.ok ? "ok" : cat("FAILED, limit ", error_text(r.budget))};
    if (bars) cells.push_back(bar_text(r));
    table.add(std::move(cells));
    if (tuned(r.tactics))
      notes.push_back(
          cat("layer ", r.layer, ", ", r.tokens, " tokens: ", tactics_text(r.tactics), "\n"));
    if (r.device == "cuda")
      notes.push_back(
          cat("layer ", r.layer, ", ", r.tokens, " tokens: ", r.routing_launch.text, "\n"));
    for (const std::string& notice : r.notices) {
      std::string note = cat("layer ", r.layer, ": ", notice, "\n");
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  for (const SkippedFormat& s : result.skipped)
    notes.push_back(
        cat("layer ", s.layer, ": ", s.format,
            bars && s.barred ? " is skipped, its bar MISSED: " : " is skipped: ", s.reason, "\n"));
  for (const std::string& notice : result.notices) notes.push_back(notice + "\n");
  return heading(result) + table.str() + join(notes, "") + rules_text();
}

}  // namespace switchyard::cli
