// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "switchyard/api/processes.h"
#include "switchyard/base/dtype.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

namespace switchyard {

/// What the fused all-reduces of some ranks are built for; equal on all of them. A call may have
/// other tokens, width and type as long as it needs no more memory.
struct AllReduceTeam {
  std::int64_t ranks = 1, max_tokens = 0, hidden = 0;
  Dtype dtype = Dtype::kBf16;
  bool fp32_wire = false;  // contributions may travel unrounded
};

/// One rank's end of fused all-reduces over CPU ranks of one host. Calls are collective, made by
/// all ranks in the same order, and allocate nothing; docs/allreduce.md has the numbers' contract.
///
/// Errors:  UsageError for arguments that break their rules, exceed what was built, or differ among
///          the ranks; DeviceError when a peer does not come in the deadline of
///          SWITCHYARD_SERVING_TIMEOUT_S, or gave up. After an error build anew, on all ranks.
class FusedAllReduce {
 public:
  /// This process's end, where each of a launcher's processes is a rank; without a launcher, the
  /// one rank. Collective. Errors: UsageError on every rank when the teams differ or `ranks` is not
  /// the number of processes; DeviceError.
  FusedAllReduce(Processes& processes, const AllReduceTeam& team);
  ~FusedAllReduce();
  FusedAllReduce(const FusedAllReduce&) = delete;
  FusedAllReduce& operator=(const FusedAllReduce&) = delete;

  /// This rank, in [0, size()).
  int rank() const;
  /// Ranks that call together.
  int size() const;
  /// Runs one; the families' call() makes it, or allreduce_fusion() below takes them as they are.
  void run(const ops::AllReduceCall& call);

 private:
  friend void on_allreduce_threads(const AllReduceTeam&,
                                   const std::function<void(FusedAllReduce&)>&);
  struct Seat;
  explicit FusedAllReduce(std::unique_ptr<Seat> seat);
  std::unique_ptr<Seat> seat_;
};

/// Runs `work` on a thread of its own for each rank of a team, and returns when all have ended.
/// Errors: what a rank threw, a cause before what it brought on others.
void on_allreduce_threads(const AllReduceTeam& team,
                          const std::function<void(FusedAllReduce&)>& work);

/// Pattern 0. Errors: as FusedAllReduce::run().
void allreduce_fusion(FusedAllReduce& rank, const ops::AllReduceArgs& args);
/// Patterns 1 to 5 and 8 to 11. Errors: as FusedAllReduce::run().
void allreduce_fusion(FusedAllReduce& rank, const ops::ARResidualRMSNormArgs& args);
/// Pattern 6. Errors: as FusedAllReduce::run().
void allreduce_fusion(FusedAllReduce& rank, const ops::MoEReductionArgs& args);
/// Pattern 7. Errors: as FusedAllReduce::run().
void allreduce_fusion(FusedAllReduce& rank, const ops::MoEFinalizeArgs& args);

}  // namespace switchyard
