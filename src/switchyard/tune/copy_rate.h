// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "switchyard/base/host_buffer.h"
#include "switchyard/base/thread_pool.h"

namespace switchyard::tune {

/// How fast this machine copies memory that no cache holds, sampled over a session because the
/// rates of a shared machine move.
///
/// Units:   gbps 10^9 bytes copied per second; each byte is read and written, and counts once.
class CopyMeter {
 public:
  /// Copies `bytes` from one buffer to another per sample, by memcpy of the pool's threads.
  /// Errors: UsageError when the memory is refused.
  CopyMeter(ThreadPool& pool, std::size_t bytes);
  /// Takes `count` more samples.
  void sample(int count);
  /// The 0.9 quantile of all samples. Errors: InternalError before the first one.
  double gbps() const;
  /// Medians of the first and of the last `count` samples: their distance is the drift.
  double early(int count) const;
  /// As early().
  double late(int count) const;
  /// Samples taken.
  int samples() const { return int(rates_.size()); }

 private:
  ThreadPool& pool_;
  HostBuffer from_, to_;
  std::vector<double> rates_;
};

}  // namespace switchyard::tune
