// SPDX-License-Identifier: Apache-2.0
#include "tests/support/written_checkpoint.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "switchyard/base/dtype.h"
#include "switchyard/base/random.h"
#include "tests/support/naive_moe.h"

namespace switchyard::test {
namespace {

using checkpoint::ExpertWeights;
using formats::Element;
using formats::Matrix;
using formats::ScaleType;
using formats::WeightLayout;

constexpr std::int64_t kTokens = 12;

WeightLayout layout_of(Coding coding) {
  switch (coding) {
    case Coding::kBf16:
      return {};
    case Coding::kFp8Block:
      return {Element::kE4m3, ScaleType::kF32, 128, 128, false, false};
    case Coding::kFp8BlockNative:
      return {Element::kE4m3, ScaleType::kF32, 128, 128, false, true};
    case Coding::kFp8Channel:
      return {Element::kE4m3, ScaleType::kF32, 1, 0, false, false};
    case Coding::kFp8Static:
      return {Element::kE4m3, ScaleType::kF32, 0, 0, false, false};
    case Coding::kNvfp4:
    case Coding::kNvfp4Packed:
      return {Element::kE2m1, ScaleType::kE4m3, 1, 16, true, false};
    case Coding::kMxfp4Packed:
    case Coding::kMxfp4Native:
      return {Element::kE2m1, ScaleType::kE8m0, 1, 32, false, false};
  }
  throw std::logic_error("a coding has no layout");
}

/// Seeded values; each tensor has a stream of its own.
class Source {
 public:
  explicit Source(const std::string& name)
      : seed_(std::accumulate(name.begin(), name.end(), std::uint64_t(17),
                              [](std::uint64_t h, char c) { return h * 131 + std::uint64_t(c); })) {
  }
  std::vector<float> normal(std::int64_t n, float sigma, float mean = 0) {
    const Random random(seed_, stream_++);
    std::vector<float> out(std::size_t(n), 0.0f);
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = bf16_to_float(float_to_bf16(mean + sigma * random.normal(i)));
    return out;
  }

