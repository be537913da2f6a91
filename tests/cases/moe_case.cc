// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/moe_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "switchyard/api/layer_builder.h"
#include "switchyard/base/random.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/synthetic.h"
#include "switchyard/resolve/probe.h"

namespace switchyard::test {

using checkpoint::ExpertWeights;
using checkpoint::LayerWeights;
using formats::Matrix;

const std::vector<std::pair<Fault, std::string>> kFaults = {
    {Fault::kSwappedPairs, "swapped pairs"},   {Fault::kShiftedScales, "shifted scales"},
    {Fault::kSwappedHalves, "swapped halves"}, {Fault::kSwappedGateUp, "swapped gate and up"},
    {Fault::kDroppedExpert, "dropped expert"}, {Fault::kFactorTwice, "factor twice"}};

namespace {

std::vector<float> gains(const Random& random, std::int64_t count) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(std::exp2(2 * random.uniform(std::uint64_t(i)) - 1));
  return out;
}

Matrix with_storage(Matrix m, std::vector<std::byte> codes, std::vector<std::byte> scales) {
  const std::size_t size = codes.size();
  codes.insert(codes.end(), scales.begin(), scales.end());
  auto storage = std::make_shared<std::vector<std::byte>>(std::move(codes));
  m.codes = std::span(*storage).first(size);
  m.scales = std::span(*storage).subspan(size);
  m.storage = std::move(storage);
  return m;
}

void swap_pairs(int bits, std::int64_t row_bytes, std::vector<std::byte>& codes) {
  const std::int64_t width = bits / 8;
  for (std::int64_t at = 0; at < std::int64_t(codes.size()); at += row_bytes)
    for (std::int64_t i = 0; i + std::max<std::int64_t>(2 * width, 1) <= row_bytes;
         i += std::max<std::int64_t>(2 * width, 1)) {
      std::byte* p = codes.data() + at + i;
      if (bits == 4) *p = (*p << 4) | (*p >> 4);
      if (bits != 4) std::swap_ranges(p, p + width, p + width);
    }
}

std::vector<float> bias_values(std::int64_t size, std::uint64_t seed) {
  const Random random(seed, 5);
  std::vector<float> out;
  for (std::int64_t i = 0; i < size; ++i) out.push_back(0.1f * random.normal(std::uint64_t(i)));
  return out;
}

ExpertWeights make_expert(const Problem& p, std::int64_t inter, const formats::WeightLayout& layout,
                          std::uint64_t seed) {
  ExpertWeights e;
  const std::int64_t h = p.expert_hidden();
  if (p.gated()) e.gate = make_matrix(layout, inter, h, seed);
  e.up = make_matrix(layout, inter, h, seed + 1);
  e.down = make_matrix(layout, h, inter, seed + 2);
  if (!p.expert_bias) return e;
  if (p.gated()) e.gate_bias = bias_values(inter, seed + 3);
  e.up_bias = bias_values(inter, seed + 4);
  e.down_bias = bias_values(h, seed + 5);
  return e;
}

/// Static scales for N(0, 1) tokens; the oracle saturates where the leaf does.
void declare_scales(formats::ActivationQuant q, ExpertWeights& e) {
  if (!formats::is_static(q)) return;
  const float largest = q == formats::ActivationQuant::kNvfp4 ? 2688.0f : 448.0f;
  if (e.gate) e.gate->input_scale = 3.6f / largest;
  e.up.input_scale = 3.6f / largest;
  e.down.input_scale = 12.0f / largest;
}

std::optional<ExpertWeights> damaged_expert(const ExpertWeights& e, Fault fault) {
  ExpertWeights out = e;
  if (fault == Fault::kSwappedGateUp) {
    if (!e.gate) return std::nullopt;
    std::swap(*out.gate, out.up);
    std::swap(out.gate_bias, out.up_bias);
    return out;
  }
  if (fault == Fault::kDroppedExpert) {
    out.down = with_storage(e.down, std::vector<std::byte>(e.down.codes.size()),
                            {e.down.scales.begin(), e.down.scales.end()});
    out.down_bias.clear();
    return out;
  }
  std::optional<Matrix> up = damaged(e.up, fault), down = damaged(e.down, fault);
  if (!up && !down) return std::nullopt;
  if (up) out.up = *up;
  if (down) out.down = *down;
  return out;
}

}  // namespace

