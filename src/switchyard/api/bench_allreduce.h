// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/api/bench.h"
#include "switchyard/api/processes.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

namespace switchyard {

/// What `bench allreduce` is asked.
struct BenchAllReduceOptions {
  ops::AllReduceFusionPattern pattern = ops::AllReduceFusionPattern::kARResidualRMSNorm;
  std::vector<std::int64_t> tokens = {1, 16, 64, 512};
  std::int64_t hidden = 7168, top_k = 8, experts = 8;  // experts: of one rank, pattern 6
  Dtype dtype = Dtype::kBf16;
  std::int64_t ranks = 2;
  ops::AllReduceStrategy strategy = ops::AllReduceStrategy::kAuto;
  std::optional<float> routed_scaling_factor;              // patterns 6 and 7
  ops::AllReduceQuant quant = ops::AllReduceQuant::kNone;  // patterns 6 and 7
  formats::ScaleLayout scale_layout = formats::ScaleLayout::k128x4;
  bool shared = false;  // patterns 6 and 7
  Device device = Device::kCpu;
  double seconds = 0.5;  // of calls per row and form; five calls are made in any case
  std::uint64_t seed = 1;
  std::function<void(const std::string& what)> progress;
  Processes* processes = nullptr;  // a launcher's, each a rank; null or alone: ranks are threads

  /// Errors: UsageError, one line, also for a field that the pattern has no use for.
  void check() const;
};

/// What a run of `tokens` tokens takes of the host's memory, all ranks together. Units: bytes.
double bench_allreduce_bytes(const BenchAllReduceOptions& options, std::int64_t tokens);

/// How far one output is from the oracle's, over the checked tokens.
struct OutputError {
  std::string name;
  double rel_l2 = 0, limit = 0;

  /// True when it is near enough; a NaN is not.
  bool ok() const { return rel_l2 <= limit; }
};

/// One number of tokens.
///
/// Units:   times µs, the maximum over the ranks of each call; gbps of all ranks together, on GPUs
///          of one rank's links.
struct AllReduceRow {
  std::int64_t tokens = 0, checked_tokens = 0;
  std::string strategy;  // that ran
  TimeSummary fused;
  TimeSummary separate;     // the sum alone, then norm, quantisation and finalize on their own
  std::string separate_by;  // what summed there, or why nothing did and separate has no samples
  std::int64_t bytes = 0;   // that all ranks read and write at least
  double gbps = 0, copy_gbps = 0, share_of_copy = 0;
  std::vector<OutputError> errors;
  bool equal_ranks = false;  // every rank wrote the same bits

  /// True when every output is right and the same everywhere.
  bool ok() const;
};

/// All rows of one session.
struct BenchAllReduceResult {
  bool ok = false;
  std::string pattern, quant, isa, carriers;  // carriers of the ranks: "threads" or "processes"
  Device device = Device::kCpu;
  std::int64_t ranks = 0, hidden = 0;
  std::vector<AllReduceRow> rows{};
};

/// What the figures count, in sentences.
struct BenchAllReduceRules {
  std::string_view fused, separate, bytes, copy;
};
/// The rules of `bench allreduce` on a device.
const BenchAllReduceRules& bench_allreduce_rules(Device device);

/// Whether each of the twelve patterns runs here, with this machine's ranks; for `doctor`.
struct PatternVerdict {
  ops::AllReduceFusionPattern pattern{};
  Device device = Device::kCpu;
  Eligibility eligibility = Eligibility::yes();
};
/// Every pattern on one device, in order of value.
std::vector<PatternVerdict> judge_allreduce(Device device);

/// Times a fused all-reduce over ranks that are threads of this process, or a launcher's processes,
/// on cuda with a GPU each; holds every output against the oracle, and times the separate steps in
/// the same run. Of processes the first has the rows. Collective among processes.
/// Errors: UsageError, one line; CannotServe where supports() says no; DeviceError without GPUs.
BenchAllReduceResult bench_allreduce(const BenchAllReduceOptions& options);

}  // namespace switchyard
