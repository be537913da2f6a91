// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "switchyard/api/bench.h"
#include "switchyard/base/host_buffer.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/core/environment.h"
#include "switchyard/tune/roof.h"

namespace switchyard {

/// Bytes that are read before a cold call: twice the last-level cache, from 64 to 512 MiB.
///
/// A virtual machine often reports the whole socket's cache for the few cores that it has, so more
/// would be streamed for a part of a cache that is not ours.
std::size_t cold_flush_bytes(const Environment& env);
/// How many layers of `packed_bytes` each the fresh calls visit in turn: at least two, and together
/// twice the last-level cache, within half of the memory and kMostFreshLayers.
std::int64_t fresh_layers(const Environment& env, std::int64_t packed_bytes);
/// The most layers that fresh calls visit, however small each is.
inline constexpr std::int64_t kMostFreshLayers = 64;
/// Bytes that a sample of the roof streams: four times the last-level cache, from 512 MiB to 1 GiB,
/// at most an eighth of the memory, and never less than cold_flush_bytes().
std::size_t roof_stream_bytes(const Environment& env);

/// The rates of this machine and the buffer that pushes a layer out of its caches.
class BenchSession {
 public:
  /// Samples the roof. `threads` 0: every CPU.
  explicit BenchSession(int threads);

  /// The machine as it was when the session began.
  const Environment& env() const { return env_; }
  /// Samples the roof between two rows.
  void sample();
  /// Reads other memory with every thread.
  void flush() { flusher_.flush(); }
  /// Samples the roof a last time and writes what was measured into `out`.
  void finish(BenchLayerResult& out);

 private:
  Environment env_;
  ThreadPool pool_;
  HostBuffer buffer_;
  tune::RoofMeter meter_, flusher_;
};

}  // namespace switchyard
