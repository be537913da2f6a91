// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/ranks.h"

#include <utility>
#include <vector>

#include "switchyard/api/machine.h"
#include "switchyard/api/rank_builder.h"
#include "switchyard/api/rank_state.h"
#include "switchyard/base/check.h"
#include "switchyard/comm/thread_team.h"

namespace switchyard {

std::shared_ptr<ThreadPool> Rank::State::pool(int threads) {
  const auto at = pools.find(threads);
  if (at != pools.end()) return at->second;
  return pools[threads] = std::make_shared<ThreadPool>(threads);
}

// Of threads, whoever runs them tells the others, and why.
Rank::State::~State() {
  if (processes && std::uncaught_exceptions() > exceptions)
    group.abort(cat("rank ", group.rank(), " left by an exception"));
}

Rank::State::Turn::Turn(State& seat) : seat_(seat) {
  require(!seat.busy.exchange(true), "rank ", seat.group.rank(),
          " is in another call; calls of what stands on one rank must not overlap");
}

Rank::Rank(Processes& processes)
    : state_(std::make_unique<State>(std::make_unique<comm::Group>(processes.form_group()),
                                     processes.size() > 1)) {}
Rank::Rank(std::unique_ptr<State> state) : state_(std::move(state)) {}
Rank::~Rank() = default;

int Rank::number() const { return state_->group.rank(); }
int Rank::size() const { return state_->group.size(); }
void Rank::barrier() {
  const State::Turn turn(*state_);
  state_->group.barrier("a barrier of the ranks");
}

void Rank::give_up(std::string_view why) { state_->group.abort(why); }

void on_rank_threads(std::int64_t ranks, const std::function<void(Rank&)>& work) {
  require(work != nullptr, "on_rank_threads: there is no work");
  require(ranks >= 1 && ranks <= comm::kMaxGroupRanks, "ranks = ", ranks, " is outside 1..",
          comm::kMaxGroupRanks, ", those that share the memory of one host");
  std::vector<comm::Group> groups =
      comm::make_thread_groups(int(ranks), comm::deadlines_of(environment()));
  comm::run_on_threads(groups, [&](comm::Group& group) {
    Rank rank(std::make_unique<Rank::State>(group, false));
    work(rank);
  });
}

}  // namespace switchyard
