// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "switchyard/base/arena.h"
#include "switchyard/base/device_memory.h"
#include "switchyard/comm/device_allreduce.h"
#include "switchyard/layer/fused_end.h"
#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// One rank of a layer on GPUs whose ranks hold the same tokens (tep, ttp): the part's own forward
/// and the all-reduce behind it, all enqueued on the caller's stream.
///
/// Contract:   that of RankLayer. Ending::kPlain: the share, rounded once to the dtype, is the
///             contribution to pattern 0. kFused: expert rows and the shared shard, each rounded
///             once, are those of pattern 7; kReduce: the same of pattern 6.
/// Errors:     what goes wrong on the device is told by the next forward(), wait() or check(), as
///             comm::DeviceAllReduce has it.
class DeviceEnd {
 public:
  /// What it is built for; equal on all ranks, `local` apart.
  ///
  /// Shapes:  local [ids]: this rank's number of each id that routing gives, or -1 where another
  ///          rank adds it.
  struct Args {
    Ending ending = Ending::kPlain;
    std::int64_t capacity = 0;  // tokens of a call
    std::vector<std::int32_t> local;
    bool shared_device = false;  // as comm::DeviceAllReduceOptions has it: for tests
  };
  /// Collective; the current GPU is the rank's. Errors: UsageError on every rank for what the
  /// ending does not serve, GPUs that cannot reach one another, or memory that is refused;
  /// PeerError.
  DeviceEnd(comm::Group& group, const Layer& part, const Args& args);

  /// Bytes of device memory that a forward of up to the capacity's tokens needs.
  std::size_t workspace_bytes() const;
  /// Enqueues a call of the part; with `behind`, args.out is not written. Collective; allocates
  /// nothing, waits for nothing, and can be captured into a graph.
  /// Errors: UsageError for a broken argument, DeviceError when a launch fails, PeerError.
  void forward(const ForwardArgs& args, const BehindLayer* behind);
  /// Waits for what is queued on the stream, and throws what went wrong in it.
  void wait(Stream stream) { reduce_->wait(stream); }
  /// Throws what has gone wrong on the device so far.
  void check() { reduce_->check(); }

 private:
  struct Scratch;
  Scratch take_scratch(Arena& arena) const;
  void run_experts(const ForwardArgs& args, const Scratch& scratch, float factor) const;
  ops::MoeFinalizeSource rows_by_choice(const ForwardArgs& args, const Scratch& scratch,
                                        float factor) const;
  ops::MoeReductionSource rows_by_expert(const ForwardArgs& args, const Scratch& scratch,
                                         float factor) const;
  void finish(const ForwardArgs& args, const Scratch& scratch, float factor,
              const BehindLayer& behind);

  const Layer& part_;
  Args args_;
  // nothing_: zeros [capacity, H], where the ending has a norm.
  std::optional<DeviceMemory> local_, nothing_;
  std::optional<comm::DeviceAllReduce> reduce_;
};

}  // namespace switchyard::layer
