// SPDX-License-Identifier: Apache-2.0
#include "switchyard/tune/roof.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/tune/timer.h"

namespace switchyard::tune {
namespace {

constexpr std::size_t kPiece = std::size_t(1) << 20;

DotRounds widest_dot(CpuIsa isa) {
  if (isa >= CpuIsa::kAmx) return dot_rounds_amx;
  if (isa >= CpuIsa::kAvx512) return dot_rounds_avx512;
  return isa >= CpuIsa::kAvx2 ? dot_rounds_avx2 : dot_rounds_portable;
}

ReadRange widest_read(CpuIsa isa) {
  if (isa >= CpuIsa::kAvx512) return read_range_avx512;
  return isa >= CpuIsa::kAvx2 ? read_range_avx2 : read_range_portable;
}

}  // namespace

RoofPart read_part(ThreadPool& pool, CpuIsa isa, std::span<const std::byte> memory) {
  const ReadRange read = widest_read(isa);
  std::atomic<std::uint64_t> sink{0};
  const std::int64_t pieces = std::int64_t(memory.size() / kPiece);
  const double start = now_us();
  pool.for_each(pieces, [&](std::int64_t i, int) {
    sink.fetch_add(read(memory.data() + std::size_t(i) * kPiece, kPiece),
                   std::memory_order_relaxed);
  });
  return {double(pieces) * double(kPiece), start, now_us()};
}

RoofPart dot_part(ThreadPool& pool, CpuIsa isa) {
  constexpr std::int64_t kRounds = 200000;
  const DotRounds dot = widest_dot(isa);
  std::vector<double> done(std::size_t(pool.size()));
  const double start = now_us();
  pool.for_each(pool.size(), [&](std::int64_t i, int) { done[std::size_t(i)] = dot(kRounds); });
  const double end = now_us();
  double total = 0;
  for (double d : done) total += d;
  return {total, start, end};
}

double rate_of(std::span<const RoofPart> parts) {
  RoofPart all = parts.front();
  all.work = 0;
  for (const RoofPart& p : parts) {
    all.work += p.work;
    all.start_us = std::min(all.start_us, p.start_us);
    all.end_us = std::max(all.end_us, p.end_us);
  }
  return all.work / (all.end_us - all.start_us) * 1e-3;
}

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

RoofMeter::RoofMeter(ThreadPool& pool, CpuIsa isa, std::span<const std::byte> memory)
    : pool_(pool), isa_(isa), memory_(memory) {
  require(memory.size() >= kPiece, "a roof is measured over at least ", kPiece, " bytes, got ",
          memory.size());
}

void RoofMeter::sample(int count) {
  for (int i = 0; i < count; ++i) {
    const RoofPart read = read_part(pool_, isa_, memory_), dot = dot_part(pool_, isa_);
    taken_.add({.gbps = rate_of({&read, 1}), .gflops = rate_of({&dot, 1})});
  }
}

void RoofSamples::add(const Roof& sample) {
  read_.push_back(sample.gbps);
  dot_.push_back(sample.gflops);
}

Roof RoofSamples::high() const {
  constexpr double kHigh = 0.9;
  return {.gbps = percentile(read_, kHigh), .gflops = percentile(dot_, kHigh)};
}

Roof RoofSamples::early(int count) const {
  const auto first = [&](const std::vector<double>& all) {
    return std::vector<double>(all.begin(),
                               all.begin() + std::min<std::int64_t>(count, ssize(all)));
  };
  return {.gbps = percentile(first(read_), 0.5), .gflops = percentile(first(dot_), 0.5)};
}

Roof RoofSamples::late(int count) const {
  const auto last = [&](const std::vector<double>& all) {
    return std::vector<double>(all.end() - std::min<std::int64_t>(count, ssize(all)), all.end());
  };
  return {.gbps = percentile(last(read_), 0.5), .gflops = percentile(last(dot_), 0.5)};
}

void RoofMeter::flush() { read_part(pool_, isa_, memory_); }

}  // namespace switchyard::tune
