// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/expert_errors.h"

#include <algorithm>
#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/judge.h"
#include "switchyard/layer/latent.h"

namespace switchyard::layer {
namespace {

constexpr std::int64_t kRowsPerExpert = 8;
constexpr std::int64_t kBlockExperts = 32;  // of a call; bounds the memory of its rows

/// The experts' input of one block: dealt tokens, and what they read of them.
struct Deal {
  std::int64_t tokens = 0;
  std::vector<float> x;           // [tokens, H']
  std::vector<std::int32_t> ids;  // [tokens, choices]
  std::vector<float> ones;
};

std::vector<float> exact_hidden(const Layer& layer, std::int64_t first, std::int64_t count,
                                std::int64_t given, const float* hidden) {
  const std::int64_t h = layer.problem().hidden;
  const Dtype dtype = layer.options().dtype;
  std::vector<float> out(std::size_t(count * h));
  std::vector<std::byte> typed(std::size_t(h) * size_of(dtype));
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t i = 0; i < h; ++i) {
      store_element(dtype, typed.data(), i, hidden[(first + t) % given * h + i]);
      out[std::size_t(t * h + i)] = load_element(dtype, typed.data(), i);
    }
  return out;
}

/// The latent rows of fp32 hidden states that hold exact values.
std::vector<float> latent_of(const Layer& layer, const std::vector<float>& hidden,
                             std::int64_t tokens) {
  ForwardArgs a;
  a.tokens = tokens;
  a.hidden = hidden.data();
  a.hidden_stride = layer.problem().hidden;
  std::vector<float> out(std::size_t(tokens * layer.problem().latent));
  HostBuffer workspace(
      latent_workspace_bytes(*layer.latent(), tokens, layer.options().pool->size()));
  project_down(layer, {a, Dtype::kF32, true}, out.data(), workspace.bytes());
  return out;
}

/// Rows for experts first .. first + count - 1; a token's choices are distinct experts.
Deal deal(const Layer& layer, std::int64_t first, std::int64_t count, std::int64_t given,
          const float* hidden) {
  const std::int64_t width = layer.routed().shape.top_k;
  Deal d;
  d.tokens = (kRowsPerExpert * count + width - 1) / width;
  if (width > count) d.tokens = kRowsPerExpert;
  d.ids.assign(std::size_t(d.tokens * width), -1);
  d.ones.assign(d.ids.size(), 1.0f);
  for (std::int64_t t = 0; t < d.tokens; ++t)
    for (std::int64_t j = 0; j < std::min(width, count); ++j)
      d.ids[std::size_t(t * width + j)] = std::int32_t(first + (t * width + j) % count);
  const std::vector<float> exact = exact_hidden(layer, first, d.tokens, given, hidden);
  d.x = layer.latent() != nullptr ? latent_of(layer, exact, d.tokens) : exact;
  return d;
}

/// One way to compute a block: its unweighted rows and FC2's inputs.
struct Rows {
  std::vector<double> rows, inter;
};

/// The leaf's on the GPU, which reads the layer's dtype; `d.x` holds its values.
Rows device_rows(const Layer& layer, const Deal& d) {
  const ops::FfnShape& s = layer.routed().shape;
  const Dtype dtype = layer.options().dtype;
  std::vector<std::byte> x(d.x.size() * size_of(dtype));
  for (std::size_t i = 0; i < d.x.size(); ++i)
    store_element(dtype, x.data(), std::int64_t(i), d.x[i]);
  std::vector<float> rows(d.ids.size() * std::size_t(s.hidden));
  Rows out{{}, std::vector<double>(d.ids.size() * std::size_t(s.inter))};
  StageCapture capture{.inter = out.inter.data()};
  ops::FfnArgs f;
  f.tokens = d.tokens;
  f.x_dtype = layer.options().dtype;
  f.x = x.data();
  f.x_stride = s.hidden;
  f.ids = d.ids.data();
  f.weights = d.ones.data();
  f.rows_dtype = Dtype::kF32;
  f.rows = rows.data();
  f.capture = &capture;
  experts_from_host(*layer.options().leaf, layer.routed(), f);
  out.rows.assign(rows.begin(), rows.end());
  return out;
}

Rows leaf_rows(const Layer& layer, const Deal& d) {
  if (on_cuda(layer)) return device_rows(layer, d);
  const ExpertBank& bank = layer.routed();
  std::vector<float> rows(d.ids.size() * std::size_t(bank.shape.hidden));
  Rows out{{}, std::vector<double>(d.ids.size() * std::size_t(bank.shape.inter))};
  HostBuffer workspace(layer.options().leaf->ffn->workspace_bytes(
      bank.shape, bank.layout, d.tokens, {layer.options().pool->size(), layer.options().isa}));
  StageCapture capture;
  capture.inter = out.inter.data();
  ops::FfnArgs f;
  f.shape = &bank.shape;
  f.layout = &bank.layout;
  f.packed = bank.packed.data();
  f.fc1_input_scale = bank.scales.fc1;
  f.activation = bank.activation.data();
  f.tokens = d.tokens;
  f.x_dtype = f.rows_dtype = Dtype::kF32;
  f.x = d.x.data();
  f.x_stride = bank.shape.hidden;
  f.ids = d.ids.data();
  f.weights = d.ones.data();
  f.rows = rows.data();
  f.capture = &capture;
  f.pool = layer.options().pool.get();
  f.isa = layer.options().isa;
  f.workspace = workspace.bytes();
  layer.options().leaf->ffn->forward(f);
  out.rows.assign(rows.begin(), rows.end());
  return out;
}

/// Codes of FC2's input that stand in for the oracle's own in the marked rows.
struct Given {
  const double* inter = nullptr;
  const std::uint8_t* use = nullptr;
};

/// The oracle's rows under `shape`.
Rows oracle_rows(const Layer& layer, const Deal& d, const ops::FfnShape& shape,
                 const Given& given) {
  const ExpertBank& bank = layer.routed();
  Rows out{std::vector<double>(d.ids.size() * std::size_t(shape.hidden)),
           std::vector<double>(d.ids.size() * std::size_t(shape.inter))};
  ops::grouped_ffn_ref({.shape = &shape,
                        .expert = &layer.weights().expert,
                        .fc1_input_scale = bank.scales.fc1,
                        .fc2_input_scale = bank.scales.fc2.data(),
                        .activation = bank.activation.data(),
                        .tokens = d.tokens,
                        .x = d.x.data(),
                        .ids = d.ids.data(),
                        .weights = d.ones.data(),
                        .rows = out.rows.data(),
                        .inter_out = out.inter.data(),
                        .inter_in = given.inter,
                        .use_inter = given.use,
                        .pool = layer.options().pool.get()});
  return out;
}

/// Which codes count as the same, and how many of a row may differ by a tie.
struct Ties {
  double same = 0, share = 0;

