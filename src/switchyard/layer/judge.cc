// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "switchyard/base/check.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/oracle.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"

namespace switchyard::layer {
namespace {

using formats::ActivationQuant;

// Scales of sums in fp32 differ in their last places, those behind the tensor cores' sums of E4M3
// by what its budget allows; codes differ by a step, a fifteenth or more.
constexpr double kSameE4m3 = 1e-2;

/// Whether the bank's multiplications are those of E4M3.
bool sums_e4m3(const Layer& layer, const ExpertBank& bank) {
  return on_cuda(layer) && ops::multiplies_codes(bank.shape);
}

struct LeafRun {
  std::vector<std::byte> hidden, out;
  std::vector<float> exact;  // what the hidden dtype holds
  std::vector<double> inter, shared_inter;
  std::vector<std::int32_t> ids;
  std::vector<float> weights, latent;
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
  if (layer.shared() != nullptr)
    run.shared_inter.resize(std::size_t(a.tokens * layer.shared()->shape.inter));
  run.latent.resize(std::size_t(a.tokens * p.latent));
  run.ids.resize(std::size_t(a.tokens * p.top_k()));
  run.weights.resize(run.ids.size());
  for (std::size_t i = 0; i < size; ++i) {
    store_element(dtype, run.hidden.data(), std::int64_t(i), a.hidden[i]);
    run.exact[i] = load_element(dtype, run.hidden.data(), std::int64_t(i));
  }
  HostBuffer workspace(on_cuda(layer) ? 0 : layer.workspace_bytes(a.tokens));
  StageCapture capture;
  capture.inter = run.inter.data();
  capture.shared_inter = run.shared_inter.empty() ? nullptr : run.shared_inter.data();
  capture.latent = run.latent.empty() ? nullptr : run.latent.data();
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
  if (on_cuda(layer)) {
    forward_from_host(layer, f);
  } else {
    single_rank_forward(layer, f);  // judge() holds the gate
  }
  return run;
}

/// Both banks' flipped rows.
struct Flips {
  std::vector<std::uint8_t> routed, shared;
};

/// Counts the flips of both banks into `j`. Tokens whose experts differ lawfully are left out.
Flips count_flips(const Layer& layer, const LeafRun& run, const OracleResult& oracle,
                  Judgement& j) {
  const ops::FfnShape& s = layer.routed().shape;
  Flips f{std::vector<std::uint8_t>(oracle.ids.size()), {}};
  if (requantises(s.quant)) {
    j.codes += std::int64_t(oracle.ids.size()) * s.inter;
    const std::set<std::int64_t> swapped(oracle.swapped.begin(), oracle.swapped.end());
    for (std::size_t r = 0; r < oracle.ids.size(); ++r)
      if (oracle.ids[r] >= 0 && oracle.ids[r] < s.experts &&
          swapped.count(std::int64_t(r) / s.top_k) == 0)
        j.codes_differing += find_flips(
            {run.inter, oracle.inter, s.inter, same_code(layer, layer.routed())}, r, f.routed);
  }
  const ExpertBank* shared = layer.shared();
  if (shared == nullptr || !requantises(shared->shape.quant)) return f;
  f.shared.resize(oracle.shared_inter.size() / std::size_t(shared->shape.inter));
  j.codes += std::int64_t(oracle.shared_inter.size());
  for (std::size_t t = 0; t < f.shared.size(); ++t)
    j.codes_differing += find_flips(
        {run.shared_inter, oracle.shared_inter, shared->shape.inter, same_code(layer, *shared)}, t,
        f.shared);
  return f;
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

void find_worst_row(const std::vector<double>& y, const std::vector<double>& r, std::int64_t hidden,
                    double slack, Judgement& j) {
  for (std::size_t t = 0; t * std::size_t(hidden) < y.size(); ++t) {
    const std::size_t at = t * std::size_t(hidden);
    const double row = rel_l2(y.data() + at, r.data() + at, std::size_t(hidden), slack);
    if (!(row > j.worst_row_rel_l2) && !std::isnan(row)) continue;
    if (std::isnan(j.worst_row_rel_l2)) return;  // the first NaN stays
    j.worst_row = std::int64_t(t);
    j.worst_row_rel_l2 = row;
  }
}

double largest_of(Dtype dtype) {
  return dtype == Dtype::kFp16 ? 65504 : double(std::numeric_limits<float>::max());
}

bool beyond(const std::vector<double>& values, double limit) {
  return std::any_of(values.begin(), values.end(),
                     [&](double v) { return !(std::abs(v) <= limit); });
}

}  // namespace

double same_code(const Layer& layer, const ExpertBank& bank) {
  return sums_e4m3(layer, bank) ? kSameE4m3 : kSameCode;
}

bool requantises(ActivationQuant q) {
  return q != ActivationQuant::kNone && q != ActivationQuant::kF32;
}

std::int64_t find_flips(const Codes& c, std::size_t r, std::vector<std::uint8_t>& flipped) {
  std::int64_t count = 0;
  for (std::size_t i = r * std::size_t(c.width); i < (r + 1) * std::size_t(c.width); ++i) {
    const double a = c.leaf[i], b = c.oracle[i];
    const bool same = std::abs(a - b) <= c.same * std::max(std::abs(a), std::abs(b));
    if (same || (std::isnan(a) && std::isnan(b))) continue;
    ++count;
    flipped[r] = 1;
  }
  return count;
}

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

Budgets budgets_of(const Layer& layer) {
  Budgets b = budgets_of(layer.routed().shape.quant);
  const bool shared = layer.shared() != nullptr && sums_e4m3(layer, *layer.shared());
  if (shared || sums_e4m3(layer, layer.routed())) b.flips = kE4m3Flips;
  return b;
}

double rel_l2(const double* y, const double* r, std::size_t size) { return rel_l2(y, r, size, 0); }

double rounding_slack(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16:
      return 0x1p-134;
    case Dtype::kFp16:
      return 0x1p-25;
    default:
      return 0x1p-150;
  }
}

double rel_l2(const double* y, const double* r, std::size_t size, double slack) {
  double diff = 0, norm = 0;
  for (std::size_t i = 0; i < size; ++i) {
    double d = std::abs(y[i] - r[i]);
    if (d <= slack) d = 0;  // a NaN stays one
    if (d > slack) d -= slack;
    diff += d * d;
    norm += r[i] * r[i];
  }
  if (diff == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(diff / norm);
}

bool Judgement::ok(const Budgets& b) const {
  // NaN fails: every comparison with it is false.
  return rel_l2_oracle <= b.oracle && ids_differing == 0 &&
         double(codes_differing) <= std::max(1.0, b.flips * double(codes));
}

Judgement judge(const Layer& layer, const JudgeArgs& a) {
  const std::int64_t hidden = layer.problem().hidden;
  const auto reading = layer.reading();  // the leaf and the oracle must see the same weights
  const LeafRun run = run_leaf(layer, a);
  OracleArgs ask{.tokens = a.tokens,
                 .hidden = run.exact.data(),
                 .token_ids = a.token_ids,
                 .logits = a.logits,
                 .leaf_ids = run.ids.data(),
                 .leaf_weights = run.weights.data()};
  if (!run.latent.empty()) ask.leaf_latent = run.latent.data();
  OracleResult oracle = run_oracle_held(layer, ask);
  Judgement j;
  const Flips flips = count_flips(layer, run, oracle, j);
  if (j.codes_differing > 0) {
    ask.leaf_inter = run.inter.data();
    ask.use_leaf_inter = flips.routed.data();
    if (!flips.shared.empty()) {
      ask.leaf_shared_inter = run.shared_inter.data();
      ask.use_leaf_shared_inter = flips.shared.data();
    }
    oracle = run_oracle_held(layer, ask);
  }
  j.ids = run.ids;
  j.ids_differing = oracle.ids_differing;
  j.ids_near_tie = oracle.ids_near_tie;
  j.out.resize(oracle.out.size());
  for (std::size_t i = 0; i < j.out.size(); ++i)
    j.out[i] = load_element(layer.options().dtype, run.out.data(), std::int64_t(i));
  const double range = largest_of(Dtype::kF32);
  j.overflows = beyond(oracle.out, largest_of(layer.options().dtype)) ||
                beyond(oracle.inter, range) || beyond(oracle.shared_inter, range);
  std::vector<double> y = j.out;
  drop_swapped(oracle.swapped, hidden, y, oracle.out);
  const double slack = rounding_slack(layer.options().dtype);
  j.rel_l2_oracle = rel_l2(y.data(), oracle.out.data(), y.size(), slack);
  find_worst_row(y, oracle.out, hidden, slack, j);
  return j;
}

}  // namespace switchyard::layer
