// SPDX-License-Identifier: Apache-2.0
#include "switchyard/tune/roof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "switchyard/base/host_buffer.h"
#include "switchyard/tune/timer.h"
#include "tests/support/usage_error.h"

namespace switchyard::tune {
namespace {

constexpr std::size_t kBytes = std::size_t(8) << 20;

TEST(Percentile, IsTheNearestRank) {
  const std::vector<double> samples = {5, 1, 4, 2, 3};
  EXPECT_EQ(percentile(samples, 0), 1);
  EXPECT_EQ(percentile(samples, 0.5), 3);
  EXPECT_EQ(percentile(samples, 0.6), 3);
  EXPECT_EQ(percentile(samples, 0.61), 4);
  EXPECT_EQ(percentile(samples, 0.9), 5);
  EXPECT_THROW(percentile({}, 0.5), InternalError);
}

TEST(RoofMeter, CountsItsSamplesAndLiesBetweenThem) {
  ThreadPool pool(2);
  HostBuffer memory(kBytes);
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte(3));
  RoofMeter meter(pool, CpuIsa::kPortable, memory.bytes());
  EXPECT_EQ(meter.samples(), 0);
  EXPECT_THROW(meter.roof(), InternalError);
  meter.sample(3);
  meter.sample(4);
  EXPECT_EQ(meter.samples(), 7);
  const Roof roof = meter.roof(), all = meter.taken().early(7);
  EXPECT_GT(all.gbps, 0);
  EXPECT_GT(all.gflops, 0);
  EXPECT_GE(roof.gbps, all.gbps) << "a high quantile is not below the median";
  EXPECT_GE(roof.gflops, all.gflops);
  EXPECT_EQ(meter.taken().late(7).gbps, all.gbps) << "the same samples from either end";
  EXPECT_EQ(meter.taken().early(99).gbps, all.gbps) << "more than there are means all";
  RoofMeter other(pool, CpuIsa::kPortable, memory.bytes());
  other.sample(1);
  const Roof first = other.taken().early(1);
  EXPECT_EQ(other.taken().late(1).gflops, first.gflops);
  EXPECT_EQ(other.roof().gflops, first.gflops) << "one sample is the roof";
  other.sample(2);
  EXPECT_EQ(other.taken().early(1).gflops, first.gflops) << "the first sample stays the first";
  EXPECT_NE(other.taken().late(2).gflops, other.taken().early(1).gflops)
      << "late ones are other samples";
  meter.flush();
  EXPECT_EQ(meter.samples(), 7) << "a flush is no sample";
}

// Parts that took turns on one processor do not add up: their work counts over all of the time.
TEST(RateOf, IsTheWorkOverTheWholeTime) {
  const RoofPart one{.work = 6e6, .start_us = 100, .end_us = 200};
  EXPECT_DOUBLE_EQ(rate_of({&one, 1}), 60);
  const std::vector<RoofPart> beside = {one, one};
  EXPECT_DOUBLE_EQ(rate_of(beside), 120);
  const std::vector<RoofPart> in_turn = {one, {.work = 6e6, .start_us = 200, .end_us = 300}};
  EXPECT_DOUBLE_EQ(rate_of(in_turn), 60) << "and not the sum of two times 60";
}

TEST(RoofMeter, RefusesMemoryThatItCannotStream) {
  ThreadPool pool(1);
  HostBuffer memory(4096);
  EXPECT_THAT(test::usage_error_of([&] { RoofMeter(pool, CpuIsa::kPortable, memory.bytes()); }),
              testing::HasSubstr("4096"));
}

}  // namespace
}  // namespace switchyard::tune
