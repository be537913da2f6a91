// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/stages.h"

#include <cmath>
#include <limits>

#include "switchyard/base/check.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/oracle.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/layer/token_routing.h"
#include "switchyard/ops/quantize/quantize.h"

namespace switchyard::layer {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

template <class T>
std::vector<float> narrowed(const std::vector<T>& v) {
  return {v.begin(), v.end()};
}

/// One token's call with every buffer that it fills.
struct Probe {
  explicit Probe(const Layer& l, const JudgeArgs& args) : layer(l), a(args), s(l.routed().shape) {
    const Problem& p = l.problem();
    const std::size_t k = std::size_t(s.top_k);
    typed.resize(std::size_t(p.hidden) * size_of(l.options().dtype));
    out = typed;
    for (std::int64_t i = 0; i < p.hidden; ++i) {
      store_element(l.options().dtype, typed.data(), i, a.hidden[i]);
      hidden.push_back(load_element(l.options().dtype, typed.data(), i));
    }
    logits.resize(std::size_t(p.num_experts() + p.routing.zero_experts));
    ids.assign(k, -1), weights.assign(k, 1);
    inter.assign(k * std::size_t(s.inter), kNone);
    if (!on_cuda(l)) gate.assign(inter.size(), kNone), up = gate;
    rows.resize(k * std::size_t(s.hidden));
    latent.resize(std::size_t(p.latent));
    if (l.shared() != nullptr) shared_inter.resize(std::size_t(l.shared()->shape.inter));
    if (!on_cuda(l)) workspace = HostBuffer(l.workspace_bytes(1));
  }

  ForwardArgs args() {
    ForwardArgs f;
    f.tokens = 1;
    f.hidden = typed.data();
    f.hidden_stride = f.out_stride = layer.problem().hidden;
    f.logits = a.logits;
    f.token_ids = a.token_ids;
    f.out = out.data();
    f.ids_out = ids.data();
    f.weights_out = weights.data();
    f.workspace = workspace.bytes();
    return f;
  }

  void run() {
    StageCapture capture{.inter = inter.data(),
                         .gate = gate.empty() ? nullptr : gate.data(),
                         .up = up.empty() ? nullptr : up.data(),
                         .shared_inter = shared_inter.empty() ? nullptr : shared_inter.data(),
                         .latent = latent.empty() ? nullptr : latent.data()};
    ForwardArgs f = args();
    f.capture = &capture;
    if (on_cuda(layer)) {
      forward_from_host(layer, f);
    } else {
      single_rank_forward(layer, f);  // stages_of() holds the gate
    }
    find_logits();
    for (std::int64_t j = layer.problem().top_k(); j < s.top_k; ++j)
      ids[std::size_t(j)] =
          std::int32_t(layer.problem().num_experts() + j - layer.problem().top_k());
    find_rows();
  }

  const Layer& layer;
  const JudgeArgs& a;
  const ops::FfnShape& s;
  std::vector<std::byte> typed, out;
  std::vector<float> hidden, logits, weights, gate, up, rows, latent;
  std::vector<std::int32_t> ids;
  std::vector<double> inter, shared_inter;
  HostBuffer workspace;

  /// What the routed experts read.
  const std::vector<float>& x() const { return latent.empty() ? hidden : latent; }

 private:
  void find_logits() {
    if (a.logits.data != nullptr) {
      logits.assign(a.logits.data, a.logits.data + a.logits.cols);
    } else if (layer.problem().routing.choice == ChoiceRule::kCaller) {
      return;
    } else if (on_cuda(layer)) {
      logits_from_host(layer, args(), logits.data());
    } else {
      std::vector<std::int32_t> chosen(ids.size());
      std::vector<float> chosen_weights(ids.size());
      Routed routed{chosen, chosen_weights, s.top_k, 1};
      route_tokens(layer, args(), layer.options().dtype, logits, routed);
    }
  }