  /// As judge() has it. A code in a hundred, or three times what all codes may differ by.
  static Ties of(const Layer& layer) {
    return {same_code(layer, layer.routed()), std::max(0.01, 3 * budgets_of(layer).flips)};
  }
};

/// Rows in which a code or two fell on the other side of a tie. A row with more is left to show.
std::vector<std::uint8_t> tied_rows(const Rows& leaf, const Rows& oracle, std::int64_t inter,
                                    const Ties& ties) {
  std::vector<std::uint8_t> out(leaf.inter.size() / std::size_t(inter));
  for (std::size_t r = 0; r < out.size(); ++r) {
    std::int64_t flips = 0;
    for (std::size_t i = r * std::size_t(inter); i < (r + 1) * std::size_t(inter); ++i) {
      const double a = leaf.inter[i], b = oracle.inter[i];
      flips += !(std::abs(a - b) <= ties.same * std::max(std::abs(a), std::abs(b)));
    }
    out[r] =
        flips > 0 && flips <= std::max<std::int64_t>(1, std::int64_t(double(inter) * ties.share));
  }
  return out;
}

/// The rows of expert `id`, one behind the other.
std::vector<double> rows_of(const Deal& d, std::int64_t id, const std::vector<double>& all) {
  const std::size_t h = all.size() / d.ids.size();
  std::vector<double> out;
  for (std::size_t r = 0; r < d.ids.size(); ++r)
    if (d.ids[r] == id)
      out.insert(out.end(), all.begin() + std::ptrdiff_t(r * h),
                 all.begin() + std::ptrdiff_t((r + 1) * h));
  return out;
}

double distance(const Deal& d, std::int64_t id, const Rows& y, const Rows& r) {
  const std::vector<double> a = rows_of(d, id, y.rows), b = rows_of(d, id, r.rows);
  return rel_l2(a.data(), b.data(), a.size());
}

void add_scales(const Layer& layer, ExpertError& e) {
  const ExpertBank& bank = layer.routed();
  if (!formats::is_static(bank.shape.quant)) return;
  e.fc2_scale = bank.scales.fc2[std::size_t(e.id)];
  const checkpoint::ExpertWeights w = layer.weights().expert(e.id);
  e.fc1_scale = w.up.input_scale;
  if (w.gate && w.gate->input_scale)
    e.fc1_scale = std::max(e.fc1_scale.value_or(0), *w.gate->input_scale);
}

float median(std::vector<float> v) {
  std::nth_element(v.begin(), v.begin() + std::ptrdiff_t(v.size() / 2), v.end());
  return v[v.size() / 2];
}

void add_note(ExpertError& e, const std::string& text) {
  e.note += cat(e.note.empty() ? "" : "; ", text);
}

void note_scales(std::vector<ExpertError>& experts, std::optional<float> ExpertError::*scale,
                 const char* name) {
  constexpr float kFar = 16;
  std::vector<float> all;
  for (const ExpertError& e : experts)
    if (e.*scale) all.push_back(*(e.*scale));
  if (all.empty()) return;
  const float middle = median(all);
  for (ExpertError& e : experts) {
    if (!(e.*scale)) continue;
    const float ratio = *(e.*scale) / middle;
    if (ratio > kFar || ratio < 1 / kFar)
      add_note(e, cat(name, " input scale is ", ratio,
                      " times the layer's median: it looks uncalibrated"));
  }
}

}  // namespace

