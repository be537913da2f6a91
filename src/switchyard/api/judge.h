// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/api/checkpoint.h"
#include "switchyard/api/moe_layer.h"

namespace switchyard {

/// What `verify` is asked.
struct VerifyOptions {
  std::string io;  // file with hidden_states and output; empty: seeded tokens, oracle only
  std::optional<std::int64_t> layer;
  std::optional<std::int64_t> tokens;  // without an io file; 24 unless set
  std::string calibrate;    // file with hidden_states that replace build.calibration, by layer
  bool per_expert = false;  // fills VerifiedLayer::experts
  std::string dump_stages;  // a safetensors file to write; empty: none
  std::optional<std::int64_t> dump_row;  // the token whose stages it holds; absent: the worst one
  BuildOptions build;
};

/// One routed expert of a verified layer, by itself.
///
/// Units:   rel L2 of its unweighted rows to the oracle, and to the same weights with unquantised
///          activations; scales multiply, and are absent unless static.
struct VerifiedExpert {
  std::int64_t id = 0;
  std::int64_t rows = 0;
  double rel_l2_oracle = 0;
  double rel_l2_unquantised = 0;
  std::optional<float> fc1_input_scale, fc2_input_scale;
  std::string note;  // what is odd about it, e.g. that it looks uncalibrated; empty: nothing
};

/// One layer's verdict.
struct VerifiedLayer {
  std::int64_t layer = 0;
  std::string block, format, leaf;
  std::int64_t tokens = 0;
  std::optional<double> rel_l2;  // to the given output; absent without one
  double rel_l2_oracle = 0;
  std::optional<double> budget_rel_l2;  // absent when the weights were requantised
  double budget_rel_l2_oracle = 0;
  std::int64_t ids_differing = 0;               // outside near ties
  std::int64_t ids_near_tie = 0;                // left out of the comparison
  std::int64_t codes = 0, codes_differing = 0;  // of the second quantisers
  std::int64_t worst_row = 0;                   // the token that is farthest from the oracle
  double worst_row_rel_l2 = 0;
  std::vector<CallTactic> tactics;      // of the judged calls
  std::vector<VerifiedExpert> experts;  // when asked for
  bool ok = false;
  std::vector<std::string> notices;
};

/// All layers' verdicts.
struct VerifyResult {
  bool ok = false;
  std::vector<VerifiedLayer> layers;
  std::vector<std::string> notices;
};

/// Runs each MoE layer of a checkpoint, or the asked one, and judges it. Unless one is asked for,
/// all declared ones must be there, multi-token-prediction layers apart. The dump of a layer's
/// stages holds, under `layerN.`, hidden, logits, ids, weights, latent, x_quantised, fc1_gate,
/// fc1_up, fc2_input, rows, shared_fc2_input and out of one token, and the same with
/// `layerN.oracle.`. Errors: UsageError, one line; CannotServe.
VerifyResult verify(const std::string& checkpoint, const VerifyOptions& options);

/// How `run` spreads tokens over experts.
enum class RoutingSkew : std::uint8_t { kUniform, kZipf, kOne };

class Processes;

/// What `run` is asked: a preset or a checkpoint. More than one rank, build.ep times build.tp, are
/// the launcher's processes when there are several, else threads; build.threads is then one rank's.
struct RunOptions {
  std::string preset = "tiny";
  std::string checkpoint;  // wins over preset when set
  std::optional<std::int64_t> layer;
  std::int64_t tokens = 32;
  RoutingSkew routing = RoutingSkew::kUniform;
  std::uint64_t seed = 1;
  std::string calibrate;  // file with hidden_states that replace build.calibration, by layer
  std::string placement;  // a placement file: which expert stands in which slot, by layer in order
  std::string finalize = "plain";  // or, under tep and ttp: fused, reduce
  std::int64_t chunk_tokens = 0;   // most tokens of a rank in one exchange; 0: a call is one
  Processes* processes = nullptr;  // those that a launcher started; null: this one alone
  BuildOptions build;
};

/// What one communication strategy answers: whether it can serve, else why not.
struct StrategyAnswer {
  std::string strategy;
  bool serves = false;
  std::string reason, detail;  // of one that serves and was not chosen: what stands in front of it
};

/// How the ranks of a layer are joined; empty on one rank.
struct JoinedRanks {
  std::string carriers;  // "threads" or "processes"
  std::string layout;    // of dispatched rows: "rank_major", "compact" or "expert_major"
  std::string weights;   // who multiplies routing weights: "experts" or "combine"
  // How a row travels to the experts: the quantiser that its sender ran, or a dtype and why none.
  std::string payload, payload_reason;
  std::int64_t payload_bytes = 0;          // of a row, scales included
  std::int64_t chunk_tokens = 0;           // most of a rank in one exchange; 0: none is made
  std::vector<std::int32_t> slot_experts;  // [slots] the expert in each
  std::vector<StrategyAnswer> strategies;  // every one's, in order of preference
};

/// One layer's run.
///
/// Units:   times in µs over calls with fresh routing; gbps counts the stored bytes of the distinct
///          experts touched, gflops 2 (2 or 3) H I k T; the roof is the 0.9 quantile of its
///          samples, share_of_roof the larger of the two shares. On several ranks a time is the
///          slowest rank's, the rest is the whole group's; tokens are one rank's.
struct Measurement {
  std::string preset, checkpoint;
  std::int64_t layer = 0;
  std::string format, activations, leaf, device, parallel, strategy;
  std::int64_t ranks = 1, ep = 1, tp = 1, slots = 0;
  std::int64_t tokens = 0, checked_tokens = 0, calls = 0;
  std::int64_t distinct_experts = 0;  // as run_rules() say
  std::int64_t roof_samples = 0;      // half of them before the calls, half after
  double time_p50 = 0, time_p90 = 0, time_p99 = 0;
  double router_time_p50 = 0;
  double gbps = 0, gflops = 0, roof_gbps = 0, roof_gflops = 0, share_of_roof = 0;
  double rel_l2 = 0, budget = 0;
  // Precision of the rows between ranks: as asked, by SWITCHYARD_COMBINE_PRECISION too, and as they
  // travel: "none" on one rank, else a comm::Wire's text.
  std::string combine_requested, combine_effective;
  std::string finalize = "plain";  // "fused", "reduce": the layer ends in a fused all-reduce
  JoinedRanks joined;
  std::vector<CallTactic> tactics;  // of the last timed call, on rank 0
  RoutingLaunchReport routing_launch;
  // [E+Z] rows of each in the judged call, as run_rules() say; sums to T * k, times the ranks with
  // tokens of their own. Empty for ranks on GPUs, which are not asked to count.
  std::vector<std::int64_t> expert_tokens;
  bool ok = false;
  std::vector<std::string> notices;
};

/// All layers' runs.
struct RunResult {
  bool ok = false;
  std::vector<Measurement> measurements;
  std::vector<std::string> notices;  // of the checkpoint as a whole
};

/// Over which calls the counts of a Measurement are, in sentences; they go with every result.
struct RunRules {
  std::string_view distinct_experts, expert_tokens;
};
/// The rules of run().
const RunRules& run_rules();

/// Builds the layer(s), runs, times and checks them against the oracle. Collective over the
/// processes; every one gets the same result.
/// Errors: UsageError, one line; CannotServe; DeviceError when a rank does not come, or gave up.
RunResult run(const RunOptions& options);

}  // namespace switchyard
