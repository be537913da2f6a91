// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/base/thread_pool.h"
#include "switchyard/core/environment.h"

namespace switchyard::tune {

/// What this machine reaches at best, measured and not read off a brochure.
///
/// Units:   gbps 10^9 bytes read per second; gflops 10^9 multiplies and adds of the tier's widest
/// dot
///          product per second (bf16 tiles on AMX, bf16 pairs on AVX-512, fp32 elsewhere).
struct Roof {
  double gbps = 0;
  double gflops = 0;
};

/// What one pool did of a sample that several take together, and when.
///
/// Units:   work in bytes read, or in multiplies plus adds; µs of now_us(), which the processes of
/// a
///          host have in common.
struct RoofPart {
  double work = 0;
  double start_us = 0;
  double end_us = 0;
};

/// The pool's threads stream `memory` once, or run the tier's widest dot product.
RoofPart read_part(ThreadPool& pool, CpuIsa isa, std::span<const std::byte> memory);
/// As read_part().
RoofPart dot_part(ThreadPool& pool, CpuIsa isa);
/// The rate of all parts together: their work over the time from the first start to the last end.
/// Where they share processors it is the processors' rate, however many parts there are.
/// Units:   10^9 per second.
double rate_of(std::span<const RoofPart> parts);

/// The samples of a session, in the order in which they were taken.
class RoofSamples {
 public:
  /// One more sample of both rates.
  void add(const Roof& sample);
  /// The 0.9 quantile of each rate. Errors: InternalError before the first sample.
  Roof high() const;
  /// The medians of the first and of the last `count` samples: their distance is the drift.
  Roof early(int count) const;
  /// As early().
  Roof late(int count) const;
  /// Samples taken.
  int count() const { return int(read_.size()); }

 private:
  std::vector<double> read_, dot_;
};

/// The roof of a whole session: sampled before, between and after what is measured, because the
/// rates of a shared machine move.
///
/// The session's roof is a high quantile of all samples: one lucky sample does not set it, and a
/// share of it can exceed 1 only where the typical call beats what nine samples of ten reach.
class RoofMeter {
 public:
  /// `memory` is streamed by every sample; the pool's threads do it. Both must outlive this.
  RoofMeter(ThreadPool& pool, CpuIsa isa, std::span<const std::byte> memory);
  /// Takes `count` more samples of both rates.
  void sample(int count);
  /// The roof so far. Errors: InternalError before the first sample.
  Roof roof() const { return taken_.high(); }
  /// What was sampled so far.
  const RoofSamples& taken() const { return taken_; }
  /// Samples taken.
  int samples() const { return taken_.count(); }
  /// Streams the memory once, which leaves nothing else in the caches.
  void flush();

 private:
  ThreadPool& pool_;
  CpuIsa isa_;
  std::span<const std::byte> memory_;
  RoofSamples taken_;
};

/// Reads every 64-byte line of a range; returns a value that depends on all of it.
using ReadRange = std::uint64_t (*)(const std::byte* data, std::size_t bytes);
/// Runs `rounds` rounds of independent dot products; returns multiplies plus adds done.
using DotRounds = double (*)(std::int64_t rounds);

/// The tiers' own loops.
std::uint64_t read_range_portable(const std::byte* data, std::size_t bytes);
/// As read_range_portable, with 256-bit loads.
std::uint64_t read_range_avx2(const std::byte* data, std::size_t bytes);
/// As read_range_portable, with 512-bit loads.
std::uint64_t read_range_avx512(const std::byte* data, std::size_t bytes);
/// fp32 multiply and add in plain C++.
double dot_rounds_portable(std::int64_t rounds);
/// fp32 fused multiply-adds.
double dot_rounds_avx2(std::int64_t rounds);
/// bf16 pair dot products.
double dot_rounds_avx512(std::int64_t rounds);
/// bf16 tile products.
double dot_rounds_amx(std::int64_t rounds);

}  // namespace switchyard::tune