std::vector<float> weight_values(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  const Random value(seed, 1);
  const std::vector<float> row = gains(Random(seed, 2), rows);
  const std::vector<float> group = gains(Random(seed, 3), (cols + 15) / 16);
  const std::vector<float> block = gains(Random(seed, 4), (rows / 128 + 1) * (cols / 128 + 1));
  std::vector<float> out(std::size_t(rows * cols));
  const float sigma = 1 / std::sqrt(float(cols));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      out[std::size_t(r * cols + c)] = value.normal(std::uint64_t(r * cols + c)) * sigma *
                                       row[std::size_t(r)] * group[std::size_t(c / 16)] *
                                       block[std::size_t(r / 128 * (cols / 128 + 1) + c / 128)];
  return out;
}

Matrix make_matrix(const formats::WeightLayout& layout, std::int64_t rows, std::int64_t cols,
                   std::uint64_t seed) {
  return formats::quantize_matrix(weight_values(rows, cols, seed), rows, cols, layout);
}

std::optional<Matrix> damaged(const Matrix& m, Fault fault) {
  std::vector<std::byte> codes(m.codes.begin(), m.codes.end());
  std::vector<std::byte> scales(m.scales.begin(), m.scales.end());
  const std::int64_t row_bytes = m.layout.row_bytes(m.cols);
  const int width = formats::bytes_of(m.layout.scale);
  switch (fault) {
    case Fault::kSwappedPairs:
      swap_pairs(formats::bits_of(m.layout.element), row_bytes, codes);
      break;
    case Fault::kSwappedHalves:
      std::swap_ranges(codes.begin(), codes.begin() + m.rows / 2 * row_bytes,
                       codes.end() - m.rows / 2 * row_bytes);
      break;
    case Fault::kShiftedScales:
      if (int(scales.size()) <= width) return std::nullopt;
      std::rotate(scales.begin(), scales.begin() + width, scales.end());
      break;
    default:
      return std::nullopt;
  }
  return with_storage(m, std::move(codes), std::move(scales));
}

std::optional<LayerWeights> damaged(const LayerWeights& w, Fault fault) {
  LayerWeights out = w;
  if (fault == Fault::kFactorTwice) {
    out.problem.routed_scaling_factor *= w.problem.routed_scaling_factor;
    if (out.problem.routed_scaling_factor == w.problem.routed_scaling_factor) return std::nullopt;
    return out;
  }
  if (!damaged_expert(w.expert(0), fault)) return std::nullopt;
  out.expert = [source = w.expert, fault](std::int64_t e) {
    const ExpertWeights expert = source(e);
    return fault == Fault::kDroppedExpert && e != 1 ? expert : *damaged_expert(expert, fault);
  };
  return out;
}

Problem small_problem(const leaves::Leaf& leaf) {
  Problem p;
  p.format = std::string(leaf.id.quant);
  p.hidden = 160;
  p.inter = 96;
  p.routing = make_routing(RoutingMethodType::kRenormalize, 6, 3);
  p.routed_scaling_factor = 1.75f;
  return p;
}

