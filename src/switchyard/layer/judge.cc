// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/judge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "switchyard/layer/oracle.h"

namespace switchyard::layer {
namespace {

using formats::ActivationQuant;

// Scales computed in fp32 and in double differ in their last places; codes differ by a step.
constexpr double kSameCode = 1e-3;

bool requantises(ActivationQuant q) {
  return q != ActivationQuant::kNone && q != ActivationQuant::kF32;
}

struct LeafRun {
  std::vector<std::byte> hidden, out;
  std::vector<float> exact;  // what the hidden dtype holds
  std::vector<double> inter;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

LeafRun run_leaf(const Layer& layer, const JudgeArgs& a) {
  const Problem& p = layer.problem();
  const Dtype dtype = layer.options().dtype;
  const std::size_t size = std::size_t(a.tokens * p.hidden);
  const ops::FfnShape& s = layer.routed().shape;
  LeafRun run;
  run.hidden.resize(size * size_of(dtype));
  run.out.assign(size * size_of(dtype), std::byte(0xff));  // poison: NaN in every dtype
  run.exact.resize(size);
  run.inter.resize(std::size_t(a.tokens * s.top_k * s.inter));
  run.ids.resize(std::size_t(a.tokens * p.top_k()));
  run.weights.resize(run.ids.size());
  for (std::size_t i = 0; i < size; ++i) {
    store_element(dtype, run.hidden.data(), std::int64_t(i), a.hidden[i]);
    run.exact[i] = load_element(dtype, run.hidden.data(), std::int64_t(i));
  }
  HostBuffer workspace(layer.workspace_bytes(a.tokens));
  StageCapture capture{run.inter.data()};
  ForwardArgs f;
  f.tokens = a.tokens;
  f.hidden = run.hidden.data();
  f.hidden_stride = f.out_stride = p.hidden;
  f.logits = a.logits;
  f.token_ids = a.token_ids;
  f.out = run.out.data();
  f.ids_out = run.ids.data();
  f.weights_out = run.weights.data();
  f.capture = &capture;
  f.workspace = workspace.bytes();
  layer.forward(f);
  return run;
}

/// Marks the rows whose codes differ anywhere; returns the number of differing codes.
std::int64_t find_flips(const LeafRun& run, const OracleResult& oracle, std::int64_t inter,
                        std::vector<std::uint8_t>& flipped) {
  std::int64_t count = 0;
  for (std::size_t r = 0; r < oracle.ids.size(); ++r) {
    if (oracle.ids[r] < 0) continue;
    for (std::size_t i = r * std::size_t(inter); i < (r + 1) * std::size_t(inter); ++i) {
      const double a = run.inter[i], b = oracle.inter[i];
      const bool same = std::abs(a - b) <= kSameCode * std::max(std::abs(a), std::abs(b));
      if (same || (std::isnan(a) && std::isnan(b))) continue;
      ++count;
      flipped[r] = 1;
    }
  }
  return count;
}

/// Zeroes both sides of the tokens whose near tie went the other way: their experts differ
/// lawfully.
void drop_swapped(const std::vector<std::int64_t>& swapped, std::int64_t hidden,
                  std::vector<double>& y, std::vector<double>& r) {
  for (std::int64_t t : swapped) {
    std::fill_n(y.begin() + t * hidden, hidden, 0.0);
    std::fill_n(r.begin() + t * hidden, hidden, 0.0);
  }
}

}  // namespace

Budgets budgets_of(ActivationQuant q) {
  switch (q) {
    case ActivationQuant::kF32:
      return {1e-5, 1e-5};
    case ActivationQuant::kNone:
      return {5e-3, 5e-3};
    case ActivationQuant::kNvfp4:
      return {2e-3, 0.20};
    default:
      return {2e-3, 0.06};
  }
}

double rel_l2(const double* y, const double* r, std::size_t size) {
  double diff = 0, norm = 0;
  for (std::size_t i = 0; i < size; ++i) {
    diff += (y[i] - r[i]) * (y[i] - r[i]);
    norm += r[i] * r[i];
  }
  if (diff == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(diff / norm);
}

bool Judgement::ok(const Budgets& b) const {
  // NaN fails: every comparison with it is false.
  return rel_l2_oracle <= b.oracle && ids_differing == 0 &&
         double(codes_differing) <= std::max(1.0, kCodeFlips * double(codes));
}

Judgement judge(const Layer& layer, const JudgeArgs& a) {
  const ops::FfnShape& s = layer.routed().shape;
  const std::int64_t hidden = layer.problem().hidden;
  const LeafRun run = run_leaf(layer, a);
  OracleArgs ask{.tokens = a.tokens,
                 .hidden = run.exact.data(),
                 .token_ids = a.token_ids,
                 .logits = a.logits,
                 .leaf_ids = run.ids.data(),
                 .leaf_weights = run.weights.data()};
  OracleResult oracle = run_oracle(layer, ask);
  Judgement j;
  if (requantises(s.quant)) {
    std::vector<std::uint8_t> flipped(oracle.ids.size());
    j.codes = std::int64_t(oracle.ids.size()) * s.inter;
    for (std::int64_t t : oracle.swapped)
      std::fill_n(oracle.ids.begin() + t * s.top_k, s.top_k, -1);
    j.codes_differing = find_flips(run, oracle, s.inter, flipped);
    if (j.codes_differing > 0) {
      ask.leaf_inter = run.inter.data();
      ask.use_leaf_inter = flipped.data();
      oracle = run_oracle(layer, ask);
    }
  }
  j.ids = run.ids;
  j.ids_differing = oracle.ids_differing;
  j.ids_near_tie = oracle.ids_near_tie;
  j.out.resize(oracle.out.size());
  for (std::size_t i = 0; i < j.out.size(); ++i)
    j.out[i] = load_element(layer.options().dtype, run.out.data(), std::int64_t(i));
  std::vector<double> y = j.out;
  drop_swapped(oracle.swapped, hidden, y, oracle.out);
  j.rel_l2_oracle = rel_l2(y.data(), oracle.out.data(), y.size());
  return j;
}

}  // namespace switchyard::layer
