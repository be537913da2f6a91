// SPDX-License-Identifier: Apache-2.0
#include "tests/support/naive_moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace switchyard::test {

using checkpoint::ExpertWeights;
using checkpoint::LayerWeights;

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

/// A decoded matrix, so that each weight is decoded once.
struct Dense {
  std::int64_t rows, cols;
  std::vector<double> w;
  explicit Dense(const formats::Matrix& m)
      : rows(m.rows), cols(m.cols), w(std::size_t(m.rows * m.cols)) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) w[std::size_t(r * cols + c)] = m.value(r, c);
  }
  std::vector<double> times(const std::vector<double>& x, const std::vector<float>& bias) const {
    std::vector<double> y(std::size_t(rows), 0.0);
    for (std::int64_t r = 0; r < rows; ++r) {
      double sum = bias.empty() ? 0.0 : bias[std::size_t(r)];
      for (std::int64_t c = 0; c < cols; ++c)
        sum += w[std::size_t(r * cols + c)] * x[std::size_t(c)];
      y[std::size_t(r)] = sum;
    }
    return y;
  }
};

struct DenseExpert {
  std::optional<Dense> gate;
  Dense up, down;
  std::vector<float> gate_bias, up_bias, down_bias;
  explicit DenseExpert(const ExpertWeights& w)
      : up(w.up), down(w.down), gate_bias(w.gate_bias), up_bias(w.up_bias), down_bias(w.down_bias) {
    if (w.gate) gate.emplace(*w.gate);
  }
};

double activate(const Activation& a, double g, double u) {
  if (const auto* s = std::get_if<Swiglu>(&a)) {
    double limit = s->clamp ? double(s->clamp->at(0)) : -kNever;
    double gate = s->clamp_after_silu ? g : std::min(g, limit);
    gate *= sigmoid(gate);
    return (s->clamp_after_silu ? std::min(gate, limit) : gate) * std::clamp(u, -limit, limit);
  }
  if (const auto* s = std::get_if<SiTu>(&a)) {
    double cap = s->gate_softcap.at(0), linear = s->linear_softcap.at(0);
    return cap * std::tanh(g / cap) * sigmoid(g) * linear * std::tanh(u / linear);
  }
  if (const auto* s = std::get_if<Geglu>(&a)) {
    double inner = s->form == GeluForm::kErf
                       ? std::erf(g / std::sqrt(2.0))
                       : std::tanh(std::sqrt(2 / std::acos(-1.0)) * (g + 0.044715 * g * g * g));
    return 0.5 * g * (1 + inner) * u;
  }
  if (const auto* s = std::get_if<SwigluBias>(&a)) {
    double limit = s->clamp->at(0);
    g = std::min(g, limit);
    u = std::clamp(u, -limit, limit);
    return g * sigmoid(double(s->gate_sigmoid_scale.at(0)) * g) *
           (u + double(s->linear_offset.at(0)));
  }
  if (std::holds_alternative<Relu2>(a)) return u > 0 ? u * u : 0;
  throw std::logic_error("no formula");
}

std::vector<double> run_expert(const DenseExpert& e, const Activation& a,
                               const std::vector<double>& x) {
  std::vector<double> u = e.up.times(x, e.up_bias);
  std::vector<double> g = e.gate ? e.gate->times(x, e.gate_bias) : u;
  for (std::size_t i = 0; i < u.size(); ++i) u[i] = activate(a, g[i], u[i]);
  return e.down.times(u, e.down_bias);
}

std::vector<double> scores(ScoreFunction f, const std::vector<double>& z) {
  std::vector<double> s = z;
  double top = *std::max_element(z.begin(), z.end()), sum = 0;
  for (double v : z) sum += std::exp(v - top);
  for (double& v : s) {
    if (f == ScoreFunction::kSoftmax) v = std::exp(v - top) / sum;
    if (f == ScoreFunction::kSigmoid) v = sigmoid(v);
    if (f == ScoreFunction::kSqrtSoftplus)
      v = std::sqrt(std::max(v, 0.0) + std::log1p(std::exp(-std::fabs(v))));
  }
  return s;
}

