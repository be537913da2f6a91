// SPDX-License-Identifier: Apache-2.0
// Sizes at the edges of a layer on cuda, on sampled tokens where all would take too long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "switchyard/base/sha256.h"
#include "switchyard/layer/device_rank.h"
#include "tests/cases/device_case.h"
#include "tests/support/usage_error.h"

namespace switchyard::layer {
namespace {

using test::Call;
using test::GivenRouting;
using test::LeafCase;

class DeviceExtremes : public test::NeedsGpu {};

const leaves::Leaf& leaf() { return *leaves::find_leaf("none", Device::kCuda).leaf; }

LeafCase base() {
  LeafCase c{test::small_problem(leaf()), {}, 9};
  c.options.device = Device::kCuda;
  return c;
}

MoeLayer build(const LeafCase& c) {
  return test::build_layer(test::make_weights(c.problem, leaf()), c.options, CpuIsa::kPortable);
}

/// Rows `first` .. `first + rows` of an output.
std::span<const std::byte> part(const std::vector<std::byte>& out, const Problem& p,
                                std::int64_t first, std::int64_t rows) {
  const std::size_t row = std::size_t(p.hidden) * 2;
  return std::span(out).subspan(std::size_t(first) * row, std::size_t(rows) * row);
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

TEST_F(DeviceExtremes, MoreThan2To31IntermediateValues) {
  LeafCase c = base();
  c.problem.hidden = 128;
  c.problem.inter = 4096;
  c.problem.routing = make_routing(RoutingMethodType::kRenormalize, 16, 8);
  constexpr std::int64_t kTokens = 70000;
  ASSERT_GT(kTokens * 8 * c.problem.inter, std::int64_t(1) << 31);
  const MoeLayer layer = build(c);
  Call call(layer.impl(), kTokens);
  const std::vector<std::byte> all = call.run();
  const std::size_t row = std::size_t(c.problem.hidden) * 2;
  for (std::int64_t first : {std::int64_t(0), std::int64_t(35000), kTokens - 9}) {
    const std::vector<std::byte> alone = call.run([&](ForwardArgs& a) {
      a.tokens = 9;
      a.hidden = call.hidden.data() + std::size_t(first) * row;
    });
    EXPECT_TRUE(same(part(all, c.problem, first, 9), part(alone, c.problem, 0, 9))) << first;
  }
  const Judgement j = test::judge(layer, 9);  // seeded as the first tokens of the large call
  EXPECT_TRUE(j.ok(test::budgets_of(layer))) << j.rel_l2_oracle;
}

TEST_F(DeviceExtremes, MostOfThreeHundredExperts) {
  LeafCase c = base();
  c.problem.routing = make_routing(RoutingMethodType::kRenormalize, 300, 2);
  const MoeLayer layer = build(c);
  constexpr std::int64_t kTokens = 128;
  Call call(layer.impl(), kTokens);
  GivenRouting routing(layer.problem(), kTokens);
  for (std::int64_t i = 0; i < 2 * kTokens; ++i)
    routing.ids[std::size_t(i)] = std::int32_t((i * 7) % 256 + 44);  // 256 distinct ones
  call.run([&](ForwardArgs& a) {
    a.routing = {routing.ids.data(), routing.weights.data(), nullptr};
  });
  const double factor = double(c.problem.routed_scaling_factor);
  EXPECT_LE(test::rel(call.values(), test::ffn_oracle(call, routing, factor)), 5e-3);
  std::swap(routing.ids[0], routing.ids[1]);  // the control
  EXPECT_GT(test::rel(call.values(), test::ffn_oracle(call, routing, factor)), 5e-3);
}

// A row alone and among 7, 67, 511 and 4095 others.
TEST_F(DeviceExtremes, ARowAmongOthersHasItsOwnBits) {
  const MoeLayer layer = build(base());
  Call call(layer.impl(), 4096);
  const std::vector<std::byte> all = call.run();
  const std::size_t row = std::size_t(layer.problem().hidden) * 2;
  for (std::int64_t others : {0, 7, 67, 511})
    for (std::int64_t at : {0, 2000, 4096 - 512}) {
      const std::vector<std::byte> got = call.run([&](ForwardArgs& a) {
        a.tokens = others + 1;
        a.hidden = call.hidden.data() + std::size_t(at) * row;
      });
      EXPECT_TRUE(same(part(got, layer.problem(), 0, 1), part(all, layer.problem(), at, 1)))
          << others << " others, row " << at;
    }
}

// The script that runs this in two processes compares what they recorded.
TEST_F(DeviceExtremes, DigestOfOutputs) {
  std::string text;
  for (std::int64_t tokens : {1, 8, 9, 64, 65, 300, 1500}) {
    const MoeLayer layer = build(base());
    Call call(layer.impl(), tokens);
    const std::vector<std::byte> out = call.run();
    text += sha256_hex(std::string_view(reinterpret_cast<const char*>(out.data()), out.size()));
    EXPECT_EQ(call.run(), out);
  }
  RecordProperty("digest", sha256_hex(text));
}

}  // namespace
}  // namespace switchyard::layer
