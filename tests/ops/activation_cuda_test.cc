// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "switchyard/base/device_memory.h"
#include "switchyard/base/errors.h"
#include "switchyard/base/float_math.h"
#include "switchyard/ops/activation/activation.h"
#include "tests/support/activation_case.h"

namespace switchyard::ops {
namespace {

using test::ActivationCase;

/// A copy of a host vector on the device.
template <class T>
struct OnDevice {
  explicit OnDevice(const std::vector<T>& host) : memory(host.size() * sizeof(T)) {
    memory.upload(host.data());
  }
  T* data() const { return static_cast<T*>(memory.data()); }
  DeviceMemory memory;
};

/// Runs the CUDA twin on device copies of the case and brings `out` back, padding included.
void run_cuda(ActivationCase& c) {
  const OnDevice<float> gate(c.gate), up(c.up), out(c.out);
  const OnDevice<std::int32_t> ids(c.expert_ids);
  const OnDevice<ActivationParams> params(c.params);
  ActivationArgs args = c.args();
  args.gate.data = args.gate.data ? gate.data() : nullptr;
  args.up.data = up.data();
  args.expert_ids = ids.data();
  args.params = params.data();
  args.out.data = out.data();
  activation_cuda(args, Stream{});
  out.memory.download(c.out.data());
}

/// Skips with the device's own words where there is no GPU.
class ActivationCuda : public testing::Test {
 protected:
  void SetUp() override {
    try {
      DeviceMemory(1);
    } catch (const DeviceError& e) {
      GTEST_SKIP() << "needs a CUDA device: " << e.what();
    }
  }
};

TEST_F(ActivationCuda, MatchesOracleForEveryKindAndShape) {
  for (const auto& kind : test::kActivationKinds)
    for (const auto& [rows, inter] : test::kActivationShapes) {
      SCOPED_TRACE(describe(kind.activation) + " rows " + std::to_string(rows) + " inter " +
                   std::to_string(inter));
      ActivationCase c(kind.activation, rows, inter);
      const std::vector<float> want = c.oracle();
      for (int call = 0; call < 3; ++call) {
        c.poison();
        run_cuda(c);
        EXPECT_LE(test::worst_error(c.result(), want), kind.bound);
        EXPECT_TRUE(c.padding_is_intact());
      }
    }
}

TEST_F(ActivationCuda, HasTheCpuTwinsBits) {
  for (const auto& kind : test::kActivationKinds) {
    ActivationCase c(kind.activation, 9, 333);
    activation_cpu(c.args(), 0, c.rows);
    const std::vector<float> cpu = c.result();
    c.poison();
    run_cuda(c);
    const std::vector<float> cuda = c.result();
    for (std::size_t i = 0; i < cpu.size(); ++i)
      ASSERT_EQ(bits_of(cuda[i]), bits_of(cpu[i])) << describe(kind.activation) << " at " << i;
  }
}

TEST_F(ActivationCuda, BoundCatchesGateAndUpSwapped) {
  ActivationCase c(Swiglu{}, 5, 96);
  const std::vector<float> want = c.oracle();
  std::swap(c.gate, c.up);
  run_cuda(c);
  EXPECT_GT(test::worst_error(c.result(), want), 1000 * test::kActivationKinds[0].bound);
}

TEST_F(ActivationCuda, NanInGivesNanOutAndSkippedRowsAreZero) {
  for (const auto& kind : test::kActivationKinds) {
    ActivationCase c(kind.activation, 4, 40);
    std::fill(c.up.begin(), c.up.end(), NAN);
    run_cuda(c);
    const std::vector<float> got = c.result();
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(i < 120 ? std::isnan(got[i]) : bits_of(got[i]) == 0) << i;
  }
}

TEST_F(ActivationCuda, AnIdOutsideTheTableCountsAsSkipped) {
  ActivationCase c(SiTu{.gate_softcap = PerExpert({1, 2, 3})}, 3, 17);
  c.expert_ids = {0, std::int32_t(test::kActivationExperts), -7};
  run_cuda(c);
  const std::vector<float> got = c.result();
  EXPECT_NE(got[0], 0);
  for (std::size_t i = 17; i < got.size(); ++i) EXPECT_EQ(bits_of(got[i]), 0u);
}

TEST_F(ActivationCuda, AGoodCallFollowsARefusedOne) {
  ActivationCase c(Swiglu{}, 2, 9);
  ActivationArgs bad = c.args();
  bad.up.cols = 8;
  EXPECT_THROW(activation_cuda(bad, Stream{}), UsageError);
  const std::vector<float> want = c.oracle();
  run_cuda(c);
  EXPECT_LE(test::worst_error(c.result(), want), test::kActivationKinds[0].bound);
}

TEST(ActivationCudaArgs, AreCheckedInEveryBuild) {
  ActivationCase c(Swiglu{}, 2, 9);
  ActivationArgs bad = c.args();
  bad.up.cols = 8;
  EXPECT_THROW(activation_cuda(bad, Stream{}), UsageError);
}

}  // namespace
}  // namespace switchyard::ops
