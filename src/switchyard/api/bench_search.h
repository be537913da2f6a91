// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/api/judge.h"
#include "switchyard/core/eligibility.h"

namespace switchyard {

/// What a search varies; what it does not is as the source says.
struct SearchAxes {
  bool leaf = false;      // the format's leaf on each device
  bool comm = false;      // every strategy that joins ranks
  bool parallel = false;  // the four modes
  bool graph = false;     // captured and replayed, and not
};

/// What `bench layer --search` and `bench layer --ranks` are asked.
struct BenchSearchOptions {
  RunOptions source;  // its tokens are replaced by the list
  std::vector<std::int64_t> tokens = {1, 8, 64, 512};
  SearchAxes axes;
  std::int64_t max_configs = 16;  // that are measured at each token count, the resolver's first
  std::function<void(const std::string& what)> progress;
};

/// One way to run a layer. An empty word leaves the choice to the resolver.
struct SearchConfig {
  std::string leaf, parallel, strategy;
  bool graph = false;
  bool operator==(const SearchConfig&) const = default;
};

/// One measured configuration.
struct SearchRow {
  SearchConfig config;                 // as it ran
  std::int64_t tokens = 0, place = 0;  // 1 is the fastest at these tokens
  bool chosen = false;                 // what the resolver chooses when nothing is pinned
  Measurement measured;
};

/// Why a configuration was not measured; a closed set.
enum class Skip : std::uint8_t {
  kRejected,    // cannot serve: SkippedConfig::reject says why
  kMaxConfigs,  // it is behind those that were to be measured
  kUsage,       // it contradicts what else was asked for
  kDevice       // a device or a rank failed
};

/// One that was not measured, and why.
struct SkippedConfig {
  SearchConfig config;
  Skip skip = Skip::kRejected;
  std::optional<Reject> reject;  // where one verdict decided
  std::string detail;

  /// The Reject's code, or "cannot_serve", "max_configs", "usage" or "device".
  std::string reason() const;
};

/// All rows, by tokens and then by time.
struct BenchSearchResult {
  bool ok = false;      // every row is correct
  SearchConfig choice;  // the resolver's, and so what `run` runs
  std::vector<SearchRow> rows;
  std::vector<SkippedConfig> skipped;
};

/// Measures a layer in every configuration that the axes span, as `run` measures it, and ranks
/// them. What is chosen stays the resolver's: the search shows what its rules cost here.
/// Collective over the source's processes; every one gets the same result.
/// Errors: UsageError, one line, also for an axis that an argument or a switch pins; CannotServe
///         when the resolver itself finds nothing.
BenchSearchResult bench_search(const BenchSearchOptions& options);

}  // namespace switchyard
