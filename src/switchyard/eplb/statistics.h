// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/eplb/loads.h"

namespace switchyard::eplb {

/// Tokens that each expert of each layer received over the last iterations, by logical expert, so
/// that the figures keep their meaning when experts move. A plain value; not for several threads.
class LoadStatistics {
 public:
  /// Counts of the last `window` closed iterations are kept.
  /// Errors: UsageError for a size below 1 or above its limit.
  LoadStatistics(std::int64_t num_layers, std::int64_t num_experts, std::int64_t window);

  /// Adds one token for each id to the open iteration; an id below 0 means "skip".
  /// Errors: UsageError for a layer or id that does not exist; nothing is counted then.
  void record(std::int64_t layer, std::span<const std::int32_t> expert_ids);
  /// Adds `counts` [num_experts] tokens, e.g. those that the ranks have summed up.
  /// Errors: UsageError for another length, a negative count, or an iteration of more than kMaxLoad
  ///         over the window for one expert; nothing is counted then.
  void add(std::int64_t layer, std::span<const std::int64_t> counts);
  /// Closes the open iteration; the oldest one leaves the window.
  void end_iteration();

  /// Closed iterations in the window.
  std::int64_t iterations() const { return closed_; }
  /// Sums over the closed iterations in the window, as plan_placement() takes them.
  LoadTable loads() const;

 private:
  std::span<std::int64_t> cell(std::int64_t iteration, std::int64_t layer);
  void check_layer(std::int64_t layer) const;

  std::int64_t num_layers_, num_experts_, window_;
  std::int64_t closed_ = 0, open_ = 0;  // open_: ring index of the open iteration
  std::vector<std::int64_t> ring_;      // [window + 1][num_layers][num_experts]
  std::vector<std::int64_t> sums_;      // [num_layers][num_experts] of the closed ones
};

}  // namespace switchyard::eplb
