// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "switchyard/api/ranks.h"
#include "switchyard/base/dtype.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

namespace switchyard {

/// What the fused all-reduces of some ranks are built for; equal on all of them. A call may have
/// other tokens, width and type as long as it needs no more memory.
struct AllReduceSize {
  std::int64_t max_tokens = 0, hidden = 0;
  Dtype dtype = Dtype::kBf16;
  bool fp32_wire = false;  // contributions may travel unrounded
};

/// One rank's end of fused all-reduces over CPU ranks of one host. Calls are collective, made by
/// all ranks in the same order, and allocate nothing; docs/allreduce.md has the numbers' contract.
///
/// Errors:  UsageError for arguments that break their rules, exceed what was built, or differ among
///          the ranks; DeviceError when a peer does not come in the deadline of
///          SWITCHYARD_SERVING_TIMEOUT_S, or gave up. After an error make new ranks, and build
///          anew on them.
class FusedAllReduce {
 public:
  /// Collective; the rank outlives it. Errors: UsageError on every rank when the sizes differ;
  /// DeviceError.
  FusedAllReduce(Rank& rank, const AllReduceSize& size);
  ~FusedAllReduce();
  FusedAllReduce(const FusedAllReduce&) = delete;
  FusedAllReduce& operator=(const FusedAllReduce&) = delete;

  /// Runs one; the families' call() makes it, or allreduce_fusion() below takes them as they are.
  void run(const ops::AllReduceCall& call);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Pattern 0. Errors: as FusedAllReduce::run().
void allreduce_fusion(FusedAllReduce& all, const ops::AllReduceArgs& args);
/// Patterns 1 to 5 and 8 to 11. Errors: as FusedAllReduce::run().
void allreduce_fusion(FusedAllReduce& all, const ops::ARResidualRMSNormArgs& args);
/// Pattern 6. Errors: as FusedAllReduce::run().
void allreduce_fusion(FusedAllReduce& all, const ops::MoEReductionArgs& args);
/// Pattern 7. Errors: as FusedAllReduce::run().
void allreduce_fusion(FusedAllReduce& all, const ops::MoEFinalizeArgs& args);

}  // namespace switchyard