std::vector<ExpertError> expert_errors(const Layer& layer, std::int64_t tokens,
                                       const float* hidden) {
  require(tokens > 0, "expert errors: no tokens are given");
  require(!layer.needs_calibration(), "expert errors: the layer has no static scales yet");
  const auto reading = layer.reading();
  const std::int64_t experts = layer.problem().num_experts();
  ops::FfnShape exact = layer.routed().shape;
  exact.quant = formats::ActivationQuant::kF32;
  const Ties ties = Ties::of(layer);
  std::vector<ExpertError> out;
  for (std::int64_t first = 0; first < experts; first += kBlockExperts) {
    const std::int64_t count = std::min(kBlockExperts, experts - first);
    const Deal d = deal(layer, first, count, tokens, hidden);
    const Rows leaf = leaf_rows(layer, d);
    const ops::FfnShape& shape = layer.routed().shape;
    const std::vector<std::uint8_t> tied =
        tied_rows(leaf, oracle_rows(layer, d, shape, {}), shape.inter, ties);
    const Rows oracle = oracle_rows(layer, d, shape, {leaf.inter.data(), tied.data()});
    const Rows plain = oracle_rows(layer, d, exact, {});
    for (std::int64_t id = first; id < first + count; ++id) {
      ExpertError e;
      e.id = id;
      e.rows = std::count(d.ids.begin(), d.ids.end(), std::int32_t(id));
      e.rel_l2_oracle = distance(d, id, leaf, oracle);
      e.rel_l2_unquantised = distance(d, id, leaf, plain);
      add_scales(layer, e);
      out.push_back(std::move(e));
    }
  }
  return out;
}

void note_odd_experts(std::vector<ExpertError>& experts, double limit,
                      const std::vector<std::int64_t>& unseen) {
  for (std::int64_t id : unseen)
    if (id < std::int64_t(experts.size()))
      add_note(experts[std::size_t(id)], "the calibration showed it no token");
  note_scales(experts, &ExpertError::fc1_scale, "FC1's");
  note_scales(experts, &ExpertError::fc2_scale, "FC2's");
  for (ExpertError& e : experts)
    if (!(e.rel_l2_unquantised <= limit))
      add_note(e, cat("its error exceeds the format's limit of ", limit));
}

}  // namespace switchyard::layer
