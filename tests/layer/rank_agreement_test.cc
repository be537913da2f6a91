// SPDX-License-Identifier: Apache-2.0
// What the ranks of a layer must have in common: where one differs in any of it, all are told what
// it is and who has what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "switchyard/layer/rank_layer.h"
#include "switchyard/leaves/registry.h"
#include "tests/cases/leaf_case.h"
#include "tests/cases/share_case.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using comm::Group;
using layer::RankLayer;
using layer::RankOptions;
using testing::HasSubstr;

/// What all ranks ask for, and the one thing in which rank 1 differs.
struct Case {
  std::string name;
  std::string format = "none";
  std::function<void(RankOptions&)> all;
  std::function<void(RankOptions&, checkpoint::LayerWeights&)> other;
};

const leaves::Leaf& leaf_of(const std::string& quant) {
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu))
    if (leaf->id.quant == quant) return *leaf;
  throw InternalError("no leaf of that format");
}

void tep(RankOptions& o) {
  o.parallel = Parallel::kTep;
  o.strategy = nullptr;
}

/// What rank 0 and rank 1 say, alike.
std::string told(const Case& c) {
  const leaves::Leaf& leaf = leaf_of(c.format);
  const test::LeafCase base = test::shared_case(leaf, 96);
  const MoeLayer whole = test::build_layer(test::make_weights(base.problem, leaf), base.options,
                                           test::runnable_tiers().back());
  const test::Outcomes out = test::on_thread_ranks(2, test::long_deadlines(), [&](Group& g) {
    RankOptions o{.layer = whole.impl().options(),
                  .strategy = &comm::one_sided(),
                  .capacity = 9,
                  .fingerprint = "one"};
    o.layer.pool = std::make_shared<ThreadPool>(1);
    if (c.all) c.all(o);
    checkpoint::LayerWeights w = test::with_declared_scales(whole.impl());
    if (g.rank() == 1) c.other(o, w);
    RankLayer(g, std::move(w), o);
  });
  std::string first = test::text_of<UsageError>(out[0]);
  EXPECT_EQ(test::text_of<UsageError>(out[1]), first) << c.name;
  return first;
}

std::vector<Case> cases() {
  using W = checkpoint::LayerWeights;
  std::vector<std::int32_t> turned = {1, 2, 3, 4, 5, 0};
  return {
      {"factor", "none", {}, [](RankOptions&, W& w) { w.problem.routed_scaling_factor = 3; }},
      {"routing", "none", {}, [](RankOptions&, W& w) { w.problem.routing.top_k = 2; }},
      {"dtype", "none", {}, [](RankOptions& o, W&) { o.layer.dtype = Dtype::kFp16; }},
      {"activations",
       "nvfp4",
       {},
       [](RankOptions& o, W&) { o.layer.activations = ActivationMode::kBf16; }},
      {"isa", "none", {}, [](RankOptions& o, W&) { o.layer.isa = CpuIsa::kPortable; }},
      {"parallel", "none", tep, [](RankOptions& o, W&) { o.parallel = Parallel::kDtp; }},
      {"capacity", "none", {}, [](RankOptions& o, W&) { o.capacity = 10; }},
      {"chunk", "none", {}, [](RankOptions& o, W&) { o.chunk = 4; }},
      {"payload", "fp8_block_scales", {}, [](RankOptions& o, W&) { o.quantise_first = false; }},
      {"finalize",
       "none",
       {},
       [](RankOptions& o, W&) { o.finalize.run = [](void*, const DispatchedRows&) {}; }},
      {"ending", "none", tep, [](RankOptions& o, W&) { o.ending = Ending::kFused; }},
      {"slot layout", "none", {}, [=](RankOptions& o, W&) { o.slot_experts = turned; }},
      {"balanced", "none", [](RankOptions& o) { o.slot_experts = {0, 1, 2, 3, 4, 5}; },
       [](RankOptions& o, W&) { o.balanced = true; }},
      {"wire", "none", {}, [](RankOptions& o, W&) { o.strategy = &comm::two_sided(); }},
      {"fingerprint", "none", {}, [](RankOptions& o, W&) { o.fingerprint = "another"; }},
      {"seed", "none",
       [](RankOptions& o) {
         o.agreed = {{"seed", "1"}};
       },
       [](RankOptions& o, W&) {
         o.agreed = {{"seed", "2"}};
       }},
  };
}

TEST(RankAgreement, EveryDifferenceIsToldOnBothRanks) {
  for (const Case& c : cases()) {
    const std::string text = told(c);
    EXPECT_THAT(text, HasSubstr("rank 0 has " + c.name + " = ")) << c.name;
    EXPECT_THAT(text, HasSubstr("rank 1 has " + c.name + " = ")) << c.name;
  }
}

TEST(RankAgreement, RanksThatDoNotDifferAreNotTold) {
  EXPECT_EQ(told({"nothing", "none", {}, [](RankOptions&, checkpoint::LayerWeights&) {}}), "");
}

}  // namespace
}  // namespace switchyard
