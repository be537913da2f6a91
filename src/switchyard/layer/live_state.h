// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "switchyard/core/expert_load.h"

namespace switchyard::layer {

/// Many forwards or one update at a time. Whoever waits to update holds back the forwards that come
/// after it, so that a stream of overlapping forwards cannot starve it.
class UpdateGate {
 public:
  /// Held by a forward while it reads weights and scales; not re-entrant.
  std::shared_lock<std::shared_mutex> reading() const {
    { std::lock_guard turn(turnstile_); }
    return std::shared_lock(mutex_);
  }

  /// Held while weights or scales change.
  class Writing {
   public:
    /// Waits for the forwards in flight; later ones wait for this.
    explicit Writing(const UpdateGate& gate) : turn_(gate.turnstile_), lock_(gate.mutex_) {}

   private:
    std::lock_guard<std::mutex> turn_;
    std::lock_guard<std::shared_mutex> lock_;
  };

 private:
  mutable std::mutex turnstile_;
  mutable std::shared_mutex mutex_;
};

/// Counts of whole forwards; a snapshot never shows half of one.
class LoadCounter {
 public:
  /// Counts for `ids` expert ids, zero experts included. Errors: none; call before the first use.
  void reset(std::int64_t ids) { load_.choices.assign(std::size_t(ids), 0); }

  /// Adds one forward's choices: `tokens` rows of `k` ids, `width` apart; -1 counts as skipped.
  void add(const std::int32_t* ids, std::int64_t tokens, std::int64_t k, std::int64_t width) {
    std::lock_guard lock(mutex_);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (const std::int32_t* id = ids + t * width; id != ids + t * width + k; ++id)
        ++(*id < 0 ? load_.skipped : load_.choices[std::size_t(*id)]);
    load_.tokens += tokens;
    ++load_.forwards;
  }

  /// A copy of the counts.
  ExpertLoad read() const {
    std::lock_guard lock(mutex_);
    return load_;
  }

  /// A copy of the counts, which start at zero again: no forward is lost or counted twice.
  ExpertLoad take() {
    std::lock_guard lock(mutex_);
    ExpertLoad out = load_;
    load_ = {};
    load_.choices.assign(out.choices.size(), 0);
    return out;
  }

 private:
  mutable std::mutex mutex_;
  ExpertLoad load_;
};

}  // namespace switchyard::layer
