// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_session.h"

#include <algorithm>

#include "switchyard/api/machine.h"
#include "switchyard/base/text.h"

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

BenchSession::BenchSession(int threads)
    : env_(environment()),
      pool_(threads > 0 ? threads : std::clamp(env_.num_cpus, 1, 1024)),
      buffer_(roof_stream_bytes(env_)),
      meter_(pool_, running_tier(env_), touched(buffer_)),
      flusher_(pool_, running_tier(env_), buffer_.bytes().first(cold_flush_bytes(env_))) {
  meter_.sample(kEdgeSamples);
}

void BenchSession::sample() { meter_.sample(kRowSamples); }

void BenchSession::finish(BenchLayerResult& out) {
  meter_.sample(kEdgeSamples);
  const auto copy = [](const tune::Roof& r) { return MeasuredRoof{r.gbps, r.gflops}; };
  out.roof = copy(meter_.roof());
  out.roof_start = copy(meter_.early(kEdgeSamples));
  out.roof_end = copy(meter_.late(kEdgeSamples));
  out.roof_samples = meter_.samples();
  out.flush_bytes = std::int64_t(cold_flush_bytes(env_));
  if (out.flush_bytes < env_.l3_bytes)
    out.notices.push_back(cat("cold calls follow a read of ", out.flush_bytes / kMiB,
                              " MiB, less than the last-level cache of ", env_.l3_bytes / kMiB,
                              " MiB that the machine reports"));
}

}  // namespace switchyard
