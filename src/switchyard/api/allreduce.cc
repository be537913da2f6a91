// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/allreduce.h"

#include <utility>

#include "switchyard/api/machine.h"
#include "switchyard/base/check.h"
#include "switchyard/comm/fused_allreduce.h"
#include "switchyard/comm/mpi_group.h"
#include "switchyard/comm/thread_team.h"

namespace switchyard {
namespace {

comm::AllReduceCapacity capacity_of(const AllReduceTeam& t) {
  return {t.ranks, t.max_tokens, t.hidden, t.dtype, t.fp32_wire};
}

comm::Deadlines deadlines() { return comm::deadlines_of(environment()); }

/// Errors: UsageError.
comm::Group group_of(Processes& processes, const AllReduceTeam& team) {
  require(processes.size() == team.ranks, "ranks = ", team.ranks, " of ", processes.size(),
          processes.size() == 1 ? " process" : " processes", "; each process is a rank");
  return processes.form_group();
}

}  // namespace

/// A seat in a group, and what was built there.
struct FusedAllReduce::Seat {
  Seat(comm::Group& g, const AllReduceTeam& team)
      : group(g), workspace(g, capacity_of(team), {.isa = running_tier(environment())}) {}
  Seat(std::unique_ptr<comm::Group> g, const AllReduceTeam& team) : Seat(*g, team) {
    own = std::move(g);
  }
  std::unique_ptr<comm::Group> own;  // of a process; threads' groups are kept by who starts them
  comm::Group& group;
  comm::AllReduceWorkspace workspace;
};

FusedAllReduce::FusedAllReduce(Processes& processes, const AllReduceTeam& team)
    : seat_(
          std::make_unique<Seat>(std::make_unique<comm::Group>(group_of(processes, team)), team)) {}
FusedAllReduce::FusedAllReduce(std::unique_ptr<Seat> seat) : seat_(std::move(seat)) {}
FusedAllReduce::~FusedAllReduce() = default;

int FusedAllReduce::rank() const { return seat_->group.rank(); }
int FusedAllReduce::size() const { return seat_->group.size(); }
void FusedAllReduce::run(const ops::AllReduceCall& call) { seat_->workspace.run(call); }

void on_allreduce_threads(const AllReduceTeam& team,
                          const std::function<void(FusedAllReduce&)>& work) {
  capacity_of(team).check();
  std::vector<comm::Group> groups = comm::make_thread_groups(int(team.ranks), deadlines());
  comm::run_on_threads(groups, [&](comm::Group& group) {
    FusedAllReduce rank(std::make_unique<FusedAllReduce::Seat>(group, team));
    work(rank);
  });
}

void allreduce_fusion(FusedAllReduce& rank, const ops::AllReduceArgs& args) {
  rank.run(args.call());
}
void allreduce_fusion(FusedAllReduce& rank, const ops::ARResidualRMSNormArgs& args) {
  rank.run(args.call());
}
void allreduce_fusion(FusedAllReduce& rank, const ops::MoEReductionArgs& args) {
  rank.run(args.call());
}
void allreduce_fusion(FusedAllReduce& rank, const ops::MoEFinalizeArgs& args) {
  rank.run(args.call());
}

}  // namespace switchyard
