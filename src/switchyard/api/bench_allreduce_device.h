// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/api/bench_allreduce.h"
#include "switchyard/comm/group.h"
#include "switchyard/resolve/probe_cuda.h"

namespace switchyard::api {

/// Whether the first `ranks` GPUs of a machine can be joined: built for, there, and each able to
/// address the others. Pure.
Eligibility gpus_join(const Environment& env, const std::vector<resolve::PeerGap>& gaps,
                      std::int64_t ranks);

/// One rank's part of a row between GPUs, rank r on GPU r; rank 0 writes the row. Calls are
/// replayed from a graph; what they are held against is NCCL's all-reduce between separate kernels.
/// Errors: DeviceError, UsageError, PeerError.
void run_device_row(comm::Group& group, const BenchAllReduceOptions& options, std::int64_t tokens,
                    AllReduceRow& row);

}  // namespace switchyard::api