 private:
  std::uint64_t seed_, stream_ = 1;
};

void share_static_scale(Matrix& m, float amax) {
  m.input_scale = amax / (m.layout.element == Element::kE2m1 ? 448.0f * 6 : 448.0f);
}

/// `shared_amax` > 0: one global scale for all matrices of the side, as one tensor would have.
Matrix make(Source& source, const WrittenSpec& spec, Coding coding, std::int64_t rows,
            std::int64_t cols) {
  std::vector<float> values = source.normal(rows * cols, 1.5f / std::sqrt(float(cols)));
  const bool stacked = spec.storage != Storage::kPerExpert && layout_of(coding).global_scale;
  Matrix m = stacked ? formats::quantize_matrix(values, rows, cols, layout_of(coding), 1.0f)
                     : formats::quantize_matrix(values, rows, cols, layout_of(coding));
  if (coding == Coding::kFp8Static || coding == Coding::kNvfp4 || coding == Coding::kNvfp4Packed)
    share_static_scale(m, cols == spec.problem.expert_hidden() ? 5.0f : 40.0f);
  // A scale that divides in the file multiplies as the fp32 reciprocal of what is stored.
  if (coding == Coding::kNvfp4Packed) {
    m.global_scale = 1 / (1 / m.global_scale);
    m.input_scale = 1 / (1 / *m.input_scale);
  }
  return m;
}

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string bf16_bytes(const std::vector<float>& values) {
  std::string out;
  for (float v : values) {
    std::uint16_t bits = float_to_bf16(v);
    out.append(reinterpret_cast<const char*>(&bits), 2);
  }
  return out;
}

RawTensor floats(std::vector<std::int64_t> shape, const std::vector<float>& values,
                 const std::string& type) {
  return {type, std::move(shape), type == "F32" ? f32_bytes(values) : bf16_bytes(values)};
}

/// fp32 powers of two as E8M0 bytes.
std::string e8m0_bytes(std::span<const std::byte> scales) {
  std::string out;
  for (std::size_t i = 0; i < scales.size(); i += 4) {
    std::uint32_t bits;
    std::memcpy(&bits, scales.data() + i, 4);
    out += char(bits >> 23);
  }
  return out;
}

using Shape = std::vector<std::int64_t>;

/// One linear layer with tensors of its own.
void write_linear(RawTensors& out, const std::string& base, const Matrix& m, Coding coding) {
  const std::int64_t grid_rows = m.layout.scale_rows(m.rows);
  const std::int64_t grid_cols = m.layout.scale_cols(m.cols);
  const Shape grid = {grid_rows, grid_cols}, half = {m.rows, m.cols / 2}, full = {m.rows, m.cols};
  const std::string codes = text(m.codes), scales = text(m.scales);
  auto scalar = [&](const std::string& name, float value, Shape shape = {}) {
    out[base + name] = {"F32", std::move(shape), f32_bytes({value})};
  };
  switch (coding) {
    case Coding::kBf16:
      out[base + ".weight"] = {"BF16", full, codes};
      return;
    case Coding::kFp8Block:
      out[base + ".weight"] = {"F8_E4M3", full, codes};
      out[base + ".weight_scale_inv"] = {"F32", grid, scales};
      return;
    case Coding::kFp8BlockNative:
      out[base + ".weight"] = {"F8_E4M3", full, codes};
      out[base + ".scale"] = {"F8_E8M0", grid, e8m0_bytes(m.scales)};
      return;
    case Coding::kFp8Channel:
      out[base + ".weight"] = {"F8_E4M3", full, codes};
      out[base + ".weight_scale"] = {"F32", {m.rows, 1}, scales};
      return;
    case Coding::kFp8Static:
      out[base + ".weight"] = {"F8_E4M3", full, codes};
      out[base + ".weight_scale"] = {"F32", {1}, scales};
      return scalar(".input_scale", *m.input_scale, {1});
    case Coding::kNvfp4:
      out[base + ".weight"] = {"U8", half, codes};
      out[base + ".weight_scale"] = {"F8_E4M3", grid, scales};
      scalar(".weight_scale_2", m.global_scale);
      return scalar(".input_scale", *m.input_scale);
    case Coding::kNvfp4Packed:
      out[base + ".weight_packed"] = {"U8", half, codes};
      out[base + ".weight_scale"] = {"F8_E4M3", grid, scales};
      scalar(".weight_global_scale", 1 / m.global_scale, {1});
      return scalar(".input_global_scale", 1 / *m.input_scale, {1});
    case Coding::kMxfp4Packed:
      out[base + ".weight_packed"] = {"U8", half, codes};
      out[base + ".weight_scale"] = {"U8", grid, scales};
      return;
    case Coding::kMxfp4Native:
      out[base + ".weight"] = {"I8", half, codes};
      out[base + ".scale"] = {"F8_E8M0", grid, scales};
      return;
  }
}

/// Codes or scales of one matrix as a grid of units.
struct Grid {
  std::int64_t rows, cols, unit;
  std::span<const std::byte> bytes;
};

Grid codes_of(const Matrix& m) {
  const std::int64_t unit = m.layout.element == Element::kBf16 ? 2 : 1;
  return {m.rows, std::int64_t(m.codes.size()) / m.rows / unit, unit, m.codes};
}

Grid scales_of(const Matrix& m) {
  return {m.layout.scale_rows(m.rows), m.layout.scale_cols(m.cols), 1, m.scales};
}

/// Unit (row, col) of matrix `half`.
struct Unit {
  std::int64_t half, row, col;
};

/// The unit's place in one expert's slab of `halves` matrices.
std::int64_t place(Storage storage, const Grid& g, std::int64_t halves, const Unit& u) {
  const std::int64_t all = halves * g.rows;
  switch (storage) {
    case Storage::kRows:
      return (u.half * g.rows + u.row) * g.cols + u.col;
    case Storage::kColumns:
      return u.col * all + u.half * g.rows + u.row;
    case Storage::kInterleavedColumns:
      return u.col * all + u.row * halves + u.half;
    default:
      throw std::logic_error("no stacked storage");
  }
}

/// All experts' matrices of one tensor, [expert][half].
std::string stack(const std::vector<std::vector<Grid>>& experts, Storage storage) {
  std::string out;
  for (const auto& halves : experts) {
    const Grid& first = halves[0];
    std::string slab(std::size_t(first.rows * first.cols * first.unit) * halves.size(), '\0');
    for (std::size_t half = 0; half < halves.size(); ++half)
      for (std::int64_t r = 0; r < first.rows; ++r)
        for (std::int64_t c = 0; c < first.cols; ++c)
          std::memcpy(slab.data() + first.unit * place(storage, first, std::int64_t(halves.size()),
                                                       {std::int64_t(half), r, c}),
                      halves[half].bytes.data() + first.unit * (r * first.cols + c),
                      std::size_t(first.unit));
    out += slab;
  }
  return out;
}

Shape stacked_shape(const Grid& g, std::int64_t experts, std::int64_t halves, Storage storage,
                    bool flat) {
  Shape s = {halves * g.rows, g.cols};
  if (storage != Storage::kRows) std::swap(s[0], s[1]);
  if (flat) return {experts * s[0], s[1]};
  return {experts, s[0], s[1]};
}

/// One stacked tensor and, for NVFP4, its scales.
void write_stack(RawTensors& out, const std::string& name,
                 const std::vector<std::vector<const Matrix*>>& experts, Storage storage,
                 bool flat) {
  std::vector<std::vector<Grid>> codes, scales;
  for (const auto& halves : experts) {
    codes.emplace_back(), scales.emplace_back();
    for (const Matrix* m : halves) {
      codes.back().push_back(codes_of(*m));
      scales.back().push_back(scales_of(*m));
    }
  }
  const Matrix& first = *experts[0][0];
  const auto count = std::int64_t(experts.size()), halves = std::int64_t(experts[0].size());
  const bool plain = first.layout.element == Element::kBf16;
  out[name] = {plain ? "BF16" : "U8", stacked_shape(codes[0][0], count, halves, storage, flat),
               stack(codes, storage)};
  if (plain) return;
  out[name + "_weight_scale"] = {
      "F8_E4M3", stacked_shape(scales[0][0], count, halves, storage, flat), stack(scales, storage)};
  out[name + "_weight_scale_2"] = {"F32", {}, f32_bytes({first.global_scale})};
  out[name + "_input_scale"] = {"F32", {}, f32_bytes({*first.input_scale})};
}

std::string numbered(std::string name, std::int64_t e) {
  return name.replace(name.find("{e}"), 3, std::to_string(e));
}

void write_experts(RawTensors& out, const WrittenSpec& spec,
                   const std::vector<ExpertWeights>& experts) {
  const std::string base = spec.block + ".";
  const auto& names = spec.names.expert;
  if (spec.storage == Storage::kPerExpert) {
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const ExpertWeights& w = experts[e];
      auto name = [&](int i) { return base + numbered(names[std::size_t(i)], std::int64_t(e)); };
      if (w.gate) write_linear(out, name(0), *w.gate, spec.coding);
      write_linear(out, name(1), w.up, spec.coding);
      write_linear(out, name(2), w.down, spec.coding);
    }
    return;
  }
  std::vector<std::vector<const Matrix*>> gate, up, both, down;
  for (const ExpertWeights& w : experts) {
    if (w.gate) gate.push_back({&*w.gate}), both.push_back({&*w.gate, &w.up});
    up.push_back({&w.up});
    down.push_back({&w.down});
  }
  const bool flat = spec.storage == Storage::kFlat;
  if (flat || spec.storage == Storage::kSeparate) {
    write_stack(out, base + names[0], gate, Storage::kRows, flat);
    write_stack(out, base + names[1], up, Storage::kRows, flat);
    write_stack(out, base + names[2], down, flat ? Storage::kColumns : Storage::kRows, flat);
    return;
  }
  const bool rows = spec.storage == Storage::kRows;
  write_stack(out, base + names[0], both.empty() ? up : both, spec.storage, false);
  write_stack(out, base + names[2], down, rows ? Storage::kRows : Storage::kColumns, false);
}

ExpertWeights make_expert(Source& source, const WrittenSpec& spec, Coding coding,
                          std::int64_t hidden, std::int64_t inter) {
  ExpertWeights w;
  if (spec.problem.gated()) w.gate = make(source, spec, coding, inter, hidden);
  w.up = make(source, spec, coding, inter, hidden);
  w.down = make(source, spec, coding, hidden, inter);
  return w;
}

/// Gemma's router: the file has W, scale and perhaps the norm's weight; the truth what they mean.
void make_router_scale(Source& source, const WrittenSpec& spec, RawTensors& out,
                       std::vector<float>& weight) {
  const std::int64_t hidden = spec.problem.hidden;
  std::vector<float> scale = source.normal(hidden, 0.3f, 1.0f), norm(std::size_t(hidden), 1.0f);
  out[spec.block + "." + spec.names.router_scale] = floats({hidden}, scale, "BF16");
  if (!spec.names.input_norm.empty()) {
    norm = source.normal(hidden, 0.1f, 1.0f);
    out[spec.block + "." + spec.names.input_norm] = floats({hidden}, norm, "BF16");
  }
  for (std::size_t i = 0; i < weight.size(); ++i) {
    std::size_t h = i % std::size_t(hidden);
    weight[i] =
        float(double(weight[i]) * double(scale[h]) / double(norm[h]) / std::sqrt(double(hidden)));
  }
}

void make_router(Source& source, const WrittenSpec& spec, RawTensors& out,
                 checkpoint::RouterWeights& router) {
  const Problem& p = spec.problem;
  const WrittenNames& n = spec.names;
  const std::string base = spec.block + ".";
  const std::int64_t ids = p.num_experts() + p.routing.zero_experts;
  const float sigma = (n.router_scale.empty() ? 1.5f : 20.0f) / std::sqrt(float(p.hidden));
  router.weight = source.normal(ids * p.hidden, sigma);
  out[base + n.router] = floats({ids, p.hidden}, router.weight, "BF16");
  if (!n.router_scale.empty()) make_router_scale(source, spec, out, router.weight);
  if (!n.per_expert_scale.empty()) {
    router.per_expert_scale = source.normal(p.num_experts(), 0.3f, 1.0f);
    out[base + n.per_expert_scale] = floats({p.num_experts()}, router.per_expert_scale, "BF16");
  }
  if (n.choice_bias.empty()) return;
  std::vector<float> bias = source.normal(ids * std::max<std::int64_t>(1, spec.bias_rows), 0.2f);
  Shape shape = {ids};
  if (spec.bias_rows > 0) shape = {spec.bias_rows, ids};
  out[base + n.choice_bias] = floats(shape, bias, spec.bias_type);
  bias.resize(std::size_t(ids));
  if (p.routing.choice_bias) router.choice_bias = bias;
}

void make_latent(Source& source, const WrittenSpec& spec, RawTensors& out,
                 checkpoint::LayerWeights& truth) {
  const Problem& p = spec.problem;
  const std::string base = spec.block + ".";
  checkpoint::LatentProjection latent;
  latent.down = make(source, spec, Coding::kBf16, p.latent, p.hidden);
  latent.up = make(source, spec, Coding::kBf16, p.hidden, p.latent);
  write_linear(out, base + spec.names.latent_down, latent.down, Coding::kBf16);
  write_linear(out, base + spec.names.latent_up, latent.up, Coding::kBf16);
  if (!spec.names.latent_norm.empty()) {
    latent.norm = source.normal(p.latent, 0.2f, 1.0f);
    latent.norm_eps = 1e-5f;
    out[base + spec.names.latent_norm] = floats({p.latent}, latent.norm, "BF16");
  }
  truth.latent = std::move(latent);
}

void make_shared(Source& source, const WrittenSpec& spec, RawTensors& out,
                 checkpoint::LayerWeights& truth) {
  const Problem& p = spec.problem;
  const std::string base = spec.block + ".";
  checkpoint::SharedExpert shared;
  shared.weights = make_expert(source, spec, spec.shared_coding, p.hidden, p.shared_inter);
  shared.activation = spec.shared_activation;
  const ExpertWeights& w = shared.weights;
  if (w.gate) write_linear(out, base + spec.names.shared[0], *w.gate, spec.shared_coding);
  write_linear(out, base + spec.names.shared[1], w.up, spec.shared_coding);
  write_linear(out, base + spec.names.shared[2], w.down, spec.shared_coding);
  if (!spec.names.shared_gate.empty()) {
    shared.gate = source.normal(p.hidden, 0.1f);
    out[base + spec.names.shared_gate] = floats({1, p.hidden}, shared.gate, "BF16");
  }
  truth.shared = std::move(shared);
}

void make_parallel(Source& source, const WrittenSpec& spec, RawTensors& out,
                   checkpoint::LayerWeights& truth) {
  const std::string folder = spec.block.substr(0, spec.block.rfind('.')) + ".";
  checkpoint::SharedExpert mlp;
  mlp.weights = make_expert(source, spec, Coding::kBf16, spec.problem.hidden, spec.parallel_inter);
  const Matrix& gate = *mlp.weights.gate;
  out[folder + spec.names.parallel_up] = {
      "BF16", {2 * gate.rows, gate.cols}, text(gate.codes) + text(mlp.weights.up.codes)};
  out[folder + spec.names.parallel_down] = {
      "BF16", {gate.cols, gate.rows}, text(mlp.weights.down.codes)};
  truth.parallel_mlp = std::move(mlp);
}

}  // namespace

