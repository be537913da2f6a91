// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_json.h"
#include "cli/command.h"
#include "cli/layer_flags.h"
#include "cli/progress.h"
#include "switchyard/api/bench_exchange.h"
#include "switchyard/api/machine.h"
#include "switchyard/comm/group.h"

namespace switchyard::cli {
namespace {

constexpr std::string_view kSchema = "switchyard.bench.exchange.1";

std::string percent(double share) { return cat(fixed(100 * share, 0), "%"); }

Json row_json(const BenchExchangeRow& r) {
  return {
      {"strategy", r.strategy},
      {"tokens", r.tokens},
      {"dispatch",
       {{"time_us", time_json(r.dispatch)},
        {"rows", r.dispatch_rows},
        {"bytes", r.dispatch_bytes}}},
      {"combine",
       {{"time_us", time_json(r.combine)}, {"rows", r.combine_rows}, {"bytes", r.combine_bytes}}},
      {"total", {{"time_us", time_json(r.total)}}},
      {"gbps", r.gbps},
      {"share_of_copy", r.share_of_copy},
      {"shared_bytes", r.shared_bytes},
      {"own_bytes", r.own_bytes},
      {"checked_tokens", r.checked_tokens},
      {"wrong_tokens", r.wrong_tokens},
      {"ok", r.ok()}};
}

Json verdict_json(const resolve::StrategyVerdict& v) {
  Json out = {{"strategy", v.strategy}, {"eligible", !v.reason}};
  if (v.reason) out.update(Json{{"reason", to_string(*v.reason)}, {"detail", v.detail}});
  return out;
}

Json to_json(const BenchExchangeOptions& o, const BenchExchangeResult& result) {
  Json verdicts = Json::array(), rows = Json::array(), skipped = Json::array();
  for (const auto& v : result.verdicts) verdicts.push_back(verdict_json(v));
  for (const auto& r : result.rows) rows.push_back(row_json(r));
  for (const auto& s : result.skipped)
    skipped.push_back({{"strategy", s.strategy}, {"tokens", s.tokens}, {"reason", s.reason}});
  const ExchangeRules& rules = exchange_rules();
  return {{"ok", result.ok},
          {"ranks", o.ranks},
          {"hidden", o.hidden},
          {"experts", o.experts},
          {"top_k", o.top_k},
          {"payload", to_string(o.payload)},
          {"combine", to_string(o.combine)},
          {"pattern", to_string(o.pattern)},
          {"cpus", result.cpus},
          {"chosen", result.chosen},
          {"copy",
           {{"gbps", result.copy_gbps},
            {"samples", result.copy_samples},
            {"bytes", result.copy_bytes},
            {"start", result.copy_start},
            {"end", result.copy_end}}},
          {"rules",
           {{"time", rules.time},
            {"bytes", rules.bytes},
            {"copy", rules.copy},
            {"shares", rules.shares}}},
          {"verdicts", std::move(verdicts)},
          {"measurements", std::move(rows)},
          {"skipped", std::move(skipped)}};
}

std::string text_of(const BenchExchangeOptions& o, const BenchExchangeResult& result) {
  std::string out =
      cat("exchange ", o.ranks, " ranks on ", result.cpus, result.cpus == 1 ? " CPU" : " CPUs",
          ", hidden ", o.hidden, ", ", o.experts, " experts, k ", o.top_k, ", payload ",
          to_string(o.payload), ", combine ", to_string(o.combine), ", ", to_string(o.pattern),
          "\ncopy     ", fixed(result.copy_gbps, 1), " GB/s in ", result.copy_samples,
          " samples; drift ", fixed(100 * (result.copy_end / result.copy_start - 1), 0), "%\n");
  Table table({"strategy", ">tokens", ">dispatch us", ">p90", ">p99", ">combine us", ">p90", ">p99",
               ">total us", ">calls", ">MB out", ">MB back", ">GB/s", ">of copy", ">MB shared",
               "checked"});
  constexpr double kMega = 1e6;
  for (const BenchExchangeRow& r : result.rows)
    table.add({r.strategy, cat(r.tokens), fixed(r.dispatch.p50, 1), fixed(r.dispatch.p90, 1),
               fixed(r.dispatch.p99, 1), fixed(r.combine.p50, 1), fixed(r.combine.p90, 1),
               fixed(r.combine.p99, 1), fixed(r.total.p50, 1), cat(r.total.samples),
               fixed(double(r.dispatch_bytes) / kMega, 2),
               fixed(double(r.combine_bytes) / kMega, 2), fixed(r.gbps, 2),
               percent(r.share_of_copy), fixed(double(r.shared_bytes) / kMega, 1),
               r.ok() ? cat(r.checked_tokens, " ok")
                      : cat(r.wrong_tokens, " of ", r.checked_tokens, " FAILED")});
  out += table.str();
  for (const resolve::StrategyVerdict& v : result.verdicts)
    out += cat(v.strategy, ": ",
               v.reason ? cat(to_string(*v.reason), ", ", v.detail)
                        : std::string(v.strategy == result.chosen ? "chosen" : "can serve"),
               "\n");
  for (const SkippedExchange& s : result.skipped)
    out += cat(s.strategy, " of ", s.tokens, " tokens is skipped: ", s.reason, "\n");
  const ExchangeRules& rules = exchange_rules();
  return out + cat("time: ", rules.time, "\nbytes: ", rules.bytes, "\ncopy: ", rules.copy,
                   "\nshares: ", rules.shares, "\n");
}

struct ExchangeFlags {
  BenchExchangeOptions options;
  std::optional<float> seconds;
  bool json = false;

