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
  std::int64_t tokens = 24;  // without an io file
  std::string calibrate;     // file with hidden_states that replace build.calibration, by layer
  BuildOptions build;
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
  std::int64_t codes = 0, codes_differing = 0;  // of the second quantiser
  bool ok = false;
  std::vector<std::string> notices;
};

/// All layers' verdicts.
struct VerifyResult {
  bool ok = false;
  std::vector<VerifiedLayer> layers;
  std::vector<std::string> notices;
};

/// Runs each MoE layer of a checkpoint and judges it.
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
///          experts touched, gflops 2 (2 or 3) H I k T; share_of_roof is the larger of the two
///          shares.
struct Measurement {
  std::string preset, checkpoint;
  std::int64_t layer = 0;
  std::string format, activations, leaf, device, parallel, strategy;
  std::int64_t ranks = 1, tokens = 0, checked_tokens = 0, distinct_experts = 0, calls = 0;
  double time_p50 = 0, time_p90 = 0, time_p99 = 0;
  double router_time_p50 = 0;
  double gbps = 0, gflops = 0, roof_gbps = 0, roof_gflops = 0, share_of_roof = 0;
  double rel_l2 = 0, budget = 0;
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
