// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/allreduce.h"

#include "switchyard/api/machine.h"
#include "switchyard/api/rank_state.h"
#include "switchyard/comm/fused_allreduce.h"

namespace switchyard {

/// What was built in the rank's group.
struct FusedAllReduce::State {
  State(Rank::State& on, const AllReduceSize& s)
      : seat(on),
        workspace(on.group, {on.group.size(), s.max_tokens, s.hidden, s.dtype, s.fp32_wire},
                  {.isa = running_tier(environment())}) {}
  Rank::State& seat;
  comm::AllReduceWorkspace workspace;
};

FusedAllReduce::FusedAllReduce(Rank& rank, const AllReduceSize& size)
    : state_([&] {
        const Rank::State::Turn turn(rank.state());
        return std::make_unique<State>(rank.state(), size);
      }()) {}
FusedAllReduce::~FusedAllReduce() = default;

void FusedAllReduce::run(const ops::AllReduceCall& call) {
  const Rank::State::Turn turn(state_->seat);
  state_->workspace.run(call);
}

void allreduce_fusion(FusedAllReduce& all, const ops::AllReduceArgs& args) { all.run(args.call()); }
void allreduce_fusion(FusedAllReduce& all, const ops::ARResidualRMSNormArgs& args) {
  all.run(args.call());
}
void allreduce_fusion(FusedAllReduce& all, const ops::MoEReductionArgs& args) {
  all.run(args.call());
}
void allreduce_fusion(FusedAllReduce& all, const ops::MoEFinalizeArgs& args) {
  all.run(args.call());
}

}  // namespace switchyard
