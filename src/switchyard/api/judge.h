// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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

/// Runs each MoE layer of a checkpoint and judges it. The dump of a layer's stages holds, under
/// `layerN.`, hidden, logits, ids, weights, latent, x_quantised, fc1_gate, fc1_up, fc2_input, rows,
/// shared_fc2_input and out of one token, and the same with `layerN.oracle.`.
/// Errors: UsageError, one line; CannotServe.
VerifyResult verify(const std::string& checkpoint, const VerifyOptions& options);

/// How `run` spreads tokens over experts.
enum class RoutingSkew : std::uint8_t { kUniform, kZipf, kOne };

/// What `run` is asked: a preset or a checkpoint.
struct RunOptions {
  std::string preset = "tiny";
  std::string checkpoint;  // wins over preset when set
  std::optional<std::int64_t> layer;
  std::int64_t tokens = 32;
  RoutingSkew routing = RoutingSkew::kUniform;
  std::uint64_t seed = 1;
  std::string calibrate;  // file with hidden_states that replace build.calibration, by layer
  BuildOptions build;
};

/// One layer's run.
///
/// Units:   times in µs over calls with fresh routing; gbps counts the stored bytes of the distinct
///          experts touched, gflops 2 (2 or 3) H I k T; the roof is the 0.9 quantile of its
///          samples, share_of_roof the larger of the two shares.
struct Measurement {
  std::string preset, checkpoint;
  std::int64_t layer = 0;
  std::string format, activations, leaf, device, parallel, strategy;
  std::int64_t ranks = 1, tokens = 0, checked_tokens = 0, distinct_experts = 0, calls = 0;
  std::int64_t roof_samples = 0;  // half of them before the calls, half after
  double time_p50 = 0, time_p90 = 0, time_p99 = 0;
  double router_time_p50 = 0;
  double gbps = 0, gflops = 0, roof_gbps = 0, roof_gflops = 0, share_of_roof = 0;
  double rel_l2 = 0, budget = 0;
  std::vector<std::int64_t> expert_tokens;  // [E+Z] rows of each in the judged call; sums to T * k
  bool ok = false;
  std::vector<std::string> notices;
};

/// All layers' runs.
struct RunResult {
  bool ok = false;
  std::vector<Measurement> measurements;
  std::vector<std::string> notices;  // of the checkpoint as a whole
};

/// Builds the layer(s), runs, times and checks them against the oracle.
/// Errors: UsageError, one line; CannotServe.
RunResult run(const RunOptions& options);

}  // namespace switchyard