std::vector<std::int64_t> best(const std::vector<double>& c, std::int64_t k) {
  std::vector<std::int64_t> order(c.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return c[std::size_t(a)] > c[std::size_t(b)]; });
  order.resize(std::size_t(k));
  return order;
}

void drop_groups(const RoutingSpec& r, std::vector<double>& c) {
  if (r.n_group == 1) return;
  std::size_t size = c.size() / std::size_t(r.n_group);
  std::vector<double> rank;
  for (std::int64_t g = 0; g < r.n_group; ++g) {
    std::vector<double> part(c.begin() + g * std::int64_t(size),
                             c.begin() + (g + 1) * std::int64_t(size));
    std::sort(part.rbegin(), part.rend());
    rank.push_back(r.group_statistic == GroupStatistic::kMax ? part[0] : part[0] + part[1]);
  }
  auto kept = best(rank, r.topk_group);
  for (std::size_t e = 0; e < c.size(); ++e)
    if (std::find(kept.begin(), kept.end(), std::int64_t(e / size)) == kept.end()) c[e] = kNever;
}

void map_weights(const RoutingSpec& r, std::vector<double>& w) {
  double sum = std::accumulate(w.begin(), w.end(), 0.0),
         top = *std::max_element(w.begin(), w.end()), exps = 0, powers = 0;
  for (double v : w) exps += std::exp(v - top), powers += std::pow(v, double(r.p));
  for (double& v : w) {
    if (r.map == WeightMap::kSoftmaxOverChosen) v = std::exp(v - top) / exps;
    if (r.map == WeightMap::kSigmoid) v = sigmoid(v);
    if (r.map == WeightMap::kDivideByEpsilonSum) v /= sum + double(r.epsilon);
    if (r.map == WeightMap::kDivideByMax) v /= std::max(sum, double(r.epsilon));
    if (r.map == WeightMap::kLpNorm) v /= std::pow(powers, 1 / double(r.p));
  }
}

struct Choice {
  std::vector<std::int64_t> ids;
  std::vector<double> weights;
};

/// Phi-3.5: each of the two picks is weighted by a softmax over what the threshold leaves.
Choice sparse_mixer(double jitter, std::vector<double> z) {
  Choice out;
  const std::vector<double> original = z;
  for (int pick = 0; pick < 2; ++pick) {
    auto i = std::max_element(z.begin(), z.end()) - z.begin();
    double top = z[std::size_t(i)], sum = 0;
    for (std::size_t j = 0; j < z.size(); ++j) {
      if (z[j] == kNever) continue;
      double gap = (top - original[j]) / std::max(std::fabs(original[j]), top);
      if (!(gap > 2 * jitter)) sum += std::exp(z[j] - top);
    }
    out.ids.push_back(i);
    out.weights.push_back(1 / sum);
    z[std::size_t(i)] = kNever;
  }
  return out;
}

double rms(const std::vector<double>& x, double eps) {
  double squares = 0;
  for (double v : x) squares += v * v;
  return std::sqrt(squares / double(x.size()) + eps);
}

Choice route(const LayerWeights& l, const std::vector<double>& x, std::int64_t token_id) {
  const RoutingSpec& r = l.problem.routing;
  std::vector<double> z(std::size_t(r.num_experts + r.zero_experts), 0.0);
  double root = r.input_norm_eps > 0 ? rms(x, double(r.input_norm_eps)) : 1;
  for (std::size_t e = 0; e < z.size(); ++e) {
    if (!l.router.logit_bias.empty()) z[e] = l.router.logit_bias[e];
    for (std::size_t h = 0; h < x.size(); ++h)
      z[e] += double(l.router.weight[e * x.size() + h]) * x[h] / root;
  }
  if (r.choice == ChoiceRule::kSparseMixer) return sparse_mixer(double(r.jitter), z);
  std::vector<double> s = scores(r.score, z), c = s;
  for (std::size_t e = 0; r.choice_bias && e < c.size(); ++e)
    c[e] += double(l.router.choice_bias[e]);
  drop_groups(r, c);
  Choice out;
  out.ids = best(c, r.top_k);
  if (r.choice == ChoiceRule::kHash)
    for (std::int64_t j = 0; j < r.top_k; ++j)
      out.ids[std::size_t(j)] = l.router.hash_table[std::size_t(token_id * r.top_k + j)];
  for (std::int64_t e : out.ids) out.weights.push_back(s[std::size_t(e)]);
  map_weights(r, out.weights);
  for (std::size_t j = 0; r.per_expert_scale && j < out.ids.size(); ++j)
    out.weights[j] *= double(l.router.per_expert_scale[std::size_t(out.ids[j])]);
  return out;
}

