// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "switchyard/base/thread_pool.h"
#include "switchyard/comm/allreduce_layout.h"
#include "switchyard/comm/group.h"
#include "switchyard/comm/symmetric_memory.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm_rows.h"

namespace switchyard::comm {

/// Points of a call at which a test may meddle, in their order.
enum class AllReduceFault : std::uint8_t {
  kBegin,         // nothing is written yet
  kRowsWritten,   // the contributions lie in memory, no peer knows
  kPublished,     // every peer may read them
  kRowsReduced,   // two-shot: the owned rows lie in memory, no peer knows
  kReducedShown,  // two-shot: every peer may read them
  kAllArrived,    // nothing is waited for any more
};
/// How many there are.
inline constexpr int kNumAllReduceFaults = 6;

/// A test's hand in a call: may wait, throw or end the process.
struct AllReduceHook {
  void* context = nullptr;
  void (*at)(void* context, AllReduceFault point) = nullptr;
};

/// How a workspace is built beside its capacity; equal on all ranks but for hook and pool.
struct AllReduceOptions {
  CpuIsa isa = CpuIsa::kPortable;  // of the loops over a row; all tiers give the same bits
  ThreadPool* pool = nullptr;      // shares the rows; null: the caller alone. Must outlive this
  std::uint32_t first_sequence = 0;
  AllReduceHook hook{};
};

/// What a strategy of `shape` means among `ranks` ranks: auto chooses by the tokens of a rank.
ops::AllReduceStrategy effective_strategy(const ops::CallShape& shape, std::int64_t ranks);

/// One rank's end of fused all-reduces over CPU ranks. Calls are collective and made in the same
/// order by all ranks; they allocate nothing. Several workspaces may live in one group.
///
/// Sums start at +0 and add the ranks in order in fp32; each contribution, the own one included, is
/// rounded to T once when there is more than one rank. Bits do not depend on strategy, rank, run,
/// other tokens, threads or instruction set.
/// Errors:  UsageError for arguments that break their rules, exceed the capacity, or differ among
///          the ranks; PeerError when a peer does not come, or gave up. Any error on one rank
///          aborts the group of more than one; form a new one.
class AllReduceWorkspace {
 public:
  /// Collective. Errors: UsageError on every rank when the capacities differ, one is illegal or
  ///         the system refuses the memory; PeerError.
  AllReduceWorkspace(Group& group, const AllReduceCapacity& capacity,
                     const AllReduceOptions& options = {});

  /// Runs one fused all-reduce; AllReduceArgs and the other families give a call(). The contents
  /// of residual_in and rms_gamma must be equal on all ranks: they are not compared.
  void run(const ops::AllReduceCall& call);

  /// Whether nothing was written behind this rank's banks.
  bool canaries_intact() const;
  /// What was built.
  const AllReduceCapacity& capacity() const { return capacity_; }
  /// Bytes of memory that all ranks share.
  std::size_t shared_bytes() const { return memory_ ? memory_->total_bytes() : 0; }

 private:
  friend struct AllReduceProbe;  // of the tests
  using Header = std::array<std::uint32_t, kAllReduceHeaderWords>;

  void check(const ops::AllReduceCall& call) const;
  void run_checked(const ops::AllReduceCall& call);
  void run_alone(const ops::AllReduceCall& call);
  void write_rows(const ops::AllReduceCall& call);
  void show(int phase);
  void await(int phase, const Header* mine);
  void catch_up_owned();
  void check_header(const Header& mine, int source) const;
  void finish_one_shot(const ops::AllReduceCall& call);
  void reduce_owned(const ops::AllReduceCall& call);
  void finish_two_shot(const ops::AllReduceCall& call);
  void sum_row(const ops::AllReduceCall& call, std::int64_t m, float* acc) const;
  void finish_row(const ops::AllReduceCall& call, std::int64_t m, const ops::RowScratch& s) const;
  std::byte* payload(int rank, std::int64_t m) const;
  std::byte* reduced(int rank, std::int64_t m) const;
  Word& flag(int rank, int phase, int source) const;
  void fault(AllReduceFault point) const;
  template <class F>
  void for_rows(std::int64_t first, std::int64_t step, std::int64_t tokens, F&& f);

  Group& group_;
  AllReduceCapacity capacity_;
  AllReduceOptions options_;
  AllReduceLayout layout_;
  const ops::RowKernels& kernels_;
  std::optional<SymmetricMemory> memory_;
  std::vector<float> floats_;        // [members][3][hidden]
  std::vector<std::uint8_t> bytes_;  // [members][hidden]
  std::vector<ops::RowScratch> scratch_;
  AllReduceCapacity needs_;  // of the call that runs
  std::uint32_t sequence_;
  bool first_ = true;
};

/// The families by one name. Errors: as AllReduceWorkspace::run().
void allreduce_fusion(AllReduceWorkspace& workspace, const ops::AllReduceArgs& args);
/// As the first.
void allreduce_fusion(AllReduceWorkspace& workspace, const ops::ARResidualRMSNormArgs& args);
/// As the first.
void allreduce_fusion(AllReduceWorkspace& workspace, const ops::MoEReductionArgs& args);
/// As the first.
void allreduce_fusion(AllReduceWorkspace& workspace, const ops::MoEFinalizeArgs& args);

}  // namespace switchyard::comm
