// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "switchyard/base/device.h"
#include "switchyard/base/dtype.h"
#include "switchyard/comm/group.h"

namespace switchyard::comm {

/// The ranks of a group in a communicator of NCCL, whose library is opened when it is first asked
/// for: what a benchmark holds the fused all-reduce against.
class NcclSum {
 public:
  /// Collective; each rank uses its current GPU. Errors: DeviceError on every rank when the library
  ///         is not found on one, or refuses; PeerError.
  explicit NcclSum(Group& group);
  ~NcclSum();
  NcclSum(const NcclSum&) = delete;
  NcclSum& operator=(const NcclSum&) = delete;

  /// Enqueues out = the sum of all ranks' `in`. Shapes: [count] of `dtype`; out may be in.
  void all_reduce(const void* in, void* out, std::int64_t count, Dtype dtype, Stream stream);
  /// E.g. "NCCL 2.27.7".
  const std::string& version() const { return version_; }

 private:
  void* communicator_ = nullptr;
  std::string version_;
};

}  // namespace switchyard::comm
