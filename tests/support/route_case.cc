// SPDX-License-Identifier: Apache-2.0
#include "tests/support/route_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace switchyard::test {
namespace {

constexpr std::int64_t kPadding = 4;
constexpr std::int64_t kVocab = 37;
constexpr std::int32_t kPoisonId = -77;
constexpr float kPoisonWeight = -1.25e30f;

std::vector<float> normal(std::size_t count, float scale, std::mt19937& random) {
  std::normal_distribution<float> spread(0.0f, scale);
  std::vector<float> out(count);
  for (float& x : out) x = spread(random);
  return out;
}

}  // namespace

RouteCase::RouteCase(const RoutingSpec& s, std::int64_t num_rows, unsigned seed)
    : spec(s), rows(num_rows), num_ids(s.num_experts + s.zero_experts), stride(num_ids + kPadding) {
  std::mt19937 random(seed);
  logits.assign(std::size_t(rows * stride), NAN);
  for (std::int64_t t = 0; t < rows; ++t) set_row(t, normal(std::size_t(num_ids), 1.5f, random));
  if (spec.choice_bias) bias = normal(std::size_t(num_ids), 0.3f, random);
  if (spec.per_expert_scale) scale = normal(std::size_t(spec.num_experts), 1.0f, random);
  if (spec.choice != ChoiceRule::kHash) return;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(num_ids));
  std::iota(ids.begin(), ids.end(), 0);
  for (std::int64_t v = 0; v < kVocab; ++v) {
    std::shuffle(ids.begin(), ids.end(), random);
    table.insert(table.end(), ids.begin(), ids.begin() + spec.top_k);
  }
  for (std::int64_t t = 0; t < rows; ++t) tokens.push_back((t * 11 + 5) % kVocab);
}

void RouteCase::set_row(std::int64_t t, const std::vector<float>& z) {
  for (std::int64_t i = 0; i < num_ids; ++i)
    logits[std::size_t(t * stride + i)] = z[std::min(std::size_t(i), z.size() - 1)];
}

ops::RouteArgs RouteCase::args() {
  const auto given = [](auto& v) { return v.empty() ? nullptr : v.data(); };
  return {.logits = {logits.data(), rows, num_ids, stride},
          .spec = &spec,
          .choice_bias = given(bias),
          .per_expert_scale = given(scale),
          .hash_table = given(table),
          .vocab = table.empty() ? 0 : kVocab,
          .token_ids = given(tokens),
          .ids = {got.ids.data(), rows, spec.top_k, spec.top_k},
          .weights = {got.weights.data(), rows, spec.top_k, spec.top_k}};
}

Routed RouteCase::run(const std::function<void(const ops::RouteArgs&)>& twin) {
  got.ids.assign(std::size_t(rows * spec.top_k), kPoisonId);
  got.weights.assign(std::size_t(rows * spec.top_k), kPoisonWeight);
  twin(args());
  return got;
}

Routed RouteCase::run_cpu() {
  return run([](const ops::RouteArgs& a) {
    a.check();
    ops::route_cpu(a, 0, a.logits.rows);
  });
}

Routed RouteCase::run_ref() { return run(ops::route_ref); }

std::vector<double> RouteCase::gaps() {
  std::vector<double> out(static_cast<std::size_t>(rows));
  run([&](const ops::RouteArgs& a) { ops::route_gaps(a, out.data()); });
  return out;
}

RouteError compare(const RouteCase& c, const Routed& got, const Routed& want,
                   const std::vector<double>& gaps, double min_gap) {
  RouteError error;
  const std::int64_t k = c.spec.top_k;
  for (std::int64_t t = 0; t < c.rows; ++t) {
    if (!(gaps[std::size_t(t)] > min_gap)) continue;
    ++error.rows;
    for (auto i = std::size_t(t * k); i < std::size_t((t + 1) * k); ++i) {
      if (got.ids[i] != want.ids[i]) {
        ++error.wrong_ids;
        continue;
      }
      const double off = std::fabs(double(got.weights[i]) - double(want.weights[i]));
      if (off == 0) continue;
      const double relative = off / std::fabs(double(want.weights[i]));
      if (!(relative <= error.worst_weight))
        error.worst_weight = std::isnan(relative) ? HUGE_VAL : relative;
    }
  }
  return error;
}

std::vector<RoutingSpec> all_recipes(std::int64_t num_experts, std::int64_t top_k) {
  std::vector<RoutingSpec> specs;
  for (int m = 0; m < int(RoutingMethodType::kUnspecified); ++m) {
    const auto method = RoutingMethodType(m);
    std::int64_t k = std::min(top_k, num_experts);
    if (method == RoutingMethodType::kLlama4) k = 1;
    if (method == RoutingMethodType::kSparseMixer) k = 2;
    if (k <= num_experts) specs.push_back(make_routing(method, num_experts, k));
  }
  return specs;
}

}  // namespace switchyard::test
