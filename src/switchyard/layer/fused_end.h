// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/base/host_buffer.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/comm/fused_allreduce.h"
#include "switchyard/core/ending.h"
#include "switchyard/core/problem.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

namespace switchyard::layer {

/// What a rank's experts made of the tokens, before finalize.
///
/// Shapes:  ids, weights [tokens, k]: local experts, -1 for others' and then 0; shared [tokens, H]
///          or null.
struct LocalOutput {
  std::int64_t tokens = 0;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  float factor = 1;
  const float* shared = nullptr;
};

/// What stands behind a layer, as its fused all-reduce takes it.
ops::NormArgs norm_args(const BehindLayer& behind);

/// One rank's end of a layer by a fused all-reduce: expert rows and the shard of the shared expert
/// are rounded once to the dtype, then the all-reduce's contract holds (docs/allreduce.md).
class FusedEnd {
 public:
  /// What it is built for.
  struct Args {
    Ending ending = Ending::kFused;
    std::int64_t capacity = 0, held = 0;  // tokens of a call, experts of this rank
    bool fuses_shared = false;            // shared experts run as choices
    Dtype dtype = Dtype::kBf16;
    CpuIsa isa = CpuIsa::kPortable;
    ThreadPool* pool = nullptr;

    bool operator==(const Args&) const = default;
  };
  /// Whether such an end serves the problem. Errors: UsageError that names what it does not.
  static void check(const Problem& problem, const Args& args);
  /// Collective. Errors: UsageError on every rank for what the ending does not serve; PeerError.
  FusedEnd(comm::Group& group, const Problem& problem, const Args& args);

  /// Where the experts write their unweighted rows [capacity * k, H] in the dtype.
  void* rows() { return rows_.bytes().data(); }
  /// Finishes a call. Collective; allocates nothing. Errors: as AllReduceWorkspace::run().
  void finish(const LocalOutput& local, const BehindLayer& behind);
  /// Finishes a call as a plain layer ends: with no residual, and the sum alone written.
  ///
  /// Shapes:  out [tokens] rows `stride` elements apart.
  void finish_plain(const LocalOutput& local, void* out, std::int64_t stride);

 private:
  void allocate();
  void weigh(const LocalOutput& local);
  void spread(const LocalOutput& local);

  Problem problem_;
  Args args_;
  comm::AllReduceWorkspace workspace_;
  HostBuffer rows_, shared_, dense_, plain_, nothing_;  // nothing_: zeros [capacity, H]
  std::vector<std::int32_t> index_;
  std::vector<float> weights_, scales_;
};

}  // namespace switchyard::layer
