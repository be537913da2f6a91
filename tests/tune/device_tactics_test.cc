// SPDX-License-Identifier: Apache-2.0
// Every candidate of every leaf of cuda: the oracle's budget, and the plan's bits.
#include "tests/cases/tactic_case.h"
#include "tests/support/device.h"

namespace switchyard::tune {
namespace {

using test::LeafCase;

class DeviceTactics : public test::NeedsGpu,
                      public testing::WithParamInterface<const leaves::Leaf*> {
 protected:
  LeafCase base() const {
    LeafCase c{test::small_problem(*GetParam()), {}, 9};
    c.options.device = Device::kCuda;
    return c;
  }
  MoeLayer build(const LeafCase& c) const {
    return test::build_layer(test::make_weights(c.problem, *GetParam()), c.options,
                             CpuIsa::kPortable);
  }
};

TEST_P(DeviceTactics, EveryCandidateGivesTheSameBits) {
  const MoeLayer layer = build(base());
  for (std::int64_t tokens : {1, 9, 64, 65, 512, 1500})
    EXPECT_GT(test::expect_same_bits_for_every_tactic(layer, tokens), 1);
}

TEST_P(DeviceTactics, EveryCandidateGivesTheSameBitsInEveryModeAndDtype) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16})
    for (ActivationMode mode : {ActivationMode::kFormat, ActivationMode::kBf16}) {
      LeafCase c = base();
      c.options.dtype = dtype;
      c.options.activations = mode;
      const MoeLayer layer = build(c);
      for (std::int64_t tokens : {8, 300})
        EXPECT_GT(test::expect_same_bits_for_every_tactic(layer, tokens), 1);
    }
}

TEST_P(DeviceTactics, EveryCandidateGivesTheSameBitsUnderOtherRecipes) {
  RoutingSpec groups = make_routing(RoutingMethodType::kDeepSeekV3, 64, 4);
  groups.n_group = 2;
  groups.topk_group = 1;
  const std::pair<RoutingSpec, const char*> recipes[] = {
      {groups, "together"},
      {make_routing(RoutingMethodType::kDefault, 6, 3), "together"},
      {make_routing(RoutingMethodType::kTopK, 6, 3), "no_router"}};
  for (const auto& [spec, reason] : recipes) {
    SCOPED_TRACE(describe(spec));
    LeafCase c = base();
    c.problem.routing = spec;
    const MoeLayer layer = build(c);
    EXPECT_EQ(layer.routing_launch(8).reason, reason);
    EXPECT_EQ(layer.routing_launch(9).reason, "many_tokens");
    for (std::int64_t tokens : {1, 8})
      EXPECT_GT(test::expect_same_bits_for_every_tactic(layer, tokens), 4);
  }
}

TEST_P(DeviceTactics, EveryCandidateGivesTheSameBitsBesideASharedExpert) {
  LeafCase c = test::shared_case(*GetParam(), 128);
  c.options.device = Device::kCuda;
  EXPECT_GT(test::expect_same_bits_for_every_tactic(build(c), 40), 4);
}

INSTANTIATE_TEST_SUITE_P(Leaves, DeviceTactics,
                         testing::ValuesIn(leaves::all_leaves(Device::kCuda)), test::leaf_name);

}  // namespace
}  // namespace switchyard::tune
