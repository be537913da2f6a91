// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/eplb/migration.h"
#include "switchyard/eplb/placement.h"
#include "switchyard/eplb/statistics.h"

namespace switchyard::eplb {

/// When and how much is moved. Errors: check() throws UsageError with field, value and limit.
struct BalancerOptions {
  std::int64_t num_nodes = 1, num_groups = 1;
  std::int64_t window = 16;               // iterations whose loads are looked at
  std::int64_t warm_up = 16;              // iterations before the first plan
  std::int64_t interval = 16;             // iterations from one plan to the next
  std::int64_t layers_per_iteration = 1;  // that may change after one iteration; 0: none ever
  double least_gain = 0.02;  // of max_over_mean; a layer that gains less stays as it is

  void check() const;
};

/// One layer's change of slots.
struct Migration {
  std::int64_t layer = 0;
  std::vector<std::int32_t> slots;  // what the slots hold after it
  std::vector<Move> moves;
};

/// Decides from measured loads when which layer's slots change. A plain value: every rank keeps
/// one, feeds it the counts of all ranks, and so decides the same without talking.
class Balancer {
 public:
  /// Errors: as BalancerOptions::check and Placement::check.
  Balancer(Placement placement, const BalancerOptions& options);

  /// What stands: a migration changes it when it is applied.
  const Placement& placement() const { return placement_; }
  /// Adds what all ranks' tokens asked of a layer's experts in this iteration.
  /// Errors: as LoadStatistics::add.
  void add(std::int64_t layer, std::span<const std::int64_t> counts) {
    statistics_.add(layer, counts);
  }
  /// Ends an iteration; returns what is to be moved before the next one, most gain first.
  std::vector<Migration> end_iteration();
  /// Notes that `migration` has been carried out on every rank.
  /// Errors: UsageError when it is not one that end_iteration() asked for and that still stands.
  void applied(const Migration& migration);

  /// Plans made so far.
  std::int64_t plans() const { return plans_; }
  /// Migrations applied so far.
  std::int64_t migrations() const { return migrations_; }
  /// Layers whose change is decided and not yet applied.
  std::int64_t pending() const { return std::int64_t(queue_.size()); }

 private:
  void plan();

  Placement placement_;
  BalancerOptions options_;
  LoadStatistics statistics_;
  std::int64_t iteration_ = 0, plans_ = 0, migrations_ = 0;
  std::vector<Migration> queue_;  // most gain first
};

}  // namespace switchyard::eplb