  void add(Arguments& args) {
    args.text(
        "--strategy",
        [this](const std::string& v) { options.strategy = v == "all" ? v : to_strategy(v); },
        "A strategy by name, auto (default), or all that can serve");
    integer(args, "--ranks", {2, comm::kMaxGroupRanks}, options.ranks,
            "Ranks, threads of this process (default 4)");
    args.integers("--tokens", {1, kTokens.high}, options.tokens,
                  "T, tokens of each rank (default 1,8,64,512)");
    integer(args, "--hidden", {32, kMaxWidth}, options.hidden, "H (default 4096)");
    integer(args, "--top-k", {1, comm::kMaxChoices}, options.top_k,
            "k, choices of a token (default 8)");
    integer(args, "--experts", {1, kMaxSlots}, options.experts, "E (default 256)");
    args.text(
        "--payload", [this](const std::string& v) { options.payload = to_exchange_payload(v); },
        "Form of the hidden states: bf16 (default), fp8, mxfp8, nvfp4");
    args.text(
        "--combine", [this](const std::string& v) { options.combine = to_combine_precision(v); },
        "Form of the shares: bf16 (default), fp8, nvfp4");
    args.text(
        "--pattern", [this](const std::string& v) { options.pattern = to_traffic_pattern(v); },
        "Which experts tokens choose: balanced (default), hotspot, local, ring");
    args.positive("--seconds", seconds, "Time for the exchanges of a row (default 0.5)");
    args.integer(
        "--seed", kSeed, [this](std::int64_t v) { options.seed = std::uint64_t(v); },
        "Seed of everything random (default 1)");
    args.toggle("--json", json, "Print JSON");
  }

 private:
  static void integer(Arguments& args, const std::string& name, Range range, std::int64_t& out,
                      const std::string& help) {
    args.integer(
        name, range, [&out](std::int64_t v) { out = v; }, help);
  }
};

Answer run_command(Arguments& args) {
  ExchangeFlags flags;
  flags.add(args);
  if (!args.parse()) return {kOk, args.help()};
  if (flags.seconds) flags.options.seconds = *flags.seconds;
  StatusLine status;
  flags.options.progress = status.callback();
  const BenchExchangeResult result = bench_exchange(flags.options);
  status.wipe();
  const int exit = result.ok ? kOk : kFailed;
  if (!flags.json) return {exit, text_of(flags.options, result)};
  Json body = record_json({std::string(kSchema), args.line()});
  body.update(to_json(flags.options, result));
  return {exit, json_text(body)};
}

}  // namespace

const Command kBenchExchange = {
    .name = "bench exchange",
    .summary = "Times dispatch and combine between ranks, and checks what comes back",
    .example =
        "switchyard bench exchange\n"
        "switchyard bench exchange --strategy all --ranks 8 --tokens 64,512 --payload fp8\n"
        "switchyard bench exchange --strategy two_sided --pattern hotspot --json",
    .run = run_command};

}  // namespace switchyard::cli