LayerWeights make_weights(const Problem& problem, const leaves::Leaf& leaf, std::uint64_t seed) {
  LayerWeights w = layer::make_synthetic(problem, seed);
  w.problem.format = std::string(leaf.id.quant);
  w.layout = leaf.weights;
  w.activation_quant = leaf.activation;
  auto experts = std::make_shared<std::vector<ExpertWeights>>();
  for (std::int64_t e = 0; e < problem.num_experts(); ++e)
    experts->push_back(
        make_expert(problem, problem.inter, leaf.weights, seed * 100'000 + std::uint64_t(e) * 10));
  w.expert = [experts](std::int64_t e) { return experts->at(std::size_t(e)); };
  if (!w.shared) return w;
  Problem unbiased = problem;
  unbiased.expert_bias = false;
  unbiased.latent = 0;  // a shared expert reads the hidden states
  w.shared->weights =
      make_expert(unbiased, problem.shared_inter, leaf.weights, seed * 100'000 + 99'990);
  w.shared->format = std::string(leaf.id.quant);
  w.shared->activation_quant = leaf.activation;
  declare_scales(leaf.activation, w.shared->weights);
  return w;
}

std::vector<CpuIsa> runnable_tiers() {
  std::vector<CpuIsa> tiers{CpuIsa::kPortable};
  for (CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kZen4, CpuIsa::kAmx})
    if (resolve::environment().best_isa >= isa) tiers.push_back(isa);
  return tiers;
}

MoeLayer build_layer(LayerWeights weights, BuildOptions options, CpuIsa isa) {
  Environment env = resolve::environment();
  env.isa = isa;
  const resolve::ScopedEnvironment scope(env);
  if (options.threads == 0) options.threads = 2;
  return LayerBuilder::build(std::move(weights), options);
}

Call::Call(const layer::Layer& l, std::int64_t t, std::uint64_t seed)
    : layer(l), tokens(t), workspace(layer::on_cuda(l) ? 0 : l.workspace_bytes(t)) {
  const std::int64_t h = l.problem().hidden;
  const Random random(seed, 9);
  std::vector<float> x(std::size_t(tokens * h));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = random.normal(i);
  set_hidden(x);
  out.resize(hidden.size());
  for (std::int64_t i = 0; i < tokens; ++i)
    token_ids.push_back(i * 7 % std::max<std::int64_t>(1, l.weights().router.vocab));
}

void Call::set_hidden(const std::vector<float>& x) {
  const Dtype dtype = layer.options().dtype;
  hidden.resize(x.size() * size_of(dtype));
  exact.resize(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    store_element(dtype, hidden.data(), std::int64_t(i), x[i]);
    exact[i] = load_element(dtype, hidden.data(), std::int64_t(i));
  }
}

ForwardArgs Call::args() {
  ForwardArgs a;
  a.tokens = tokens;
  a.hidden = hidden.data();
  a.hidden_stride = a.out_stride = layer.problem().hidden;
  a.token_ids = layer.weights().router.vocab > 0 ? token_ids.data() : nullptr;
  a.out = out.data();
  a.workspace = workspace.bytes();
  return a;
}

std::vector<std::byte> Call::run(const std::function<void(ForwardArgs&)>& change) {
  std::fill(out.begin(), out.end(), std::byte(0xff));
  std::ranges::fill(workspace.bytes(), std::byte(0xff));
  ForwardArgs a = args();
  if (change) change(a);
  if (layer::on_cuda(layer)) {
    layer::forward_from_host(layer, a);
  } else {
    layer.forward(a);
  }
  return out;
}

std::vector<double> Call::values() const {
  const Dtype dtype = layer.options().dtype;
  std::vector<double> v(out.size() / size_of(dtype));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = load_element(dtype, out.data(), std::int64_t(i));
  return v;
}

GivenRouting::GivenRouting(const Problem& p, std::int64_t tokens) {
  const Random random(31, 1);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < p.top_k(); ++j) {
      ids.push_back(std::int32_t((t * 5 + j * 2 + t / 3) % p.num_experts()));
      weights.push_back(0.2f + random.uniform(ids.size()));
    }
}

std::vector<double> ffn_oracle(const Call& call, const GivenRouting& routing, double factor) {
  const layer::ExpertBank& bank = call.layer.routed();
  std::vector<double> out(call.exact.size());
  ops::grouped_ffn_ref({.shape = &bank.shape,
                        .expert = &call.layer.weights().expert,
                        .fc1_input_scale = bank.scales.fc1,
                        .fc2_input_scale = bank.scales.fc2.data(),
                        .activation = bank.activation.data(),
                        .tokens = call.tokens,
                        .x = call.exact.data(),
                        .ids = routing.ids.data(),
                        .weights = routing.weights.data(),
                        .factor = factor,
                        .out = out.data()});
  return out;
}

std::vector<float> fp32_rows(const Call& call, const GivenRouting& routing) {
  const layer::Layer& l = call.layer;
  const layer::ExpertBank& bank = l.routed();
  std::vector<float> rows(routing.ids.size() * std::size_t(bank.shape.hidden));
  HostBuffer workspace(l.workspace_bytes(call.tokens));
  ops::FfnArgs f;
  f.shape = &bank.shape;
  f.layout = &bank.layout;
  f.packed = bank.packed.data();
  f.fc1_input_scale = bank.scales.fc1;
  f.activation = bank.activation.data();
  f.tokens = call.tokens;
  f.x_dtype = l.options().dtype;
  f.x = call.hidden.data();
  f.x_stride = bank.shape.hidden;
  f.ids = routing.ids.data();
  f.weights = routing.weights.data();
  f.rows_dtype = Dtype::kF32;
  f.rows = rows.data();
  f.pool = l.options().pool.get();
  f.isa = l.options().isa;
  f.workspace = workspace.bytes();
  l.options().leaf->ffn->forward(f);
  return rows;
}

}  // namespace switchyard::test
