// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_json.h"
#include "cli/command.h"
#include "cli/layer_flags.h"
#include "cli/process_ranks.h"
#include "cli/progress.h"
#include "switchyard/api/bench_allreduce.h"
#include "switchyard/base/nearest.h"

namespace switchyard::cli {
namespace {

constexpr std::string_view kSchema = "switchyard.bench.allreduce.1";

/// What was asked beside the pattern; null where the pattern has no use for it.
Json question_json(const BenchAllReduceOptions& o, const BenchAllReduceResult& r) {
  using Pattern = ops::AllReduceFusionPattern;
  const bool reduction = o.pattern == Pattern::kMoEReductionARResidualRMSNorm;
  const bool finalize = o.pattern == Pattern::kMoEFinalizeARResidualRMSNorm;
  return {{"dtype", to_string(o.dtype)},
          {"seed", o.seed},
          {"scale_layout", r.quant == "nvfp4" ? Json(to_string(o.scale_layout)) : Json(nullptr)},
          {"experts", reduction ? Json(o.experts) : Json(nullptr)},
          {"top_k", finalize ? Json(o.top_k) : Json(nullptr)},
          {"shared", reduction || finalize ? Json(o.shared) : Json(nullptr)},
          {"routed_scaling_factor",
           o.routed_scaling_factor ? Json(*o.routed_scaling_factor) : Json(nullptr)}};
}

Json row_json(const BenchAllReduceResult& r, const AllReduceRow& row) {
  Json errors = Json::object();
  for (const OutputError& e : row.errors) errors[e.name] = e.rel_l2;
  const bool timed = row.separate.samples > 0, gpus = r.device == Device::kCuda;
  return {{"pattern", r.pattern},
          {"device", to_string(r.device)},
          {"carriers", r.carriers},
          {"quant", r.quant},
          {"ranks", r.ranks},
          {"hidden", r.hidden},
          {"tokens", row.tokens},
          {"strategy", row.strategy},
          {"isa", r.isa},
          {"ok", row.ok()},
          {"fused", {{"time_us", time_json(row.fused)}}},
          {"separate",
           {{"time_us", timed ? time_json(row.separate) : Json(nullptr)}, {"by", row.separate_by}}},
          {"speedup", timed ? Json(row.separate.p50 / row.fused.p50) : Json(nullptr)},
          {"bytes", row.bytes},
          {"gbps", row.gbps},
          {"copy_gbps", gpus ? Json(nullptr) : Json(row.copy_gbps)},
          {"share_of_copy", gpus ? Json(nullptr) : Json(row.share_of_copy)},
          {"checked_tokens", row.checked_tokens},
          {"equal_ranks", row.equal_ranks},
          {"rel_l2", std::move(errors)}};
}

Json to_json(const BenchAllReduceOptions& options, const BenchAllReduceResult& result) {
  const BenchAllReduceRules& rules = bench_allreduce_rules(options.device);
  Json rows = Json::array();
  for (const AllReduceRow& row : result.rows) {
    rows.push_back(row_json(result, row));
    rows.back().update(question_json(options, result));
  }
  return {{"ok", result.ok},
          {"rules",
           {{"fused", rules.fused},
            {"separate", rules.separate},
            {"bytes", rules.bytes},
            {"copy", rules.copy}}},
          {"rows", std::move(rows)}};
}

std::string errors_text(const AllReduceRow& row) {
  std::vector<std::string> parts;
  for (const OutputError& e : row.errors)
    parts.push_back(cat(e.name, " ", error_text(e.rel_l2), e.ok() ? "" : " FAILED"));
  if (!row.equal_ranks) parts.emplace_back("ranks differ FAILED");
  return join(parts);
}

std::string text_of(const BenchAllReduceResult& r) {
  std::string out =
      cat(r.pattern, r.quant == "none" ? "" : cat(", quantised output ", r.quant), ", ", r.ranks,
          r.ranks == 1 ? std::string(" rank") : cat(" ranks (", r.carriers, ")"), ", hidden ",
          r.hidden, ", ", r.isa, "\n");
  Table table({">tokens", "strategy", ">p50 us", ">p90 us", ">p99 us", ">min us", ">calls",
               ">separate p50 us", ">speedup", ">GB/s", ">of copy", "rel L2"});
  const bool gpus = r.device == Device::kCuda;
  auto timed = [](const AllReduceRow& row) { return row.separate.samples > 0; };
  for (const AllReduceRow& row : r.rows)
    table.add({cat(row.tokens), row.strategy, fixed(row.fused.p50, 1), fixed(row.fused.p90, 1),
               fixed(row.fused.p99, 1), fixed(row.fused.least, 1), cat(row.fused.samples),
               timed(row) ? fixed(row.separate.p50, 1) : "-",
               timed(row) ? fixed(row.separate.p50 / row.fused.p50, 2) : "-", fixed(row.gbps, 1),
               gpus ? "-" : fixed(row.share_of_copy, 2), errors_text(row)});
  const BenchAllReduceRules& rules = bench_allreduce_rules(r.device);
  std::string by;
  for (const AllReduceRow& row : r.rows)
    if (!row.separate_by.empty()) by = cat("summed apart by: ", row.separate_by, "\n");
  return cat(out, table.str(), by, rules.fused, "\n", rules.separate, "\n", rules.bytes, "\n",
             rules.copy, "\n");
}

formats::ScaleLayout to_layout(std::string_view word) {
  return to_enum(
      "scale layout", word,
      {formats::ScaleLayout::kLinear, formats::ScaleLayout::k128x4, formats::ScaleLayout::k8x4});
}

struct AllReduceFlags {
  BenchAllReduceOptions options;
  std::optional<float> seconds;
  std::optional<std::int64_t> ranks, top_k, experts;
  std::optional<formats::ScaleLayout> scale_layout;
  bool json = false;

