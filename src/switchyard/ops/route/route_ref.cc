// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <vector>

#include "switchyard/ops/route/route.h"

namespace switchyard::ops {
namespace {

using Doubles = std::vector<double>;
using Order = std::vector<std::int64_t>;
constexpr double kNever = -HUGE_VAL;

double clean(double x) {
  if (std::isnan(x)) return kNever;
  return std::min(x, double(FLT_MAX));
}

/// Indices by (value descending, index ascending).
Order sorted(const Doubles& x) {
  Order order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return x[a] > x[b]; });
  return order;
}

/// Smallest difference between neighbours among the first `kept` + 1 entries of an order.
double smallest_gap(const Doubles& x, const Order& order, std::size_t kept) {
  double gap = HUGE_VAL;
  for (std::size_t j = 0; j + 1 < order.size() && j < kept; ++j)
    if (x[order[j + 1]] > kNever) gap = std::min(gap, x[order[j]] - x[order[j + 1]]);
  return gap;
}

Doubles softmax(const Doubles& z) {
  const double top = *std::max_element(z.begin(), z.end());
  Doubles p(z.size(), 0.0);
  if (top == kNever) return p;
  for (std::size_t i = 0; i < z.size(); ++i) p[i] = std::exp(z[i] - top);
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= total;
  return p;
}

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

double sqrt_softplus(double x) {
  return std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
}

Doubles score(ScoreFunction f, const Doubles& z) {
  if (f == ScoreFunction::kSoftmax) return softmax(z);
  Doubles s = z;
  if (f == ScoreFunction::kSigmoid) std::transform(z.begin(), z.end(), s.begin(), sigmoid);
  if (f == ScoreFunction::kSqrtSoftplus)
    std::transform(z.begin(), z.end(), s.begin(), sqrt_softplus);
  return s;
}

/// One row in double; `gap` as route_gaps() defines it.
struct RefRow {
  Doubles z, s;
  Order ids;
  std::vector<bool> valid;
  Doubles weights;
  double gap = HUGE_VAL;
};

Doubles choice_scores(const RefRow& row, const RouteArgs& a) {
  const RoutingSpec& spec = *a.spec;
  const bool sums_scores = spec.n_group > 1 && spec.group_statistic == GroupStatistic::kTop2Sum;
  const bool by_logit =  // the order of a softmax is that of its logits
      spec.score == ScoreFunction::kSoftmax && !spec.choice_bias && !sums_scores;
  Doubles c = by_logit ? row.z : row.s;
  for (std::size_t i = 0; i < c.size(); ++i) {
    if (a.choice_bias) c[i] += double(a.choice_bias[i]);
    c[i] = row.z[i] == kNever ? kNever : clean(c[i]);
  }
  return c;
}

double group_score(const Doubles& c, std::int64_t begin, std::int64_t size, GroupStatistic stat) {
  Doubles group(c.begin() + begin, c.begin() + begin + size);
  std::sort(group.begin(), group.end(), std::greater<>());
  if (stat == GroupStatistic::kMax || size == 1 || group[0] == kNever) return group[0];
  return std::max(group[0] + group[1], -double(FLT_MAX));  // one valid score ranks behind any two
}

/// Writes -inf over the groups that are not among the best.
void drop_groups(const RoutingSpec& spec, Doubles& c, double& gap) {
  const std::int64_t size = spec.num_experts / spec.n_group;
  Doubles groups;
  for (std::int64_t g = 0; g < spec.n_group; ++g)
    groups.push_back(group_score(c, g * size, size, spec.group_statistic));
  const Order order = sorted(groups);
  for (std::int64_t j = spec.topk_group; j < spec.n_group; ++j)
    std::fill_n(c.begin() + order[j] * size, size, kNever);
  if (spec.topk_group < spec.n_group) {
    const double last = groups[order[spec.topk_group - 1]], next = groups[order[spec.topk_group]];
    if (next > kNever) gap = std::min(gap, last - next);
  }
}

/// The k best of `c`, then the lowest ids that are not yet chosen.
void choose(const Doubles& c, std::int64_t k, RefRow& row) {
  const Order order = sorted(c);
  row.gap = std::min(row.gap, smallest_gap(c, order, std::size_t(k)));
  for (std::int64_t j = 0; j < k && c[order[j]] > kNever; ++j) row.ids.push_back(order[j]);
  row.valid.assign(row.ids.size(), true);
  for (std::int64_t i = 0; std::int64_t(row.ids.size()) < k; ++i)
    if (std::find(row.ids.begin(), row.ids.end(), i) == row.ids.end()) row.ids.push_back(i);
  row.valid.resize(std::size_t(k), false);
}

