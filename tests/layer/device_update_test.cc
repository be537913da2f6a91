// SPDX-License-Identifier: Apache-2.0
// Experts of a layer on cuda: packed there, and replaced between its forwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "switchyard/layer/device_rank.h"
#include "tests/cases/device_case.h"
#include "tests/support/usage_error.h"

namespace switchyard::layer {
namespace {

using checkpoint::ExpertWeights;
using checkpoint::LayerWeights;
using test::Call;
using test::DeviceCall;
using testing::HasSubstr;

constexpr std::int64_t kReplaced = 2;

/// One test, once per leaf of cuda.
class DeviceUpdate : public test::NeedsGpu,
                     public testing::WithParamInterface<const leaves::Leaf*> {
 protected:
  const leaves::Leaf& leaf() const { return *GetParam(); }
  /// Experts with biases that declare their static scales: a calibration would see the new weights
  /// in one layer and not in the other.
  LayerWeights weights(std::uint64_t seed) const {
    Problem p = test::small_problem(leaf());
    p.expert_bias = true;
    LayerWeights w = test::make_weights(p, leaf(), seed);
    if (!formats::is_static(w.activation_quant)) return w;
    w.expert = [source = std::move(w.expert)](std::int64_t e) {
      ExpertWeights x = source(e);
      if (x.gate) x.gate->input_scale = 0.01f / float(1 + e);
      x.up.input_scale = 0.005f / float(1 + e);
      x.down.input_scale = 0.02f + 0.001f * float(e);
      return x;
    };
    return w;
  }
  LayerWeights with_replaced() const {
    LayerWeights w = weights(1);
    w.expert = [old = w.expert, fresh = weights(7).expert](std::int64_t e) {
      return e == kReplaced ? fresh(e) : old(e);
    };
    return w;
  }
  MoeLayer build(LayerWeights w) const {
    BuildOptions o;
    o.device = Device::kCuda;
    return test::build_layer(std::move(w), std::move(o), CpuIsa::kPortable);
  }
};

/// The layer that updates go into. `api` hands out a Layer that is const.
Layer& live(const MoeLayer& layer) { return const_cast<Layer&>(layer.impl()); }

std::vector<std::byte> bytes_of(const ExpertBank& bank) {
  std::vector<std::byte> out(std::size_t(bank.packed_bytes()));
  bank.device_packed->download(out.data());
  return out;
}

TEST_P(DeviceUpdate, EveryExpertIsPackedAsTheHostPacksIt) {
  const MoeLayer layer = build(weights(1));
  const ExpertBank& bank = layer.impl().routed();
  const std::vector<std::byte> got = bytes_of(bank);
  for (std::int64_t e = 0; e < bank.shape.experts; ++e) {
    std::vector<std::byte> want(bank.layout.bytes);
    leaf().ffn->pack(bank.shape, bank.layout, weights(1).expert(e), bank.scales.fc2[std::size_t(e)],
                     want);
    ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin() + e * std::int64_t(want.size())))
        << "expert " << e;
  }
  EXPECT_GT(bank.packing.device, 0u);
  EXPECT_LE(bank.packing.device, std::size_t(1) << 30);
}

TEST_P(DeviceUpdate, TheBitsAreThoseOfALayerBuiltAnew) {
  const MoeLayer layer = build(weights(1)), fresh = build(with_replaced());
  Call call(layer.impl(), 33), other(fresh.impl(), 33);
  DeviceCall device(call), anew(other);
  const std::vector<std::byte> before = device.run(layer.impl());
  DeviceGraph graph(device.stream, [&] { layer.impl().forward(device.args); });
  live(layer).update_expert(kReplaced, weights(7).expert(kReplaced));
  const std::vector<std::byte> want = anew.run(fresh.impl());
  EXPECT_NE(want, before);
  EXPECT_EQ(device.run(layer.impl()), want);
  EXPECT_EQ(bytes_of(layer.impl().routed()), bytes_of(fresh.impl().routed()));
  EXPECT_EQ(layer.impl().routed().scales.fc2, fresh.impl().routed().scales.fc2);
  graph.run();
  EXPECT_EQ(device.out.get(), want) << "a graph from before the update reads the new weights";
  EXPECT_TRUE(test::judge(layer, 33).ok(test::budgets_of(layer))) << "the oracle reads them too";
  live(layer).update_expert(kReplaced, weights(1).expert(kReplaced));
  EXPECT_EQ(device.run(layer.impl()), before) << "and back";
}

TEST_P(DeviceUpdate, WhatDoesNotFitChangesNothing) {
  const MoeLayer layer = build(weights(1));
  Call call(layer.impl(), 12);
  DeviceCall device(call);
  const std::vector<std::byte> want = device.run(layer.impl());
  ExpertWeights bad = weights(7).expert(kReplaced);
  bad.up_bias.pop_back();
  EXPECT_THAT(test::usage_error_of([&] { live(layer).update_expert(kReplaced, bad); }),
              HasSubstr("expert 2"));
  EXPECT_THAT(
      test::usage_error_of([&] { live(layer).update_expert(6, weights(7).expert(kReplaced)); }),
      HasSubstr("outside 0..5"));
  EXPECT_EQ(device.run(layer.impl()), want);
}

TEST_P(DeviceUpdate, ACopyLivesByItself) {
  const MoeLayer layer = build(weights(1));
  const std::unique_ptr<Layer> copy = layer.impl().copy();
  Call call(*copy, 12);
  DeviceCall device(call);
  const std::vector<std::byte> want = device.run(*copy);
  live(layer).update_expert(kReplaced, weights(7).expert(kReplaced));
  EXPECT_EQ(device.run(*copy), want);
  EXPECT_NE(device.run(layer.impl()), want);
}

// Each forward sees the old expert or the new one, never half of it.
TEST_P(DeviceUpdate, ForwardsBesideUpdatesSeeWholeExperts) {
  const MoeLayer layer = build(weights(1)), fresh = build(with_replaced());
  Call call(layer.impl(), 33), other(fresh.impl(), 33);
  DeviceCall device(call), anew(other);
  const std::vector<std::byte> one = device.run(layer.impl()), two = anew.run(fresh.impl());
  std::atomic<int> seen[2] = {};
  std::atomic<bool> wrong = false, stop = false;
  std::jthread forwards([&] {
    while (!stop) {
      const std::vector<std::byte> out = device.run(layer.impl());
      if (out != one && out != two) wrong = true;
      ++seen[out == two];
    }
  });
  for (int i = 0; i < 10; ++i)
    for (std::uint64_t seed : {7, 1}) {
      const int before = seen[seed == 7];
      live(layer).update_expert(kReplaced, weights(seed).expert(kReplaced));
      while (seen[seed == 7] == before && !wrong) std::this_thread::yield();
    }
  stop = true;
  forwards.join();
  EXPECT_FALSE(wrong);
}

INSTANTIATE_TEST_SUITE_P(Leaves, DeviceUpdate, testing::ValuesIn(leaves::all_leaves(Device::kCuda)),
                         test::leaf_name);

}  // namespace
}  // namespace switchyard::layer
