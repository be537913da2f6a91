// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

#include "tests/support/route_case.h"

/// Recipes that have a compiled router, and rows of logits that are hard to order.
namespace switchyard::test {

/// Each class and map, over sizes that fill lanes and registers or do not, and all kinds of k.
inline std::vector<RoutingSpec> held_recipes() {
  using Method = RoutingMethodType;
  std::vector<RoutingSpec> out;
  for (std::int64_t experts : {1, 2, 31, 33, 128, 129, 160, 256, 384, 512})
    for (Method m : {Method::kRenormalize, Method::kDefault, Method::kSigmoid,
                     Method::kSigmoidRenorm, Method::kDeepSeekV3})
      for (std::int64_t k : {1, 4, 32})
        if (k <= experts) out.push_back(make_routing(m, experts, k));
  for (std::int64_t groups : {2, 8, 12, 16})
    for (std::int64_t kept : {1, 4})
      for (std::int64_t k : {1, 8, 32}) {
        if (kept > groups) continue;
        RoutingSpec spec = make_routing(Method::kDeepSeekV3, 32 * groups, k);
        spec.n_group = groups;
        spec.topk_group = kept;
        out.push_back(spec);
      }
  RoutingSpec shares = make_routing(Method::kDefault, 100, 6);
  shares.map = WeightMap::kDivideByEpsilonSum;
  shares.epsilon = 1e-20f;
  shares.zero_experts = 3;
  out.push_back(shares);
  return out;
}

inline constexpr std::int64_t kSpecialRows = 8;

/// NaN, infinities of both signs, both zeros and ties.
inline void set_special_rows(RouteCase& c) {
  const float inf = HUGE_VALF, nan = NAN;
  c.set_row(0, {nan});
  c.set_row(1, {-inf, 1, -inf});
  c.set_row(2, {inf, inf, 3, nan, 0, -0.0f, 0, -0.0f, 1});
  c.set_row(3, {2});
  c.set_row(4, {-0.0f, 0, -0.0f, 0, -1});
  c.set_row(5, {-inf, nan, -inf, 5, 5, nan});
  std::vector<float> last(std::size_t(c.num_ids), nan), twice(std::size_t(c.num_ids));
  last.back() = -1e30f;
  for (std::size_t i = 0; i < twice.size(); ++i) twice[i] = float(i % 7) - 3;
  c.set_row(6, last);
  c.set_row(7, twice);
}

}  // namespace switchyard::test
