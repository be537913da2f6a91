// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/api/bench.h"
#include "switchyard/api/exchange_traffic.h"
#include "switchyard/core/problem.h"
#include "switchyard/resolve/report.h"

namespace switchyard {

/// What `bench exchange` is asked.
struct BenchExchangeOptions {
  std::string strategy = "auto";  // a strategy, "auto", or "all" of those that can serve
  std::int64_t ranks = 4;         // threads of this process
  std::vector<std::int64_t> tokens = {1, 8, 64, 512};  // of each rank
  std::int64_t hidden = 4096, top_k = 8, experts = 256;
  ExchangePayload payload = ExchangePayload::kBf16;
  CombinePrecision combine = CombinePrecision::kBf16;
  TrafficPattern pattern = TrafficPattern::kBalanced;
  double seconds = 0.5;  // of exchanges per row; five are made in any case
  std::uint64_t seed = 1;
  std::int64_t most_copied = std::int64_t(256)
                             << 20;  // bytes that a sample of the copy rate copies
  std::function<void(const std::string& what)> progress;
};

/// One strategy at one token count.
///
/// Units:   *_rows and *_bytes of one exchange over all ranks; gbps of the p50 of `total`.
struct BenchExchangeRow {
  std::string strategy;
  std::int64_t tokens = 0;
  TimeSummary dispatch, combine, total;  // from the first rank's start to the last one's end
  std::int64_t dispatch_rows = 0, combine_rows = 0;  // delivered, and those read back
  std::int64_t dispatch_bytes = 0, combine_bytes = 0;
  double gbps = 0, share_of_copy = 0;
  std::int64_t shared_bytes = 0, own_bytes = 0;  // memory: of all ranks together, of each rank
  std::int64_t checked_tokens = 0, wrong_tokens = 0;

  /// True when every checked token came back as the contract says, in the first exchange and in
  /// the last.
  bool ok() const { return wrong_tokens == 0; }
};

/// A strategy that could not be built at one token count, and why.
struct SkippedExchange {
  std::string strategy;
  std::int64_t tokens = 0;
  std::string reason;
};

/// All rows of one session.
struct BenchExchangeResult {
  bool ok = false;     // every row is
  std::string chosen;  // the strategy of "auto" or of a pin; empty under "all"
  std::vector<resolve::StrategyVerdict> verdicts;
  std::vector<BenchExchangeRow> rows;
  std::vector<SkippedExchange> skipped;
  double copy_gbps = 0, copy_start = 0, copy_end = 0;  // 0.9 quantile; medians of first and last
  std::int64_t copy_samples = 0, copy_bytes = 0, cpus = 0;
};

/// How the figures count, in sentences; they go with every result.
struct ExchangeRules {
  std::string_view time, bytes, copy, shares;
};
/// The rules of bench_exchange().
const ExchangeRules& exchange_rules();

/// About what a row of `tokens` takes, of all ranks together, and no more than any strategy does.
///
/// Units:   bytes.
double bench_exchange_bytes(const BenchExchangeOptions& options, std::int64_t tokens);

/// Times dispatch and combine of the exchange strategies between threads of this process, and holds
/// what comes back against the contract reference.
/// Errors: UsageError, one line; CannotServe when no strategy, or not the pinned one, can serve.
BenchExchangeResult bench_exchange(const BenchExchangeOptions& options);

}  // namespace switchyard
