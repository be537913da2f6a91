// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>

#include "switchyard/api/ranks.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/comm/group.h"
#include "switchyard/layer/shared_ends.h"

namespace switchyard {

/// A rank's seat, and what the things built there have in common.
struct Rank::State {
  /// A seat that somebody else keeps.
  State(comm::Group& g, bool of_processes) : group(g), processes(of_processes) {}
  /// One of its own.
  State(std::unique_ptr<comm::Group> g, bool of_processes) : State(*g, of_processes) {
    own = std::move(g);
  }
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// The threads of what is built with so many. Errors: as ThreadPool.
  std::shared_ptr<ThreadPool> pool(int threads);

  /// One call of something that stands on the rank.
  class Turn {
   public:
    /// Errors: UsageError while another one goes on.
    explicit Turn(State& seat);
    ~Turn() { seat_.busy = false; }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    State& seat_;
  };

  std::unique_ptr<comm::Group> own;
  comm::Group& group;
  bool processes;  // the ranks are, and not threads of one
  std::atomic<bool> busy = false;
  bool shared_gpu = false;  // a test's: ranks may sit on one GPU
  int exceptions = std::uncaught_exceptions();
  std::map<int, std::shared_ptr<ThreadPool>> pools;
  layer::SharedEnds ends;  // in front of the group's end
};

}  // namespace switchyard
