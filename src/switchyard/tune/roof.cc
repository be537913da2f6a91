// SPDX-License-Identifier: Apache-2.0
#include "switchyard/tune/roof.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "switchyard/base/host_buffer.h"
#include "switchyard/tune/timer.h"

namespace switchyard::tune {
namespace {

constexpr std::size_t kSmallest = std::size_t(64) << 20, kOwn = std::size_t(512) << 20;
constexpr std::size_t kPiece = std::size_t(1) << 20;
constexpr int kPasses = 5;

double read_rate(ThreadPool& pool, ReadRange read, std::span<const std::byte> memory) {
  std::atomic<std::uint64_t> sink{0};
  const std::int64_t pieces = std::int64_t(memory.size() / kPiece);
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double start = now_us();
    pool.for_each(pieces, [&](std::int64_t i, int) {
      sink.fetch_add(read(memory.data() + std::size_t(i) * kPiece, kPiece),
                     std::memory_order_relaxed);
    });
    best = std::max(best, double(pieces) * double(kPiece) / (now_us() - start) * 1e-3);
  }
  return best;
}

double dot_rate(ThreadPool& pool, DotRounds dot) {
  constexpr std::int64_t kRounds = 200000;
  std::vector<double> done(std::size_t(pool.size()));
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double start = now_us();
    pool.for_each(pool.size(), [&](std::int64_t i, int) { done[std::size_t(i)] = dot(kRounds); });
    double total = 0;
    for (double d : done) total += d;
    best = std::max(best, total / (now_us() - start) * 1e-3);
  }
  return best;
}

DotRounds widest_dot(CpuIsa isa) {
  if (isa >= CpuIsa::kAmx) return dot_rounds_amx;
  return isa >= CpuIsa::kAvx512 ? dot_rounds_avx512 : dot_rounds_portable;
}

}  // namespace

std::uint64_t read_range_portable(const std::byte* data, std::size_t bytes) {
  std::uint64_t sum[4] = {};
  for (std::size_t i = 0; i + 32 <= bytes; i += 32) {
    std::uint64_t v[4];
    std::memcpy(v, data + i, 32);
    for (int j = 0; j < 4; ++j) sum[j] += v[j];
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

double dot_rounds_portable(std::int64_t rounds) {
  constexpr int kLanes = 32;
  float sum[kLanes] = {};
  volatile float seed = 0.5f;
  const float x = seed, y = seed * 0.25f;
  for (std::int64_t r = 0; r < rounds; ++r)
    for (int i = 0; i < kLanes; ++i) sum[i] = sum[i] * x + y;
  float total = 0;
  for (float s : sum) total += s;
  volatile float keep = total;
  (void)keep;
  return double(rounds) * kLanes * 2;
}

Roof measure_roof(ThreadPool& pool, CpuIsa isa, std::span<const std::byte> memory) {
  const bool wide = isa >= CpuIsa::kAvx512;
  HostBuffer own;
  if (memory.size() < kSmallest) {
    own = HostBuffer(kOwn);
    std::memset(own.data(), 1, kOwn);
    memory = own.bytes();
  }
  return {.gbps = read_rate(pool, wide ? read_range_avx512 : read_range_portable, memory),
          .gflops = dot_rate(pool, widest_dot(isa))};
}

}  // namespace switchyard::tune