void add_scaled(std::vector<double>& y, double factor, const std::vector<double>& row) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += factor * row[i];
}

/// Sum of what the chosen experts make of `x`, factor applied; a zero expert returns `x` itself.
std::vector<double> routed_sum(const LayerWeights& l, const std::vector<DenseExpert>& experts,
                               const Choice& choice, const std::vector<double>& x) {
  std::vector<double> y(x.size(), 0.0);
  for (std::size_t j = 0; j < choice.ids.size(); ++j) {
    const bool zero = choice.ids[j] >= l.problem.num_experts();
    const bool on_input = l.problem.routing.placement == WeightPlacement::kInput && !zero;
    std::vector<double> in = x;
    for (double& v : in) v *= on_input ? choice.weights[j] : 1;
    add_scaled(
        y, (on_input ? 1 : choice.weights[j]) * double(l.problem.routed_scaling_factor),
        zero ? in : run_expert(experts[std::size_t(choice.ids[j])], l.problem.activation, in));
  }
  return y;
}

/// RMSNorm, where the layer has one.
void normalise(const checkpoint::LatentProjection& l, std::vector<double>& y) {
  if (l.norm.empty()) return;
  double squares = 0;
  for (double v : y) squares += v * v;
  const double root = std::sqrt(squares / double(y.size()) + double(l.norm_eps));
  for (std::size_t i = 0; i < y.size(); ++i) y[i] *= double(l.norm[i]) / root;
}

}  // namespace

std::vector<double> naive_moe(const LayerWeights& l, std::span<const float> x,
                              std::span<const std::int32_t> ids) {
  std::size_t hidden = std::size_t(l.problem.hidden);
  std::vector<DenseExpert> experts;
  for (std::int64_t e = 0; e < l.problem.num_experts(); ++e) experts.emplace_back(l.expert(e));
  std::optional<DenseExpert> shared;
  if (l.shared) shared.emplace(l.shared->weights);
  std::optional<Dense> down, up;
  if (l.latent) down.emplace(l.latent->down), up.emplace(l.latent->up);
  std::vector<double> out;
  for (std::size_t t = 0; t * hidden < x.size(); ++t) {
    std::vector<double> row(x.begin() + std::ptrdiff_t(t * hidden),
                            x.begin() + std::ptrdiff_t((t + 1) * hidden));
    Choice choice = route(l, row, ids.empty() ? 0 : ids[t]);
    const std::vector<double> in = down ? down->times(row, {}) : row;
    std::vector<double> y = routed_sum(l, experts, choice, in);
    if (up) {
      normalise(*l.latent, y);
      y = up->times(y, {});
    }
    if (shared) {
      double gate = 0;
      for (std::size_t h = 0; h < l.shared->gate.size(); ++h)
        gate += double(l.shared->gate[h]) * row[h];
      add_scaled(y, l.shared->gate.empty() ? 1 : sigmoid(gate),
                 run_expert(*shared, l.shared->activation, row));
    }
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

double rel_l2(std::span<const double> y, std::span<const float> r) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < r.size(); ++i) {
    error += (y[i] - double(r[i])) * (y[i] - double(r[i]));
    size += double(r[i]) * double(r[i]);
  }
  return size == 0 ? (error == 0 ? 0 : 1) : std::sqrt(error / size);
}

}  // namespace switchyard::test
