// SPDX-License-Identifier: Apache-2.0
// How a layer on cuda is called: beside others, again and again, and wrongly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>

#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/synthetic.h"
#include "tests/cases/device_case.h"
#include "tests/support/usage_error.h"

namespace switchyard::layer {
namespace {

using test::Call;
using test::DeviceCall;
using test::LeafCase;
using testing::HasSubstr;

class DeviceCalls : public test::NeedsGpu {};

const leaves::Leaf& leaf() { return *leaves::find_leaf("none", Device::kCuda).leaf; }

LeafCase base(const leaves::Leaf& of = leaf()) {
  LeafCase c{test::small_problem(of), {}, 9};
  c.options.device = Device::kCuda;
  return c;
}

MoeLayer build(const LeafCase& c, std::uint64_t seed = 1, const leaves::Leaf& of = leaf()) {
  return test::build_layer(test::make_weights(c.problem, of, seed), c.options, CpuIsa::kPortable);
}

TEST_F(DeviceCalls, TwoLayersOnTwoStreamsDoNotMeet) {
  const MoeLayer one = build(base()), other = build(base(), 2);
  Call a(one.impl(), 33), b(other.impl(), 20);
  const std::vector<std::byte> want_a = a.run(), want_b = b.run();
  DeviceCall x(a), y(b);
  for (int i = 0; i < 20; ++i) {
    one.impl().forward(x.args);
    other.impl().forward(y.args);
  }
  x.stream.wait();
  y.stream.wait();
  EXPECT_EQ(x.out.get(), want_a);
  EXPECT_EQ(y.out.get(), want_b);
}

TEST_F(DeviceCalls, ACopyHasTheBitsAndMemoryOfItsOwn) {
  std::optional<MoeLayer> layer = build(base());
  const std::unique_ptr<Layer> copy = layer->impl().copy();
  Call call(*copy, 12);
  Call first(layer->impl(), 12);
  const std::vector<std::byte> want = first.run();
  layer.reset();
  EXPECT_EQ(call.run(), want);
}

TEST_F(DeviceCalls, FortyRepeatsHaveTheSameBits) {
  const MoeLayer layer = build(base());
  for (std::int64_t tokens : {1, 65}) {
    Call call(layer.impl(), tokens);
    DeviceCall device(call);
    const std::vector<std::byte> first = device.run(layer.impl());
    for (int i = 1; i < 40; ++i) ASSERT_EQ(device.run(layer.impl()), first) << i;
  }
}

/// A good call of the layer that was built before.
class AfterAFault : public DeviceCalls {
 protected:
  void SetUp() override {
    DeviceCalls::SetUp();
    if (IsSkipped()) return;
    layer_.emplace(build(base()));
    call_.emplace(layer_->impl(), 12);
    want_ = call_->run();
    device_.emplace(*call_);
  }
  void expect_good_call() { EXPECT_EQ(device_->run(layer_->impl()), want_); }

  std::optional<MoeLayer> layer_;
  std::optional<Call> call_;
  std::optional<DeviceCall> device_;
  std::vector<std::byte> want_;
};

TEST_F(AfterAFault, HostPointersAreRefused) {
  std::vector<std::byte> host(1 << 20);
  std::vector<float> floats(1 << 12);
  std::vector<std::int32_t> ids(1 << 12);
  const std::pair<const char*, std::function<void(ForwardArgs&)>> cases[] = {
      {"hidden", [&](ForwardArgs& a) { a.hidden = host.data(); }},
      {"out", [&](ForwardArgs& a) { a.out = host.data(); }},
      {"workspace",
       [&](ForwardArgs& a) {
         a.workspace = {host.data(), a.workspace.size()};
       }},
      {"logits",
       [&](ForwardArgs& a) {
         a.logits = {floats.data(), a.tokens, 6, 6};
       }},
      {"ids_out", [&](ForwardArgs& a) { a.ids_out = ids.data(); }},
      {"weights_out", [&](ForwardArgs& a) { a.weights_out = floats.data(); }},
      {"routing ids",
       [&](ForwardArgs& a) {
         a.routing = {ids.data(), floats.data(), nullptr};
       }},
  };
  for (const auto& [name, spoil] : cases) {
    host.resize(std::max(host.size(), device_->args.workspace.size()));
    ForwardArgs bad = device_->args;
    spoil(bad);
    EXPECT_THAT(test::usage_error_of([&] { layer_->impl().forward(bad); }),
                HasSubstr(std::string("forward: ") + name + " is no memory of the current GPU"));
    expect_good_call();
  }
}

TEST_F(AfterAFault, MoreMemoryThanTheGpuHasIsRefused) {
  Problem huge = test::small_problem(leaf());
  huge.hidden = 16384;
  huge.inter = 65536;
  huge.routing = make_routing(RoutingMethodType::kRenormalize, 512, 3);
  LayerOptions options = layer_->impl().options();
  try {
    const Layer layer(make_synthetic(huge, 1), options);
    ADD_FAILURE() << "3 TB fitted";
  } catch (const DeviceError& e) {
    EXPECT_THAT(e.what(), HasSubstr("the packed experts need"));
    EXPECT_THAT(e.what(), HasSubstr("512 experts of"));
  }
  expect_good_call();
  EXPECT_THROW(DeviceMemory(std::size_t(1) << 50), DeviceError);
  expect_good_call();
}

TEST_F(AfterAFault, ACaptureThatThrowsLeavesTheStreamUsable) {
  ForwardArgs bad = device_->args;
  bad.workspace = bad.workspace.first(64);
  EXPECT_THAT(test::usage_error_of(
                  [&] { DeviceGraph(device_->stream, [&] { layer_->impl().forward(bad); }); }),
              HasSubstr("workspace"));
  expect_good_call();
  DeviceGraph graph(device_->stream, [&] { layer_->impl().forward(device_->args); });
  graph.run();
  EXPECT_EQ(device_->out.get(), want_);
}

TEST_F(DeviceCalls, NanLogitsAndExtremesOfRouting) {
  const MoeLayer layer = build(base());
  Call call(layer.impl(), 9);
  const std::int64_t e = 6;
  std::vector<float> logits(std::size_t(9 * e), NAN);
  for (std::int64_t t = 1; t < 9; ++t) logits[std::size_t(t * e + t % e)] = float(t);
  logits[std::size_t(2 * e)] = HUGE_VALF;
  std::vector<std::int32_t> ids(27, -7);
  std::vector<float> weights(27, NAN);
  call.run([&](ForwardArgs& a) {
    a.logits = {logits.data(), 9, e, e};
    a.ids_out = ids.data();
    a.weights_out = weights.data();
  });
  for (double v : call.values()) EXPECT_TRUE(std::isfinite(v));
  EXPECT_EQ(ids[0], 0) << "all NaN: the lowest ids at weight 0";
  EXPECT_EQ(weights[0], 0);
  EXPECT_EQ(ids[3], 1);
  for (std::int64_t t = 0; t < 9; ++t) {
    const std::int32_t* row = ids.data() + 3 * t;
    EXPECT_TRUE(row[0] != row[1] && row[1] != row[2] && row[0] != row[2])
        << "distinct, token " << t;
  }
}

}  // namespace
}  // namespace switchyard::layer
