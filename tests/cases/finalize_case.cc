// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/finalize_case.h"

#include <algorithm>
#include <cmath>

#include "switchyard/base/random.h"

namespace switchyard::test {

float rounded_to(Dtype t, float x) {
  std::byte bits[4];
  store_element(t, bits, 0, x);
  return load_element(t, bits, 0);
}

Behind::Behind(Dtype t, std::int64_t tokens, std::int64_t hidden)
    : residual(std::size_t(tokens * hidden) * size_of(t)),
      gamma(std::size_t(hidden) * size_of(t)),
      residual_out(residual.size(), std::byte(0xff)),
      norm_out(residual_out) {
  const Random random(3, 9);
  for (std::int64_t i = 0; i < tokens * hidden; ++i)
    store_element(t, residual.data(), i, random.normal(std::uint64_t(i)));
  for (std::int64_t i = 0; i < hidden; ++i)
    store_element(t, gamma.data(), i, 0.5F + random.uniform(std::uint64_t(i)));
}

BehindLayer Behind::args() {
  return {.residual_in = residual.data(),
          .rms_gamma = gamma.data(),
          .rms_eps = kEps,
          .weight_bias = kWeightBias,
          .residual_out = residual_out.data(),
          .norm_out = norm_out.data()};
}

// Rows and shared shard are rounded once where an all-reduce finalizes them. They are summed in
// choice order, or under `reduce` in the order of the rank's experts. A weight on the input is in
// the row; a zero expert's row is the token, which it then weighs all the same.
float EndOf::contribution(int rank, std::int64_t t, std::int64_t h) const {
  const layer::Layer& part = *parts[std::size_t(rank)];
  const Share& s = shares[std::size_t(rank)];
  const Problem& p = part.problem();
  const Dtype dtype = part.options().dtype;
  const std::int64_t k = part.routed().shape.top_k, own = p.top_k(), hidden = p.hidden;
  const bool rounds = ending != Ending::kPlain;
  const auto as_kept = [&](float x) { return rounds ? rounded_to(dtype, x) : x; };
  const auto is_zero = [&](std::int64_t i) {
    return i % k < own && s.chosen[std::size_t(i)] >= p.num_experts();
  };
  std::vector<std::int64_t> order;
  for (std::int64_t i = t * k; i < (t + 1) * k; ++i)
    if (s.ids[std::size_t(i)] >= 0 || (rank == 0 && is_zero(i))) order.push_back(i);
  if (ending == Ending::kReduce)
    std::ranges::sort(order, {}, [&](std::int64_t i) { return s.ids[std::size_t(i)]; });
  const bool on_input = p.routing.placement == WeightPlacement::kInput;
  const auto term = [&](std::int64_t i) {
    const float row = is_zero(i) ? call.exact[std::size_t(t * hidden + h)]
                                 : as_kept(s.rows[std::size_t(i * hidden + h)]);
    return (on_input && !is_zero(i) ? 1.0F : s.weights[std::size_t(i)]) * row;
  };
  float acc = 0;
  for (std::int64_t i : order)
    if (i % k < own) acc = acc + term(i);
  acc *= p.routed_scaling_factor;
  for (std::int64_t i : order)  // fused shared experts
    if (i % k >= own) acc = acc + term(i);
  if (!s.shared.empty()) acc = acc + as_kept(s.shared[std::size_t(t * hidden + h)]);
  return acc;
}

std::vector<float> EndOf::sums() const {
  const Dtype t = parts[0]->options().dtype;
  const std::int64_t hidden = parts[0]->problem().hidden;
  std::vector<float> out;
  for (std::int64_t m = 0; m < call.tokens; ++m)
    for (std::int64_t h = 0; h < hidden; ++h) {
      float sum = 0;
      for (int r = 0; r < int(parts.size()); ++r)
        if (r != left_out) sum = sum + rounded_to(t, contribution(r, m, h));
      out.push_back(sum);
    }
  return out;
}

std::vector<std::byte> EndOf::output() const {
  const Dtype t = parts[0]->options().dtype;
  const std::vector<float> sum = sums();
  std::vector<std::byte> out(sum.size() * size_of(t));
  for (std::size_t i = 0; i < sum.size(); ++i)
    store_element(t, out.data(), std::int64_t(i), sum[i]);
  return out;
}

void EndOf::write(Behind& b) const {
  const Dtype t = parts[0]->options().dtype;
  const std::int64_t hidden = parts[0]->problem().hidden;
  const std::vector<float> sum = sums();
  for (std::int64_t m = 0; m < call.tokens; ++m) {
    std::vector<float> p;
    float lanes[256] = {};
    for (std::int64_t h = 0; h < hidden; ++h) {
      const std::int64_t at = m * hidden + h;
      p.push_back(rounded_to(t, sum[std::size_t(at)] + load_element(t, b.residual.data(), at)));
      lanes[h % 256] = lanes[h % 256] + p.back() * p.back();
    }
    for (int half = 128; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) lanes[j] = lanes[j] + lanes[j + half];
    const float rstd = 1.0F / std::sqrt(lanes[0] / float(hidden) + Behind::kEps);
    for (std::int64_t h = 0; h < hidden; ++h) {
      const float norm =
          (p[std::size_t(h)] * rstd) * (Behind::kWeightBias + load_element(t, b.gamma.data(), h));
      store_element(t, b.residual_out.data(), m * hidden + h, p[std::size_t(h)]);
      store_element(t, b.norm_out.data(), m * hidden + h, norm);
    }
  }
}

}  // namespace switchyard::test
