// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/api/bench_allreduce.h"
#include "switchyard/comm/group.h"

namespace switchyard::api {

/// One rank's part of a row between GPUs, rank r on GPU r; rank 0 writes the row. Calls are
/// replayed from a graph; what they are held against is NCCL's all-reduce between separate kernels.
/// Errors: DeviceError, UsageError, PeerError.
void run_device_row(comm::Group& group, const BenchAllReduceOptions& options, std::int64_t tokens,
                    AllReduceRow& row);

}  // namespace switchyard::api
