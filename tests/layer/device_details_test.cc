// SPDX-License-Identifier: Apache-2.0
// What verify() tells about a layer on cuda beside its verdict: each expert's error, a token's
// stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "switchyard/layer/expert_errors.h"
#include "switchyard/layer/stages.h"
#include "tests/cases/device_case.h"

namespace switchyard::layer {
namespace {

using test::LeafCase;

/// One test, once per leaf of cuda.
class DeviceDetails : public test::NeedsGpu,
                      public testing::WithParamInterface<const leaves::Leaf*> {
 protected:
  const leaves::Leaf& leaf() const { return *GetParam(); }
  LeafCase base() const {
    LeafCase c{test::small_problem(leaf()), {}, 9};
    c.options.device = Device::kCuda;
    return c;
  }
  MoeLayer build(const LeafCase& c, checkpoint::LayerWeights w) const {
    return test::build_layer(std::move(w), c.options, CpuIsa::kPortable);
  }
  MoeLayer build(const LeafCase& c) const {
    return build(c, test::make_weights(c.problem, leaf()));
  }
};

std::map<std::string, Stage> stages(const MoeLayer& layer, std::int64_t row = 0) {
  const test::Call call(layer.impl(), 4);
  const std::int64_t hidden = layer.problem().hidden;
  std::map<std::string, Stage> out;
  for (Stage& s : stages_of(layer.impl(), {1, call.exact.data() + row * hidden, nullptr, {}}))
    out[s.name] = s;
  return out;
}

double distance(const Stage& a, const Stage& b) {
  EXPECT_EQ(a.shape, b.shape);
  std::vector<double> y, r;
  for (std::size_t i = 0; i < a.floats.size(); ++i) {
    EXPECT_EQ(std::isnan(a.floats[i]), std::isnan(b.floats[i])) << a.name << " " << i;
    if (std::isnan(a.floats[i])) continue;
    y.push_back(double(a.floats[i]));
    r.push_back(double(b.floats[i]));
  }
  return rel_l2(y.data(), r.data(), y.size());
}

TEST_P(DeviceDetails, EveryExpertIsWithinItsBudget) {
  for (bool bias : {false, true}) {
    LeafCase c = base();
    c.problem.expert_bias = bias;
    const MoeLayer layer = build(c);
    const test::Call call(layer.impl(), 9);
    const std::vector<ExpertError> errors = expert_errors(layer.impl(), 9, call.exact.data());
    ASSERT_EQ(errors.size(), 6u);
    const Budgets budgets = test::budgets_of(layer);
    for (const ExpertError& e : errors) {
      EXPECT_GE(e.rows, 8);
      EXPECT_GT(e.rel_l2_unquantised, 0);
      EXPECT_LE(e.rel_l2_oracle, budgets.oracle) << "expert " << e.id;
      EXPECT_LE(e.rel_l2_unquantised, budgets.output) << "expert " << e.id;
    }
  }
}

// The control: one expert's packed weights are another's, and only its figure says so.
TEST_P(DeviceDetails, AWrongExpertStandsOut) {
  const MoeLayer layer = build(base());
  const ExpertBank& bank = layer.impl().routed();
  std::vector<std::byte> other(std::size_t(bank.packed_bytes()));
  bank.device_packed->download(other.data());
  bank.device_packed->upload_part(other.data(), 3 * bank.layout.bytes, bank.layout.bytes);
  const test::Call call(layer.impl(), 9);
  for (const ExpertError& e : expert_errors(layer.impl(), 9, call.exact.data()))
    EXPECT_EQ(e.rel_l2_oracle > test::budgets_of(layer).oracle, e.id == 3) << e.id;
}

TEST_P(DeviceDetails, StagesAreThoseOfTheOracle) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
    LeafCase c = base();
    c.options.dtype = dtype;
    const MoeLayer layer = build(c);
    for (std::int64_t row = 0; row < 4; ++row) {
      std::map<std::string, Stage> s = stages(layer, row);
      EXPECT_EQ(s.count("fc1_gate") + s.count("fc1_up"), 0u) << "in registers only";
      for (const char* name : {"hidden", "logits", "ids", "weights", "x_quantised", "fc2_input",
                               "rows", "out", "oracle.fc1_up", "oracle.fc2_input", "oracle.rows"})
        EXPECT_EQ(s.count(name), 1u) << name;
      EXPECT_EQ(s["ids"].ints, s["oracle.ids"].ints);
      EXPECT_LE(distance(s["x_quantised"], s["oracle.x_quantised"]), 1e-5);
      // A code that fell on the other side of a tie is a sixteenth of one value.
      const double budget = requantises(leaf().activation) ? 5e-2 : 5e-3;
      for (const char* name : {"fc2_input", "rows", "out"})
        EXPECT_LE(distance(s[name], s[std::string("oracle.") + name]), budget) << name;
      EXPECT_GT(distance(s["rows"], stages(layer, (row + 1) % 4)["oracle.rows"]), 10 * budget);
    }
  }
}

TEST_P(DeviceDetails, ASharedExpertsStageIsThere) {
  LeafCase c = test::shared_case(leaf(), 96);
  c.options.device = Device::kCuda;
  const MoeLayer layer = build(c);
  std::map<std::string, Stage> s = stages(layer);
  ASSERT_EQ(s.count("shared_fc2_input"), 1u);
  EXPECT_LE(distance(s["shared_fc2_input"], s["oracle.shared_fc2_input"]), 5e-2);
}

INSTANTIATE_TEST_SUITE_P(Leaves, DeviceDetails,
                         testing::ValuesIn(leaves::all_leaves(Device::kCuda)), test::leaf_name);

}  // namespace
}  // namespace switchyard::layer
