// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_session.h"

#include <algorithm>
#include <span>

#include "switchyard/api/machine.h"
#include "switchyard/base/check.h"
#include "switchyard/base/host_buffer.h"
#include "switchyard/base/text.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/tune/device_roof.h"

namespace switchyard {
namespace {

constexpr std::int64_t kMiB = std::int64_t(1) << 20;
constexpr std::int64_t kLeastFlush = 64 * kMiB, kMostFlush = 512 * kMiB;
constexpr std::int64_t kLeastStream = 512 * kMiB, kMostStream = 1024 * kMiB;
constexpr int kEdgeSamples = 5, kRowSamples = 2;

// Untouched pages are all the same zero page, which no cache feels.
std::span<const std::byte> touched(HostBuffer& buffer) {
  std::fill(buffer.bytes().begin(), buffer.bytes().end(), std::byte(1));
  return buffer.bytes();
}

}  // namespace

std::size_t cold_flush_bytes(const Environment& env) {
  const std::int64_t twice = std::clamp(2 * env.l3_bytes, kLeastFlush, kMostFlush);
  return std::size_t(std::min(twice, std::max(kLeastFlush, env.memory_bytes / 8)) / kMiB * kMiB);
}

// A second look at a smaller buffer would partly find it in the cache.
std::size_t roof_stream_bytes(const Environment& env) {
  const std::int64_t most = std::max(kLeastFlush, env.memory_bytes / 8);
  const std::int64_t wanted = std::clamp(4 * env.l3_bytes, kLeastStream, kMostStream);
  return std::size_t(std::min(wanted, most) / kMiB * kMiB);
}

std::int64_t fresh_layers(const Environment& env, std::int64_t packed_bytes) {
  const std::int64_t wanted = (2 * env.l3_bytes + packed_bytes - 1) / packed_bytes;
  const std::int64_t fitting = env.memory_bytes == 0
                                   ? wanted
                                   : std::max<std::int64_t>(1, env.memory_bytes / 2 / packed_bytes);
  return std::min(fitting, std::clamp<std::int64_t>(wanted, 2, kMostFreshLayers));
}

std::int64_t fresh_device_layers(const resolve::GpuFacts& gpu, std::int64_t packed_bytes) {
  constexpr std::int64_t kCaches = 32;
  const std::int64_t wanted = (kCaches * gpu.l2_bytes + packed_bytes - 1) / packed_bytes;
  const std::int64_t fitting = std::max<std::int64_t>(1, gpu.memory_bytes / 2 / packed_bytes);
  return std::min(fitting, std::clamp<std::int64_t>(wanted, 2, kMostFreshDeviceLayers));
}

struct BenchSession::Cpu {
  Cpu(const Environment& env, int threads)
      : pool(threads > 0 ? threads : std::clamp(env.num_cpus, 1, 1024)),
        buffer(roof_stream_bytes(env)),
        meter(pool, running_tier(env), touched(buffer)),
        flusher(pool, running_tier(env), buffer.bytes().first(cold_flush_bytes(env))) {}

  ThreadPool pool;
  HostBuffer buffer;
  tune::RoofMeter meter, flusher;
};

struct BenchSession::Gpu {
  resolve::GpuFacts facts = resolve::probe_gpus();
  tune::DeviceRoofMeter meter;
};

BenchSession::BenchSession(Device device, int threads) : env_(environment()) {
  if (device == Device::kCpu) {
    cpu_ = std::make_unique<Cpu>(env_, threads);
    cpu_->meter.sample(kEdgeSamples);
  } else {
    gpu_ = std::make_unique<Gpu>();
    gpu_->meter.sample(kEdgeSamples);
  }
}

BenchSession::~BenchSession() = default;

tune::Roof BenchSession::sample() {
  if (cpu_) cpu_->meter.sample(kRowSamples);
  if (gpu_) gpu_->meter.sample(kRowSamples);
  return taken().late(kRowSamples);
}

void BenchSession::flush() {
  ensure(cpu_ != nullptr, "bench: a flush is of the CPU's caches");
  cpu_->flusher.flush();
}

std::int64_t BenchSession::layers_for(std::int64_t packed_bytes) const {
  return gpu_ ? fresh_device_layers(gpu_->facts, packed_bytes) : fresh_layers(env_, packed_bytes);
}

std::int64_t BenchSession::cache_bytes() const {
  return gpu_ ? gpu_->facts.l2_bytes : env_.l3_bytes;
}

const tune::RoofSamples& BenchSession::taken() const {
  return cpu_ ? cpu_->meter.taken() : gpu_->meter.taken();
}

void BenchSession::finish(BenchLayerResult& out) {
  if (cpu_) cpu_->meter.sample(kEdgeSamples);
  if (gpu_) gpu_->meter.sample(kEdgeSamples);
  const auto copy = [](const tune::Roof& r) { return MeasuredRoof{r.gbps, r.gflops}; };
  out.roof = copy(taken().high());
  out.roof_start = copy(taken().early(kEdgeSamples));
  out.roof_end = copy(taken().late(kEdgeSamples));
  out.roof_samples = taken().count();
  if (gpu_) return;
  out.flush_bytes = std::int64_t(cold_flush_bytes(env_));
  if (out.flush_bytes < env_.l3_bytes)
    out.notices.push_back(cat("cold calls follow a read of ", out.flush_bytes / kMiB,
                              " MiB, less than the last-level cache of ", env_.l3_bytes / kMiB,
                              " MiB that the machine reports"));
}

}  // namespace switchyard