Doubles over_valid(const Doubles& values, const RefRow& row, double otherwise) {
  Doubles v;
  for (std::size_t j = 0; j < row.ids.size(); ++j)
    v.push_back(row.valid[j] ? values[row.ids[j]] : otherwise);
  return v;
}

double norm_of(const RoutingSpec& spec, const Doubles& v) {
  const double total = std::accumulate(v.begin(), v.end(), 0.0);
  if (spec.map == WeightMap::kDivideByMax) return std::max(total, double(spec.epsilon));
  if (spec.map == WeightMap::kDivideByEpsilonSum) return total + double(spec.epsilon);
  double powers = 0;
  for (double x : v) powers += std::pow(std::fabs(x), double(spec.p));
  return std::pow(powers, 1 / double(spec.p));
}

Doubles map_weights(const RoutingSpec& spec, const RefRow& row) {
  if (spec.map == WeightMap::kSoftmaxOverChosen) return softmax(over_valid(row.z, row, kNever));
  if (spec.map == WeightMap::kSigmoid) {
    Doubles v = over_valid(row.z, row, kNever);
    std::transform(v.begin(), v.end(), v.begin(), sigmoid);
    return v;
  }
  Doubles v = over_valid(row.s, row, 0);
  if (spec.map == WeightMap::kNone) return v;
  const double norm = norm_of(spec, v);
  for (double& x : v) x = norm == 0 ? 0 : x / norm;
  return v;
}

/// Weight of winner `id` among the logits close to it; `left_out` takes no part.
double sparse_weight(RefRow& row, const RoutingSpec& spec, std::int64_t id, std::int64_t left_out) {
  const double top = row.z[id], threshold = 2.0f * spec.jitter;
  double total = 0;
  for (std::int64_t i = 0; i < std::int64_t(row.z.size()); ++i) {
    if (i == left_out || row.z[i] == kNever) continue;
    const double distance = (top - row.z[i]) / std::max(std::fabs(row.z[i]), top);
    row.gap = std::min(row.gap, std::fabs(distance - threshold));
    if (!(distance > threshold)) total += std::exp(row.z[i] - top);
  }
  return 1 / total;
}

void mix_sparsely(RefRow& row, const RoutingSpec& spec) {
  choose(row.z, spec.top_k, row);
  row.weights.assign(2, 0.0);
  if (row.valid[0]) row.weights[0] = sparse_weight(row, spec, row.ids[0], -1);
  if (row.valid[1]) row.weights[1] = sparse_weight(row, spec, row.ids[1], row.ids[0]);
}

void choose_by_rule(const RouteArgs& a, std::int64_t t, RefRow& row) {
  const RoutingSpec& spec = *a.spec;
  if (spec.choice == ChoiceRule::kHash) {
    for (std::int64_t j = 0; j < spec.top_k; ++j) {
      row.ids.push_back(a.hash_table[a.token_ids[t] * spec.top_k + j]);
      row.valid.push_back(row.z[row.ids.back()] > kNever);
    }
    return;
  }
  Doubles c = choice_scores(row, a);
  if (spec.n_group > 1) drop_groups(spec, c, row.gap);
  choose(c, spec.top_k, row);
}

RefRow route_row(const RouteArgs& a, std::int64_t t) {
  const RoutingSpec& spec = *a.spec;
  RefRow row;
  for (std::int64_t i = 0; i < a.logits.cols; ++i) row.z.push_back(clean(a.logits.row(t)[i]));
  if (spec.choice == ChoiceRule::kSparseMixer) {
    mix_sparsely(row, spec);
  } else {
    row.s = score(spec.score, row.z);
    choose_by_rule(a, t, row);
    row.weights = map_weights(spec, row);
  }
  for (std::int64_t j = 0; j < spec.top_k; ++j) {
    if (!row.valid[j])
      row.weights[j] = 0;
    else if (spec.per_expert_scale && row.ids[j] < spec.num_experts)
      row.weights[j] *= double(a.per_expert_scale[row.ids[j]]);
  }
  return row;
}

}  // namespace

void route_ref(const RouteArgs& args) {
  args.check();
  for (std::int64_t t = 0; t < args.logits.rows; ++t) {
    const RefRow row = route_row(args, t);
    for (std::int64_t j = 0; j < args.spec->top_k; ++j) {
      args.ids.row(t)[j] = std::int32_t(row.ids[j]);
      args.weights.row(t)[j] = float(row.weights[j]);
    }
  }
}

void route_gaps(const RouteArgs& args, double* gaps) {
  args.check();
  for (std::int64_t t = 0; t < args.logits.rows; ++t) gaps[t] = route_row(args, t).gap;
}

}  // namespace switchyard::ops
