// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>

#include "switchyard/base/device.h"
#include "switchyard/base/device_memory.h"
#include "switchyard/comm/allreduce_layout.h"
#include "switchyard/comm/group.h"
#include "switchyard/comm/peer_memory.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"
#include "switchyard/ops/allreduce_norm/allreduce_peers.h"

namespace switchyard::comm {

/// What a call costs between GPUs: the way there and back of a word, and the rate at which one GPU
/// writes into others.
struct AllReduceCost {
  double latency_us = 2, gbps = 370;
};
/// The cheaper strategy for a shape by that cost; for two ranks, where both send as much, one_shot
/// up to 2 MB and two_shot beyond, as measured (docs/benchmarks.md). Pure.
ops::AllReduceStrategy cheaper_strategy(const ops::CallShape& shape, std::int64_t ranks,
                                        const AllReduceCost& cost);

/// How a workspace between GPUs is built beside its capacity; equal on all ranks but for
/// geometry and pause.
struct DeviceAllReduceOptions {
  std::optional<AllReduceCost> cost{};  // none: measured where a choice depends on it
  ops::AllReduceGeometry geometry{};
  std::chrono::nanoseconds pause{0};  // a test's: each call stands still behind its sending
  // Several ranks may sit on one GPU, each with its part of the processors: for tests of more ranks
  // than GPUs. Whatever waits for the whole GPU, such as cudaFree, then waits for the peers' calls
  // too; give each rank a stream of its own, and CUDA as many connections as there are streams.
  bool shared_device = false;
};

/// Throws what rank `rank` has to say of a trouble on its GPU.
/// Errors: PeerError or UsageError, as DeviceAllReduce has them.
[[noreturn]] void throw_trouble(const ops::AllReduceStatus& status, int rank);

/// Bytes of GPU memory that a workspace takes on each rank.
std::int64_t device_allreduce_bytes(const AllReduceCapacity& capacity);

/// One rank's end of fused all-reduces between GPUs over peer memory. Each rank uses the GPU that
/// is current when it builds this, and makes its calls on it. Calls are collective, in the same
/// order on all ranks, and enqueue one kernel: nothing is allocated, the host does not wait, and a
/// call can be captured into a graph. Ranks may mix eager calls and graphs as long as the GPUs see
/// the same calls in the same order.
///
/// Bits are those of AllReduceWorkspace, but for the sign and payload of a NaN. Numbers of a call
/// that all ranks must pass alike are compared on the device.
/// Errors:  UsageError from run() for arguments that break their rules or exceed the capacity.
///          What goes wrong on the device is told by the next check(), wait() or run(): PeerError
///          that names rank, peer and token when a peer did not come in the group's deadline;
///          UsageError when the ranks' calls differ or an index names no row. Any of them aborts
///          the group, and each of the three throws PeerError when a peer has aborted it. From the
///          first trouble on nothing is sent any more: calls that are queued, and graphs, end
///          without an output, and every later call throws the first trouble again. The GPU's
///          context stays usable: form a new group and workspace.
class DeviceAllReduce {
 public:
  /// Collective. Errors: UsageError on every rank when the capacities differ, one is illegal, a
  ///         GPU cannot reach another, ranks share one unasked or memory is refused; PeerError.
  DeviceAllReduce(Group& group, const AllReduceCapacity& capacity,
                  const DeviceAllReduceOptions& options = {});
  /// Waits for what is queued. It gives up at once where the group was aborted before; else the
  /// GPU's waits last until the deadline, whoever aborts meanwhile: call wait() first, which looks.
  ~DeviceAllReduce();
  DeviceAllReduce(const DeviceAllReduce&) = delete;
  DeviceAllReduce& operator=(const DeviceAllReduce&) = delete;

  /// Enqueues one fused all-reduce. Pointers, those of scales too, lie on this rank's GPU.
  void run(const ops::AllReduceCall& call, Stream stream);
  /// Waits for what is queued on the stream, and throws what went wrong in it.
  void wait(Stream stream);
  /// Throws what has gone wrong on the device so far; does not wait.
  void check();

  /// What was built.
  const AllReduceCapacity& capacity() const { return capacity_; }
  /// By what kAuto is decided, the same on all ranks.
  const AllReduceCost& cost() const { return cost_; }
  /// How a call of this shape runs.
  ops::AllReduceStrategy strategy(const ops::CallShape& shape) const;

 private:
  void measure(Stream stream);
  void enqueue(const ops::AllReduceCall& call, Stream stream);
  bool heed_abort();
  ops::AllReduceStatus& status() const;
  template <class F>
  void or_dead(F&& work);

  Group& group_;
  AllReduceCapacity capacity_;
  DeviceAllReduceOptions options_;
  AllReduceCost cost_;
  std::optional<DeviceMemory> control_;
  std::optional<HostWords> status_;
  std::optional<PeerMemory> memory_;  // last, so that it goes first: it waits for the kernels
  ops::AllReducePeers peers_;
  std::exception_ptr trouble_;  // the first
};

/// The families by one name. Errors: as DeviceAllReduce::run().
void allreduce_fusion(DeviceAllReduce& workspace, const ops::AllReduceArgs& args, Stream stream);
/// As the first.
void allreduce_fusion(DeviceAllReduce& workspace, const ops::ARResidualRMSNormArgs& args,
                      Stream stream);
/// As the first.
void allreduce_fusion(DeviceAllReduce& workspace, const ops::MoEReductionArgs& args, Stream stream);
/// As the first.
void allreduce_fusion(DeviceAllReduce& workspace, const ops::MoEFinalizeArgs& args, Stream stream);

}  // namespace switchyard::comm
