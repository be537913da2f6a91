// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/api/judge.h"

namespace switchyard {

/// What `bench layer` is asked.
struct BenchLayerOptions {
  RunOptions source;                 // its tokens and routing are replaced by the lists below
  std::vector<std::string> formats;  // empty: the layer's own
  std::vector<std::int64_t> tokens = {1, 8, 64, 512};
  std::vector<RoutingSkew> routing = {RoutingSkew::kUniform};
  // The states that are timed, one at least; cold is the CPU's, eager that of cuda alone.
  bool fresh = true, cold = true, warm = true, eager = true;
  double seconds = 2;  // per row and cache state; five calls are made in any case
  std::function<void(const std::string& what)> progress;
};

/// Times of one call, over all calls that were made. Units: µs.
struct TimeSummary {
  double p50 = 0, p90 = 0, p99 = 0, least = 0;
  std::int64_t samples = 0;
};

/// What the machine reached. Units: 10^9 bytes or operations per second.
struct MeasuredRoof {
  double gbps = 0, gflops = 0;
};

/// A part of a state's calls, and the mean of the roof right before and right after it.
struct RoofSlice {
  double p50 = 0;
  MeasuredRoof roof;
};

/// One state of the caches.
///
/// Units:   rates of the p50; distinct_experts is the median over the calls; share_of_roof is the
///          median over the slices, or of the session's roof where there are none.
struct CacheState {
  TimeSummary time;
  std::int64_t distinct_experts = 0;
  double gbps = 0, gflops = 0, share_of_roof = 0;
  std::vector<RoofSlice> slices;
};

/// One format, token count and routing of one layer.
struct BenchLayerRow {
  std::string preset, checkpoint;
  std::int64_t layer = 0;
  std::string format, activations, leaf, device, isa;
  std::vector<std::string> overrides;  // what differs from the preset or checkpoint: "top_k 4"
  RoutingSkew routing = RoutingSkew::kUniform;
  std::int64_t threads = 0, tokens = 0, checked_tokens = 0;
  std::int64_t expert_bytes = 0, packed_bytes = 0;
  double flops = 0;                                    // of a call
  std::int64_t layers = 1;                             // that fresh calls visit in turn
  std::optional<CacheState> fresh, cold, warm, eager;  // those that were asked for
  double router_p50 = 0;  // µs, the router's GEMM and the choice, not part of the times
  double rel_l2 = 0, budget = 0;
  std::vector<CallTactic> tactics;
  RoutingLaunchReport routing_launch;
  std::optional<double> bar;  // share of the roof that the fresh p50 is held to
  bool ok = false;            // correct; says nothing of the bar
  std::vector<std::string> notices;

  /// True when there is a bar and the fresh p50 is below it.
  bool misses_bar() const { return bar && fresh && fresh->share_of_roof < *bar; }
  /// The state that a table shows in full: fresh, or else cold, warm, eager.
  const CacheState& shown() const {
    return fresh ? *fresh : cold ? *cold : warm ? *warm : eager.value();
  }
};

/// A format that could not be built, and why.
struct SkippedFormat {
  std::int64_t layer = 0;
  std::string format, reason;
  bool barred = false;  // a row of it would have been held to a bar
};

/// All rows, and the roof of the same session that their shares refer to.
struct BenchLayerResult {
  bool ok = false;
  std::vector<BenchLayerRow> rows;
  std::vector<SkippedFormat> skipped;
  std::vector<std::string> notices;
  MeasuredRoof roof, roof_start,
      roof_end;  // 0.9 quantile of all samples; medians of first and last
  std::int64_t roof_samples = 0, flush_bytes = 0;

  /// True when a row is below its bar, or when a format that has one could not be built.
  bool misses_bar() const;
};

/// How the figures count, in sentences; they go with every result.
struct BenchRules {
  std::string_view fresh, cold, warm, cuda, bytes, flops, router, roof, bar;
};
/// The rules of `bench layer`.
const BenchRules& bench_rules();

/// True when a row of this format would be held to a bar: the shape has one for some of the tokens,
/// under uniform routing, fresh calls and no overrides.
bool has_bar(const BenchLayerOptions& options, const std::string& format);

/// Times layers with fresh, cold and warm caches against the roof of the same session. A layer is
/// built once per format, copied for the fresh calls, and freed before the next.
/// Errors: UsageError, one line; CannotServe; DeviceError; with several formats one that cannot be
///         built is skipped with its reason (a failing device is not), unless all are: then the
///         first one's error is thrown. Layers on cuda are timed against the GPU's own roof.
BenchLayerResult bench_layer(const BenchLayerOptions& options);

}  // namespace switchyard
