// SPDX-License-Identifier: Apache-2.0
// The part of `bench layer` that ranks configurations: --search, and layers of several ranks.
#include "cli/bench_search.h"

#include "cli/bench_json.h"
#include "switchyard/base/check.h"

namespace switchyard::cli {
namespace {

constexpr std::string_view kSchema = "switchyard.bench.search.1";

Json to_json(const SearchConfig& c) {
  return {{"leaf", c.leaf}, {"parallel", c.parallel}, {"strategy", c.strategy}, {"graph", c.graph}};
}

Json to_json(const SearchRow& r) {
  const Measurement& m = r.measured;
  Json out = m.checkpoint.empty() ? Json{{"preset", m.preset}} : Json{{"checkpoint", m.checkpoint}};
  out.update(Json{{"config", to_json(r.config)},
                  {"layer", m.layer},
                  {"format", show_format(m.format)},
                  {"activations", m.activations},
                  {"tokens", r.tokens},
                  {"place", r.place},
                  {"chosen", r.chosen},
                  {"ranks", m.ranks},
                  {"time_us", {{"p50", m.time_p50}, {"p90", m.time_p90}, {"p99", m.time_p99}}},
                  {"calls", m.calls},
                  {"gbps", m.gbps},
                  {"gflops", m.gflops},
                  {"share_of_roof", m.share_of_roof},
                  {"rel_l2", m.rel_l2},
                  {"ok", m.ok}});
  return out;
}

std::string json_of(const BenchSearchResult& result, const std::string& line) {
  Json rows = Json::array(), skipped = Json::array();
  for (const SearchRow& r : result.rows) rows.push_back(to_json(r));
  for (const SkippedConfig& s : result.skipped)
    skipped.push_back(
        {{"config", to_json(s.config)}, {"reason", s.reason()}, {"detail", s.detail}});
  Json body = record_json({std::string(kSchema), line});
  body.update(Json{{"ok", result.ok},
                   {"choice", to_json(result.choice)},
                   {"measurements", std::move(rows)},
                   {"skipped", std::move(skipped)}});
  return json_text(body);
}

std::string text_of(const BenchSearchResult& result) {
  Table table({">tokens", ">place", "leaf", "parallel", "strategy", ">p50 us", ">p90 us", ">roof",
               ">rel L2", "ok"});
  for (const SearchRow& r : result.rows) {
    const Measurement& m = r.measured;
    table.add({cat(r.tokens), cat(r.place), r.config.leaf, r.config.parallel,
               cat(r.config.strategy, r.chosen ? " (chosen)" : ""), fixed(m.time_p50, 1),
               fixed(m.time_p90, 1), cat(fixed(100 * m.share_of_roof, 0), "%"),
               error_text(m.rel_l2), m.ok ? "ok" : "FAILED"});
  }
  std::string out = table.str();
  for (const SkippedConfig& s : result.skipped)
    out += cat("skipped  ", s.config.leaf, ", ", s.config.parallel, ", ", s.config.strategy,
               s.config.graph ? ", graph" : "", ": ", s.reason(), ", ", s.detail, "\n");
  return out;
}

}  // namespace

void take_axis(const std::string& word, SearchAxes& axes) {
  bool* axis = word == "leaf"       ? &axes.leaf
               : word == "comm"     ? &axes.comm
               : word == "parallel" ? &axes.parallel
               : word == "graph"    ? &axes.graph
                                    : nullptr;
  require(axis != nullptr, "--search has '", word,
          "'; use leaf, comm, parallel, graph or several of them");
  *axis = true;
}

Answer answer_search(const BenchSearchOptions& options, bool json, const std::string& line) {
  const BenchSearchResult result = bench_search(options);
  return {result.ok ? kOk : kFailed, json ? json_of(result, line) : text_of(result)};
}

}  // namespace switchyard::cli
