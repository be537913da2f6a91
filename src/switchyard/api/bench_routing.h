// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "switchyard/api/bench.h"
#include "switchyard/core/routing.h"

namespace switchyard {

/// What `bench routing` is asked.
struct BenchRoutingOptions {
  std::string preset = "qwen3-30b-a3b";    // H, E and k; its own method keeps its groups
  std::vector<RoutingMethodType> methods;  // empty: every one
  std::vector<std::int64_t> tokens = {1, 8, 64, 512};
  Device device = Device::kCpu;
  double seconds = 0.25;  // of calls per row; five calls are made in any case
  int threads = 0;        // 0: every CPU that the process may use
  std::uint64_t seed = 1;
  std::function<void(const std::string& what)> progress;
};

/// The router's GEMM, which is the same for every method.
struct RouterGemmRow {
  std::int64_t tokens = 0;
  TimeSummary time;
  double ns_per_token = 0, naive_ns_per_token = 0;  // naive: double, one thread
  double gbps = 0;                                  // bytes of the fp32 router weight over the time
  double max_error = 0;                             // of a logit, against the naive one
  /// The limit of max_error; logits have deviation 1.
  static constexpr double kLimit = 1e-4;

  /// True when every logit is right; a NaN is not.
  bool ok() const { return max_error <= kLimit; }
};

/// The choice of one method from given logits.
struct RouteChoiceRow {
  RoutingMethodType method = RoutingMethodType::kRenormalize;
  std::int64_t tokens = 0, top_k = 0;
  TimeSummary time;
  double ns_per_token = 0, naive_ns_per_token = 0;
  // Of the tokens that the oracle routed: how many agree in every id, were too close to compare,
  // and differ although the gap was wide.
  std::int64_t checked = 0, agreeing = 0, near_tie = 0, differing = 0;
  double max_weight_error = 0;  // over the agreeing tokens
  /// The limit of max_weight_error.
  static constexpr double kLimit = 1e-5;

  /// True when no id differs where the gap was wide, and every weight is right; a NaN is not.
  bool ok() const { return differing == 0 && max_weight_error <= kLimit; }
};

/// A method that cannot be timed at this shape, and why.
struct SkippedMethod {
  RoutingMethodType method = RoutingMethodType::kRenormalize;
  std::string reason;
};

/// The largest distance of two ranges of one length; NaN when any element is NaN.
double largest_distance(std::span<const float> a, std::span<const float> b);

/// All rows of one session.
struct BenchRoutingResult {
  bool ok = false;  // every row is
  std::string preset;
  Device device = Device::kCpu;
  std::int64_t hidden = 0, experts = 0, threads = 0;  // threads 0 on cuda
  std::vector<RouterGemmRow> gemm;
  std::vector<RouteChoiceRow> choice;
  std::vector<SkippedMethod> skipped;
};

/// Times the router's GEMM and the choice of each routing method apart, and holds logits, ids and
/// weights against the oracle's. On cuda a time is that of one of 24 calls in a graph.
/// Errors: UsageError, one line; DeviceError where there is no GPU.
BenchRoutingResult bench_routing(const BenchRoutingOptions& options);

}  // namespace switchyard
