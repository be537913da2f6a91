// SPDX-License-Identifier: Apache-2.0
#include "cli/run_flags.h"

#include <array>

#include "switchyard/api/machine.h"
#include "switchyard/base/nearest.h"
#include "switchyard/core/preset.h"

namespace switchyard::cli {
namespace {

const std::array<std::string, 3> kSkews = {"uniform", "zipf", "one"};

}  // namespace

RoutingSkew to_skew(const std::string& word) {
  for (std::size_t i = 0; i < kSkews.size(); ++i)
    if (kSkews[i] == word) return RoutingSkew(i);
  throw UsageError(
      cat("routing '", word, "' is unknown; use one of ", join({kSkews.begin(), kSkews.end()})));
}

std::string to_string(RoutingSkew skew) { return kSkews.at(std::size_t(skew)); }

void SpreadFlags::add(Arguments& args) {
  ranks.add(args);
  args.text("--placement", placement, "Which expert stands in which slot, as eplb plan writes it",
            "FILE");
  args.text(
      "--combine", [this](const std::string& v) { combine = to_combine_precision(v); },
      "Precision of the combine between ranks: bf16, fp8 or nvfp4", "P");
  args.text("--finalize", finalize,
            "plain (default); under tep and ttp fused or reduce: the layer ends in one all-reduce "
            "with residual and norm, pattern 7 or 6",
            "HOW");
  args.integer("--chunk-tokens", {1, kTokens.high}, chunk_tokens,
               "Most tokens of a rank in one exchange; a call of more makes several (dep)");
}

void SpreadFlags::check() const {
  const Deployment d = ranks.deployment();  // throws for what contradicts itself
  require(finalize == "plain" || finalize == "fused" || finalize == "reduce", "finalize '",
          finalize, "' is unknown; use plain, fused or reduce");
  require(finalize == "plain" || d.ranks() > 1, "--finalize ", finalize,
          " ends layers of several ranks that hold the same tokens; ask for --parallel ttp --tp 2, "
          "or for --finalize plain");
  const bool same_tokens = d.parallel == Parallel::kTep || d.parallel == Parallel::kTtp;
  require(finalize == "plain" || same_tokens, "--finalize ", finalize,
          " ends layers whose ranks hold the same tokens, and under --parallel ",
          to_string(d.parallel),
          " they do not; ask for --parallel tep or ttp, or for --finalize plain");
  require(
      finalize == "plain" || combine.value_or(CombinePrecision::kBf16) == CombinePrecision::kBf16,
      "--finalize ", finalize, " sends contributions in the activation dtype, and --combine ",
      to_string(combine.value_or(CombinePrecision::kBf16)),
      " asks for another precision; leave one of the two out");
  if (!chunk_tokens || d.ranks() == 1) return;
  require(d.parallel == Parallel::kDep, "--chunk-tokens ", *chunk_tokens,
          " cuts exchanges of tokens, and --parallel ", to_string(d.parallel),
          " makes none, its calls are whole; leave it out, or ask for --parallel dep");
  require(ranks.comm.empty() || to_strategy(ranks.comm) != "fused", "--chunk-tokens ",
          *chunk_tokens,
          " cuts exchanges, and --comm fused takes whole calls, whose rows it "
          "batches itself; leave one of the two out");
}

void SourceFlags::add(Arguments& args) {
  args.text("--preset", preset, cat("Published shape, random weights: ", join(preset_names())));
  args.text("--checkpoint", checkpoint, "Checkpoint directory: every MoE layer", "DIR");
  args.integer("--layer", kLayer, layer, "Only this layer of the checkpoint");
  build.add(args);
  args.integer("--top-k", {1, kMaxTopK}, build.build.top_k, "k, instead of the model's own");
  args.positive("--factor", build.build.routed_scaling_factor,
                "Routed scaling factor, instead of the model's own");
  args.toggle("--without-shared", without_shared, "Leaves the shared expert out");
  spread.add(args);
}

void SourceFlags::finish() {
  require(preset.empty() || checkpoint.empty(), "--preset ", preset, " and --checkpoint ",
          checkpoint, " are both given; keep one");
  require(!layer || !checkpoint.empty(), "--layer ", layer.value_or(0),
          " needs --checkpoint, which is missing; a preset has one layer");
  spread.check();
}

void SourceFlags::fill(RunOptions& options) const {
  if (!preset.empty()) options.preset = preset;
  options.checkpoint = checkpoint;
  options.layer = layer;
  options.calibrate = build.calibrate;
  options.build = build.options();
  options.build.with_shared = !without_shared;
  const Deployment d = spread.ranks.deployment();
  options.build.ep = d.ep;
  options.build.tp = d.tp;
  options.build.parallel = d.ranks() > 1 ? d.parallel : spread.ranks.parallel;
  options.build.slots = spread.ranks.slots.value_or(0);
  options.build.comm = spread.ranks.comm;
  options.build.combine = spread.combine;
  options.placement = spread.placement;
  options.finalize = spread.finalize;
  options.chunk_tokens = spread.chunk_tokens.value_or(0);
  options.seed = options.build.seed;
}

}  // namespace switchyard::cli
