// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "switchyard/ops/route/route.h"

namespace switchyard::test {

/// Ids and weights of one routing call, dense [rows, k].
struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

/// One routing call with everything its spec asks for; distinct random values, padded rows.
struct RouteCase {
  /// Random logits and, where the spec reads them, bias, scale, hash table and token ids.
  RouteCase(const RoutingSpec& spec, std::int64_t rows, unsigned seed = 1);

  /// Replaces row `t` of the logits; missing trailing entries repeat the last one.
  void set_row(std::int64_t t, const std::vector<float>& z);
  /// Views of the case's own memory; outputs go to `got`.
  ops::RouteArgs args();
  /// Poisons the outputs, runs `twin` over the case and returns them.
  Routed run(const std::function<void(const ops::RouteArgs&)>& twin);
  Routed run_cpu();
  Routed run_ref();
  /// Choice gaps of all rows.
  std::vector<double> gaps();

  RoutingSpec spec;
  std::int64_t rows, num_ids, stride;
  std::vector<float> logits, bias, scale;
  std::vector<std::int32_t> table;
  std::vector<std::int64_t> tokens;
  Routed got;
};

/// How far a result is from the oracle's, where both are comparable.
struct RouteError {
  std::int64_t rows = 0;       // rows whose choice gap allows a comparison of ids
  std::int64_t wrong_ids = 0;  // differing ids in them
  double worst_weight = 0;     // largest |w - want| / |want| in rows of equal ids
};

/// Compares rows whose gap exceeds `min_gap`.
RouteError compare(const RouteCase& c, const Routed& got, const Routed& want,
                   const std::vector<double>& gaps, double min_gap);

/// Every recipe that routes, with k clipped to what it allows.
std::vector<RoutingSpec> all_recipes(std::int64_t num_experts, std::int64_t top_k);

}  // namespace switchyard::test