  void find_rows() {
    const ExpertBank& bank = layer.routed();
    ops::FfnArgs f;
    f.tokens = 1;
    f.x_stride = s.hidden;
    f.ids = ids.data();
    f.weights = weights.data();
    f.rows_dtype = Dtype::kF32;
    f.rows = rows.data();
    if (on_cuda(layer)) {
      f.x_dtype = layer.options().dtype;
      f.x = typed.data();
      return experts_from_host(*layer.options().leaf, bank, f);
    }
    f.shape = &s;
    f.layout = &bank.layout;
    f.packed = bank.packed.data();
    f.fc1_input_scale = bank.scales.fc1;
    f.activation = bank.activation.data();
    f.x_dtype = Dtype::kF32;
    f.x = x().data();
    f.pool = layer.options().pool.get();
    f.isa = layer.options().isa;
    f.workspace = workspace.bytes();
    layer.options().leaf->ffn->forward(f);
  }
};

/// Row `x` as the first quantiser leaves it, by the leaf's quantiser or by the oracle's.
std::vector<float> quantised(const ExpertBank& bank, std::vector<float> x, bool oracle) {
  const ops::FfnShape& s = bank.shape;
  using Quant = formats::ActivationQuant;
  if (s.quant == Quant::kF32) return x;
  if (s.quant == Quant::kNone) {
    for (float& v : x) {
      if (s.dtype == Dtype::kBf16) v = bf16_to_float(float_to_bf16(v));
      if (s.dtype == Dtype::kFp16) v = fp16_to_float(float_to_fp16(v));
    }
    return x;
  }
  std::vector<std::uint16_t> values(x.size());
  std::vector<float> scales((x.size() + 127) / 128, 1.0f);
  float row_scale = 1;
  const ops::QuantizeRowArgs args{.kind = s.quant,
                                  .x = x.data(),
                                  .cols = std::int64_t(x.size()),
                                  .static_scale = bank.scales.fc1,
                                  .values = values.data(),
                                  .block_scales = scales.data(),
                                  .row_scale = &row_scale};
  if (oracle) {
    std::vector<double> exact(x.size());
    ops::quantize_row_ref(args, exact.data());
    return narrowed(exact);
  }
  ops::quantize_row_cpu(args);
  const bool blocks = s.quant == Quant::kFp8Block128 || s.quant == Quant::kFp8Block128Ue8m0;
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = bf16_to_float(values[i]) * (blocks ? scales[i / 128] : 1.0f) * row_scale;
  return x;
}

std::vector<float> quantised_rows(const Probe& p, bool oracle) {
  std::vector<float> out;
  for (std::size_t j = 0; j < p.ids.size(); ++j) {
    std::vector<float> x = p.x();
    if (p.s.weight_on_input)
      for (float& v : x) v *= p.weights[j];
    if (p.ids[j] < 0 || p.ids[j] >= p.s.experts) x.assign(x.size(), kNone);
    if (p.ids[j] >= 0 && p.ids[j] < p.s.experts) x = quantised(p.layer.routed(), x, oracle);
    out.insert(out.end(), x.begin(), x.end());
  }
  return out;
}

void add(std::vector<Stage>& out, std::string name, std::vector<std::int64_t> shape,
         std::vector<float> values) {
  if (!values.empty()) out.push_back({std::move(name), std::move(shape), std::move(values), {}});
}

void add_leaf(const Probe& p, std::vector<Stage>& out) {
  const Problem& problem = p.layer.problem();
  const std::int64_t h = problem.hidden, k = p.s.top_k, i = p.s.inter;
  const std::int64_t own = problem.top_k();
  std::vector<float> y;
  for (std::int64_t c = 0; c < h; ++c)
    y.push_back(load_element(p.layer.options().dtype, p.out.data(), c));
  add(out, "hidden", {h}, p.hidden);
  add(out, "logits", {std::int64_t(p.logits.size())}, p.logits);
  out.push_back({"ids", {own}, {}, {p.ids.begin(), p.ids.begin() + own}});
  add(out, "weights", {own}, {p.weights.begin(), p.weights.begin() + own});
  add(out, "latent", {problem.latent}, p.latent);
  add(out, "x_quantised", {k, p.s.hidden}, quantised_rows(p, false));
  if (p.s.gated) add(out, "fc1_gate", {k, i}, p.gate);
  add(out, "fc1_up", {k, i}, p.up);
  add(out, "fc2_input", {k, i}, narrowed(p.inter));
  add(out, "rows", {k, p.s.hidden}, p.rows);
  add(out, "shared_fc2_input", {std::int64_t(p.shared_inter.size())}, narrowed(p.shared_inter));
  add(out, "out", {h}, y);
}

/// FC1 in plain loops, one projection: what the oracle's quantised rows `x` give.
std::vector<float> first_gemm(const Probe& p, const checkpoint::ExpertSource& source,
                              const std::vector<float>& x, bool gate) {
  std::vector<float> out(p.ids.size() * std::size_t(p.s.inter), kNone);
  for (std::size_t j = 0; j < p.ids.size(); ++j) {
    if (p.ids[j] < 0 || p.ids[j] >= p.s.experts) continue;
    const checkpoint::ExpertWeights w = source(p.ids[j]);
    const formats::Matrix& m = gate ? *w.gate : w.up;
    const std::vector<float>& bias = gate ? w.gate_bias : w.up_bias;
    for (std::int64_t n = 0; n < p.s.inter; ++n) {
      double sum = bias.empty() ? 0.0 : double(bias[std::size_t(n)]);
      for (std::int64_t c = 0; c < p.s.hidden; ++c)
        sum += m.value(n, c) * double(x[j * std::size_t(p.s.hidden) + std::size_t(c)]);
      out[j * std::size_t(p.s.inter) + std::size_t(n)] = float(sum);
    }
  }
  return out;
}

void add_oracle(const Probe& p, std::vector<Stage>& out) {
  const ExpertBank& bank = p.layer.routed();
  const std::int64_t k = p.s.top_k, i = p.s.inter;
  const OracleResult whole =
      run_oracle_held(p.layer, {.tokens = 1,
                                .hidden = p.hidden.data(),
                                .token_ids = p.a.token_ids,
                                .logits = p.a.logits,
                                .leaf_ids = p.ids.data(),
                                .leaf_weights = p.weights.data(),
                                .leaf_latent = p.latent.empty() ? nullptr : p.latent.data()});
  std::vector<double> inter(std::size_t(k * i), double(kNone));
  std::vector<double> rows(std::size_t(k * p.s.hidden));
  const checkpoint::ExpertSource source = packed_experts(p.layer);
  ops::grouped_ffn_ref({.shape = &p.s,
                        .expert = &source,
                        .fc1_input_scale = bank.scales.fc1,
                        .fc2_input_scale = bank.scales.fc2.data(),
                        .activation = bank.activation.data(),
                        .tokens = 1,
                        .x = p.x().data(),
                        .ids = p.ids.data(),
                        .weights = p.weights.data(),
                        .rows = rows.data(),
                        .inter_out = inter.data(),
                        .pool = p.layer.options().pool.get()});
  out.push_back({"oracle.ids",
                 {p.layer.problem().top_k()},
                 {},
                 {whole.ids.begin(), whole.ids.begin() + p.layer.problem().top_k()}});
  const std::vector<float> x = quantised_rows(p, true);
  add(out, "oracle.x_quantised", {k, p.s.hidden}, x);
  if (p.s.gated) add(out, "oracle.fc1_gate", {k, i}, first_gemm(p, source, x, true));
  add(out, "oracle.fc1_up", {k, i}, first_gemm(p, source, x, false));
  add(out, "oracle.fc2_input", {k, i}, narrowed(inter));
  add(out, "oracle.rows", {k, p.s.hidden}, narrowed(rows));
  add(out, "oracle.shared_fc2_input", {std::int64_t(whole.shared_inter.size())},
      narrowed(whole.shared_inter));
  add(out, "oracle.out", {std::int64_t(whole.out.size())}, narrowed(whole.out));
}

}  // namespace

std::vector<Stage> stages_of(const Layer& layer, const JudgeArgs& args) {
  require(args.tokens == 1, "stages: ", args.tokens, " tokens are given; give the one to look at");
  const auto reading = layer.reading();  // every stage must see the same weights
  Probe probe(layer, args);
  probe.run();
  std::vector<Stage> out;
  add_leaf(probe, out);
  add_oracle(probe, out);
  return out;
}

}  // namespace switchyard::layer