  void add(Arguments& args) {
    args.integer(
        "--pattern", {0, ops::kNumAllReducePatterns - 1},
        [this](std::int64_t v) { options.pattern = ops::to_allreduce_pattern(v); },
        "0 the sum alone; 1 with residual and RMSNorm (default); 2-5 and 8-11 quantised; 6 MoE "
        "reduction; 7 MoE finalize");
    args.integers("--tokens", kTokens, options.tokens, "M, tokens of a call (default 1,16,64,512)");
    args.integer(
        "--hidden", {1, 1 << 24}, [this](std::int64_t v) { options.hidden = v; },
        "H, the width (default 7168)");
    args.text(
        "--dtype", [this](const std::string& v) { options.dtype = to_dtype(v); },
        "bf16 (default), fp16 or f32", "DTYPE");
    args.integer("--ranks", {1, ops::kMaxAllReduceRanks}, ranks,
                 "Ranks, threads of this process, or the launcher's processes; on cuda a GPU each "
                 "(default 2, under a launcher as many as it started)");
    args.text(
        "--strategy",
        [this](const std::string& v) { options.strategy = ops::to_allreduce_strategy(v); },
        "auto (default), one_shot or two_shot");
    add_moe(args);
    args.text(
        "--device", [this](const std::string& v) { options.device = to_device(v); },
        "cpu (default), or cuda with a GPU for each rank", "DEVICE");
    args.positive("--seconds", seconds, "Time for the calls of a row (default 0.5)");
    args.integer(
        "--seed", kSeed, [this](std::int64_t v) { options.seed = std::uint64_t(v); },
        "Seed of everything random (default 1)");
    args.toggle("--json", json, "Print JSON");
  }

  /// Errors: UsageError for a flag that the pattern has no use for.
  void finish(Processes& processes) {
    const int started = processes.size();
    options.ranks = ranks.value_or(started > 1 ? started : options.ranks);
    options.processes = &processes;
    if (seconds) options.seconds = *seconds;
    only_of(Pattern::kMoEFinalizeARResidualRMSNorm, "--top-k", top_k, options.top_k);
    only_of(Pattern::kMoEReductionARResidualRMSNorm, "--experts", experts, options.experts);
    const ops::AllReduceQuant own = ops::quant_of(options.pattern);
    const bool blocks =
        (own == ops::AllReduceQuant::kNone ? options.quant : own) == ops::AllReduceQuant::kNvfp4;
    require(blocks || !scale_layout,
            "--scale-layout is of nvfp4 scales, and this call writes none; leave it out");
    options.scale_layout = scale_layout.value_or(options.scale_layout);
  }

 private:
  using Pattern = ops::AllReduceFusionPattern;

  void only_of(Pattern pattern, std::string_view flag, const std::optional<std::int64_t>& given,
               std::int64_t& value) const {
    require(!given || options.pattern == pattern, flag, " is of pattern ", int(pattern),
            "; pattern ", int(options.pattern), " has no use for it");
    value = given.value_or(value);
  }

  void add_moe(Arguments& args) {
    args.integer("--top-k", {1, 1024}, top_k, "k, choices of a token, pattern 7 (default 8)");
    args.integer("--experts", {1, 65536}, experts, "Experts of one rank, pattern 6 (default 8)");
    args.positive("--routed-scaling-factor", options.routed_scaling_factor,
                  "Factor of the routed sum, patterns 6 and 7 (default none)");
    args.toggle("--shared", options.shared, "Add a shared expert's output, patterns 6 and 7");
    args.text(
        "--quant", [this](const std::string& v) { options.quant = ops::to_allreduce_quant(v); },
        "Quantised output of patterns 6 and 7: none (default), fp8, nvfp4, fp8_group or "
        "fp8_token; the other patterns have their own");
    args.text(
        "--scale-layout", [this](const std::string& v) { scale_layout = to_layout(v); },
        "Of nvfp4 scales: 128x4 (default), 8x4 or linear");
  }
};

Answer run_on(Processes& processes, Arguments& args) {
  AllReduceFlags flags;
  if (!read_together(processes, flags, args)) return {kOk, args.help(), ""};
  StatusLine status;
  if (processes.rank() == 0) flags.options.progress = status.callback();
  const BenchAllReduceResult result = bench_allreduce(flags.options);
  status.wipe();
  const int exit = result.ok ? kOk : kFailed;
  if (!flags.json) return {exit, text_of(result), ""};
  Json body = record_json({std::string(kSchema), args.line()});
  body.update(to_json(flags.options, result));
  return {exit, json_text(body), ""};
}

Answer run_command(Arguments& args) {
  return on_processes([&](Processes& processes) { return run_on(processes, args); });
}

}  // namespace

const Command kBenchAllReduce = {
    .name = "bench allreduce",
    .summary = "Times the fused all-reduce over ranks, and checks every output",
    .example =
        "switchyard bench allreduce --pattern 1 --ranks 4 --tokens 1,512\n"
        "mpirun -n 4 switchyard bench allreduce --tokens 512  # processes, against MPI_Iallreduce\n"
        "switchyard bench allreduce --pattern 7 --quant nvfp4 --shared "
        "--routed-scaling-factor 2.5 --json",
    .run = run_command};

}  // namespace switchyard::cli
