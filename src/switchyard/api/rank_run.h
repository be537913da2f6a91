// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "switchyard/api/judge.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/api/processes.h"
#include "switchyard/comm/group.h"
#include "switchyard/layer/rank_layer.h"

namespace switchyard {

/// The ranks of a run: threads of this process, or the launcher's processes.
class RankTeam {
 public:
  /// Errors: UsageError when `ranks` is not the number of a launcher's several processes.
  RankTeam(Processes* processes, std::int64_t ranks);

  /// Whether the ranks are processes.
  bool processes() const { return processes_ != nullptr; }
  /// "threads" or "processes".
  std::string carriers() const { return processes() ? "processes" : "threads"; }
  /// Runs `work`, which may fail on some processes only, before there is a group.
  template <class F>
  void together(F&& work) {
    processes() ? processes_->together(std::forward<F>(work)) : std::forward<F>(work)();
  }
  /// Runs `work` on every rank of a new group. Errors: as run().
  void each(const std::function<void(comm::Group&)>& work);
  /// Runs `work` on every rank of a new group; of threads, rank 0's result is the answer.
  /// Errors: what a rank threw, the cause before what it brought on others.
  Measurement run(const std::function<Measurement(comm::Group&)>& work);

 private:
  Processes* processes_;
  std::int64_t ranks_;
};

/// How one rank builds its part of `prepared`. Collective.
layer::RankOptions rank_options(comm::Group& group, const PreparedLayer& prepared,
                                const RunOptions& run);
/// What one rank measures: builds its part of `prepared`, times it and has it judged. Collective;
/// every rank gets the same measurement.
/// Errors: UsageError, PeerError.
Measurement measure_rank(comm::Group& group, const PreparedLayer& prepared, const RunOptions& run,
                         const std::string& carriers);

}  // namespace switchyard
