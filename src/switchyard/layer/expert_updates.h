// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "switchyard/checkpoint/layer_weights.h"

namespace switchyard::layer {

/// The canonical experts that replaced those of a layer's source; safe from several threads.
class ExpertUpdates {
 public:
  ExpertUpdates() = default;
  /// What was replaced so far; later updates of either stay its own.
  ExpertUpdates(const ExpertUpdates& other) {
    std::lock_guard lock(other.mutex_);
    experts_ = other.experts_;
  }
  ExpertUpdates& operator=(const ExpertUpdates&) = delete;
  /// Notes the newest weights of expert `e`.
  void put(std::int64_t e, checkpoint::ExpertWeights expert) {
    std::lock_guard lock(mutex_);
    experts_.insert_or_assign(e, std::move(expert));
  }
  /// Drops what was noted for `e`: the source gives it again.
  void forget(std::int64_t e) {
    std::lock_guard lock(mutex_);
    experts_.erase(e);
  }
  /// Bytes of what was noted for all others than `e`.
  std::int64_t bytes_beside(std::int64_t e) const;
  /// Those weights, or nothing when the expert was never replaced.
  std::optional<checkpoint::ExpertWeights> find(std::int64_t e) const {
    std::lock_guard lock(mutex_);
    auto it = experts_.find(e);
    if (it == experts_.end()) return {};
    return it->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, checkpoint::ExpertWeights> experts_;
};

/// Bytes of one expert's codes, scales and biases.
std::int64_t bytes_of(const checkpoint::ExpertWeights& expert);

/// `source` with the replaced experts in front of it.
checkpoint::ExpertSource replaceable(checkpoint::ExpertSource source,
                                     std::shared_ptr<const ExpertUpdates> updates);

}  // namespace switchyard::layer
