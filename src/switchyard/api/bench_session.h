// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "switchyard/api/bench.h"
#include "switchyard/base/device.h"
#include "switchyard/core/environment.h"
#include "switchyard/resolve/probe_cuda.h"
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
/// The same on a GPU, whose calls run in graphs: together 32 times its L2 cache, so that what is
/// left there of earlier calls is a small part of all.
std::int64_t fresh_device_layers(const resolve::GpuFacts& gpu, std::int64_t packed_bytes);
/// The most layers that fresh calls visit, however small each is.
inline constexpr std::int64_t kMostFreshLayers = 64, kMostFreshDeviceLayers = 24;
/// Bytes that a sample of the roof streams: four times the last-level cache, from 512 MiB to 1 GiB,
/// at most an eighth of the memory, and never less than cold_flush_bytes().
std::size_t roof_stream_bytes(const Environment& env);

/// The rates of the machine that runs the layers, and the buffer that pushes one out of the CPU's
/// caches.
class BenchSession {
 public:
  /// Samples the roof of the CPU's `threads`, 0 for every CPU, or of the GPU.
  /// Errors: DeviceError where the GPU refuses.
  BenchSession(Device device, int threads);
  ~BenchSession();

  /// The machine as it was when the session began.
  const Environment& env() const { return env_; }
  /// Samples the roof between two rows, or two parts of one; what it was now.
  tune::Roof sample();
  /// Reads other memory with every thread of the CPU.
  void flush();
  /// How many layers of `packed_bytes` each the fresh calls of this session visit.
  std::int64_t layers_for(std::int64_t packed_bytes) const;
  /// Bytes of the last-level cache that the calls should not find their weights in.
  std::int64_t cache_bytes() const;
  /// Samples the roof a last time and writes what was measured into `out`.
  void finish(BenchLayerResult& out);

 private:
  struct Cpu;
  struct Gpu;
  const tune::RoofSamples& taken() const;

  Environment env_;
  std::unique_ptr<Cpu> cpu_;  // one of both
  std::unique_ptr<Gpu> gpu_;
};

}  // namespace switchyard
