// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "switchyard/api/processes.h"

namespace switchyard {

/// One of the ranks of one host that build layers and fused all-reduces together: a thread, or a
/// process of a launcher. Layers that are built on a rank share its threads and, where their calls
/// need the same, the memory that the ranks exchange through, which stays until the rank goes. So
/// calls of what stands on one rank must not overlap, also of different layers.
///
/// Collective: construction, barrier(), and whatever takes a Rank; all ranks make the same calls in
/// the same order. Every wait has a deadline, SWITCHYARD_WARMUP_TIMEOUT_S or
/// SWITCHYARD_SERVING_TIMEOUT_S.
/// Errors:  UsageError for calls that overlap. DeviceError that names rank, peer, phase and time
///          when a peer does not come, or gave up; from then on, and after a forward that failed,
///          every call fails: make new ranks, and build anew on them. A build, an update or a
///          migration that is refused leaves the ranks as they were.
class Rank {
 public:
  /// This process's, where each of a launcher's processes is a rank; without a launcher, the one
  /// rank; not read later. A process whose rank goes by an exception ends the waits of the others.
  /// Errors: UsageError, DeviceError.
  explicit Rank(Processes& processes);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// This rank, in [0, size()).
  int number() const;
  /// How many there are.
  int size() const;
  /// Returns when every rank has called it.
  void barrier();
  /// Ends the waits of the others, now and from now on, with a DeviceError that says `why`: for a
  /// rank that cannot go on, an error of the program's own for one, and does not leave by that. The
  /// first rank's reason counts. Not collective; may run beside a call of this rank. A kernel that
  /// waits on another GPU ends when its rank next calls wait(), check() or forward().
  void give_up(std::string_view why);

  struct State;
  /// What layers are built with, for the library's own use.
  State& state() { return *state_; }

 private:
  friend void on_rank_threads(std::int64_t, const std::function<void(Rank&)>&);
  explicit Rank(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Runs `work` on a thread of its own for each of `ranks` ranks, and returns when all have ended. A
/// rank that throws ends the waits of the others.
/// Errors:  UsageError for a number of ranks that cannot be; what a rank threw, a cause before what
///          it brought on others.
void on_rank_threads(std::int64_t ranks, const std::function<void(Rank&)>& work);

}  // namespace switchyard