void WrittenCheckpoint::write(const TempDir& dir) const {
  files.write(dir);
  RawTensors tensors;
  tensors["hidden_states"] = {"F32", {io.tokens, io.hidden}, f32_bytes(io.hidden_states)};
  tensors["output"] = {"F32", {io.tokens, io.hidden}, f32_bytes(io.output)};
  dir.write("moe_io.safetensors", safetensors_bytes(tensors));
}

WrittenCheckpoint make_checkpoint(const WrittenSpec& spec) {
  Source source(spec.name);
  const Problem& p = spec.problem;
  WrittenCheckpoint out;
  RawTensors& tensors = out.files.tensors;
  out.files.config = nlohmann::json::parse(spec.config);
  out.truth.problem = p;
  out.truth.layout = layout_of(spec.coding);
  make_router(source, spec, tensors, out.truth.router);
  auto experts = std::make_shared<std::vector<ExpertWeights>>();
  for (std::int64_t e = 0; e < p.num_experts(); ++e)
    experts->push_back(make_expert(source, spec, spec.coding, p.expert_hidden(), p.inter));
  write_experts(tensors, spec, *experts);
  if (!spec.names.output_bias.empty()) {
    std::vector<float> bias = source.normal(p.hidden, 0.5f);
    tensors[spec.block + "." + spec.names.output_bias] = floats({p.hidden}, bias, "BF16");
    for (ExpertWeights& w : *experts) w.down_bias = bias;
  }
  out.truth.expert = [experts](std::int64_t e) { return experts->at(std::size_t(e)); };
  if (p.shared_inter > 0) make_shared(source, spec, tensors, out.truth);
  if (p.latent > 0) make_latent(source, spec, tensors, out.truth);
  if (spec.parallel_inter > 0) make_parallel(source, spec, tensors, out.truth);
  out.io.tokens = kTokens;
  out.io.hidden = p.hidden;
  out.io.hidden_states = source.normal(kTokens * p.hidden, 1.0f);
  for (double v : naive_moe(out.truth, out.io.hidden_states, {})) out.io.output.push_back(float(v));
  return out;
}

}  // namespace switchyard::test
