// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "switchyard/layer/judge.h"
#include "switchyard/leaves/registry.h"
#include "tests/cases/moe_case.h"
#include "tests/support/soak.h"

namespace switchyard::test {

/// A problem, how its layer is built, and how many tokens it is judged on.
struct LeafCase {
  Problem problem;
  BuildOptions options;
  std::int64_t tokens = 9;
};

/// The budgets of what `layer` really runs.
inline layer::Budgets budgets_of(const MoeLayer& layer) { return layer::budgets_of(layer.impl()); }

/// ||y - r|| / ||r||.
inline double rel(const std::vector<double>& y, const std::vector<double>& r) {
  EXPECT_EQ(y.size(), r.size());
  return layer::rel_l2(y.data(), r.data(), r.size());
}

/// Leaf against oracle on seeded tokens.
inline layer::Judgement judge(const MoeLayer& layer, std::int64_t tokens) {
  const Call call(layer.impl(), tokens);
  const bool hashed = layer.impl().weights().router.vocab > 0;
  return layer::judge(layer.impl(),
                      {tokens, call.exact.data(), hashed ? call.token_ids.data() : nullptr, {}});
}

/// One test, once per leaf of the registry.
class EveryLeaf : public testing::TestWithParam<const leaves::Leaf*> {
 protected:
  const leaves::Leaf& leaf() const { return *GetParam(); }
  LeafCase base() const { return {small_problem(leaf()), {}, 9}; }
  MoeLayer build(const LeafCase& c, CpuIsa isa) const {
    return build_layer(make_weights(c.problem, leaf()), c.options, isa);
  }
  MoeLayer build(const LeafCase& c) const { return build(c, runnable_tiers().back()); }

  void expect_close(const LeafCase& c, const std::string& what) const {
    const std::vector<CpuIsa> tiers = runnable_tiers();
    for (CpuIsa isa : subset_or_full({tiers.back()}, tiers)) expect_close_on(isa, c, what);
  }
  void expect_close_on(CpuIsa isa, const LeafCase& c, const std::string& what) const {
    const MoeLayer layer = build(c, isa);
    const layer::Judgement j = judge(layer, c.tokens);
    EXPECT_TRUE(j.ok(budgets_of(layer)))
        << what << " on " << to_string(isa) << ": rel L2 " << j.rel_l2_oracle << ", "
        << j.ids_differing << " ids and " << j.codes_differing << " of " << j.codes
        << " codes differ";
  }
  // The outputs of both cases are further apart than a budget: what differs between them shows.
  void expect_far(const LeafCase& a, const LeafCase& b, const std::string& what) const {
    const MoeLayer one = build(a), other = build(b);
    Call x(one.impl(), a.tokens), y(other.impl(), a.tokens);
    x.run(), y.run();
    EXPECT_GT(rel(x.values(), y.values()), 2 * budgets_of(one).oracle) << what;
  }
  void expect_close_and_far(const LeafCase& c, const std::string& what) const {
    expect_close(c, what);
    expect_far(c, base(), what);
  }
};

/// Two shared experts beside the routed ones, each `inter` wide.
inline LeafCase shared_case(const leaves::Leaf& leaf, std::int64_t inter) {
  LeafCase c{small_problem(leaf), {}, 9};
  c.problem.inter = inter;
  c.problem.num_shared = 2;
  c.problem.shared_inter = 2 * inter;
  return c;
}

/// The instances of a suite over every CPU leaf, so that a new format is covered by the list.
inline auto every_cpu_leaf() { return testing::ValuesIn(leaves::all_leaves(Device::kCpu)); }
/// A leaf's name in a test's name.
inline std::string leaf_name(const testing::TestParamInfo<const leaves::Leaf*>& info) {
  return std::string(info.param->id.quant);
}

}  // namespace switchyard::test
