// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  /// The threads of what is built with so many; 0: the rank's share of the processors. Collective.
  std::shared_ptr<ThreadPool> pool(int threads);

  std::unique_ptr<comm::Group> own;
  comm::Group& group;
  bool processes;  // the ranks are, and not threads of one
  std::map<int, std::shared_ptr<ThreadPool>> pools;
  layer::SharedEnds ends;  // in front of the group's end
};

}  // namespace switchyard
