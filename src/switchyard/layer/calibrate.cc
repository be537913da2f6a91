// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/calibrate.h"

#include <algorithm>
#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/layer/bank.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/latent.h"
#include "switchyard/layer/packed_source.h"
#include "switchyard/layer/token_routing.h"
#include "switchyard/leaves/registry.h"

namespace switchyard::layer {
namespace {

constexpr std::int64_t kBlockTokens = 32;  // bounds the memory beside the packed layer

void note_inter(const ops::FfnShape& s, const std::vector<std::int32_t>& ids,
                const std::vector<double>& inter, CalibrationAmax& amax) {
  for (std::size_t r = 0; r < ids.size(); ++r) {
    if (ids[r] < 0 || ids[r] >= s.experts) continue;
    float& m = amax.fc2[std::size_t(ids[r])];
    m = std::max(m, 0.0f);
    for (std::int64_t k = 0; k < s.inter; ++k)
      m = std::max(m, float(std::abs(inter[r * std::size_t(s.inter) + std::size_t(k)])));
  }
}

/// x [tokens, H'] is what the experts read.
void note_input(const ops::FfnShape& s, std::int64_t tokens, const float* x,
                const std::vector<float>& weights, CalibrationAmax& amax) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    float row = 0;
    for (std::int64_t k = 0; k < s.hidden; ++k) row = std::max(row, std::abs(x[t * s.hidden + k]));
    float weight = s.weight_on_input ? 0 : 1;
    for (std::int64_t j = 0; s.weight_on_input && j < s.top_k; ++j)
      weight = std::max(weight, std::abs(weights[std::size_t(t * s.top_k + j)]));
    amax.fc1 = std::max(amax.fc1, row * weight);
  }
}

/// A caller's routing is not known in advance: every expert gets its share of the tokens.
void deal_tokens(const Problem& p, std::int64_t first, std::int64_t tokens, Routed& routed) {
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < p.top_k(); ++j)
      routed.ids[std::size_t(t * routed.width + j)] =
          std::int32_t(((first + t) * p.top_k() + j) % p.num_experts());
}

/// Tokens from number `first` on, and the packed numbers of the experts where they are given.
struct Block {
  std::int64_t first = 0;
  ForwardArgs args;
  std::span<const std::int32_t> packed;

  std::int32_t number_of(const Layer& layer, std::int32_t id) const {
    if (packed.empty()) return packed_id(layer, id);
    return id < 0 || std::size_t(id) >= packed.size() ? -1 : packed[std::size_t(id)];
  }
};

/// What runs in f32 mode, which exists on the CPU only: a layer's own experts, or for a layer on
/// cuda the same ones packed here for as long as the calibration takes.
class HostExperts {
 public:
  explicit HostExperts(const Layer& layer) : bank_(&layer.routed()), leaf_(layer.options().leaf) {
    if (!on_cuda(layer)) return;
    leaf_ = leaves::find_leaf(leaf_->id.quant, Device::kCpu).leaf;
    LayerOptions options = layer.options();
    options.leaf = leaf_;
    options.progress = nullptr;
    bool missing = false;
    own_ = build_bank({.shape = bank_->shape,
                       .leaf = *leaf_,
                       .source = packed_source(layer.weights(), options),
                       .activation = layer.problem().activation,
                       .options = options},
                      missing);
    bank_ = &own_;
  }
  const ExpertBank& bank() const { return *bank_; }
  const ops::ExpertFfn& ffn() const { return *leaf_->ffn; }

 private:
  ExpertBank own_;
  const ExpertBank* bank_;
  const leaves::Leaf* leaf_;
};

/// One block of tokens through routing and the experts in f32 mode.
void run_block(const Layer& layer, const HostExperts& experts, const Block& block,
               HostBuffer& workspace, CalibrationAmax& amax) {
  const ForwardArgs& a = block.args;
  const Problem& p = layer.problem();
  const ExpertBank& bank = experts.bank();
  ops::FfnShape shape = bank.shape;
  shape.quant = formats::ActivationQuant::kF32;
  std::vector<std::int32_t> ids(std::size_t(a.tokens * shape.top_k), -1);
  std::vector<float> weights(ids.size(), 1.0f), out(std::size_t(a.tokens * shape.hidden));
  std::vector<float> latent(std::size_t(a.tokens * p.latent));
  std::vector<float> logits(std::size_t(a.tokens * (p.num_experts() + p.routing.zero_experts)));
  std::vector<double> inter(ids.size() * std::size_t(shape.inter));
  Routed routed{ids, weights, shape.top_k, 1};
  if (p.routing.choice == ChoiceRule::kCaller) {
    deal_tokens(p, block.first, a.tokens, routed);
  } else {
    route_tokens(layer, a, Dtype::kF32, logits, routed);
  }
  append_shared(layer, a, routed);
  for (std::int32_t& id : ids) id = block.number_of(layer, id);
  if (layer.latent() != nullptr)
    project_down(layer, {a, Dtype::kF32, /*rounds=*/false}, latent.data(), workspace.bytes());
  const float* x = layer.latent() != nullptr ? latent.data() : static_cast<const float*>(a.hidden);
  StageCapture capture{inter.data()};
  ops::FfnArgs f;
  f.shape = &shape;
  f.layout = &bank.layout;
  f.packed = bank.packed.data();
  f.activation = bank.activation.data();
  f.tokens = a.tokens;
  f.x_dtype = f.out_dtype = Dtype::kF32;
  f.x = x;
  f.x_stride = f.out_stride = shape.hidden;
  f.ids = ids.data();
  f.weights = weights.data();
  f.out = out.data();
  f.capture = &capture;
  f.pool = layer.options().pool.get();
  f.isa = layer.options().isa;
  f.workspace = workspace.bytes();
  experts.ffn().forward(f);
  note_input(shape, a.tokens, x, weights, amax);
  note_inter(shape, ids, inter, amax);
}

std::size_t calibration_bytes(const Layer& layer, const HostExperts& experts,
                              const ops::FfnShape& shape, std::int64_t tokens) {
  const int threads = layer.options().pool->size();
  std::size_t bytes = experts.ffn().workspace_bytes(shape, experts.bank().layout, tokens,
                                                    {threads, layer.options().isa});
  if (const LatentBank* latent = layer.latent()) {
    ops::ProjectionShape exact = latent->down_shape;
    exact.rounds = false;
    bytes = std::max(bytes, ops::projection_workspace_bytes(exact, tokens, threads));
  }
  return bytes;
}

float scale_for(formats::ActivationQuant q, float amax) {
  constexpr float kHeadRoom = 1.05f;
  const float largest = q == formats::ActivationQuant::kNvfp4 ? 448.0f * 6 : 448.0f;
  return amax > 0 ? amax * kHeadRoom / largest : 1.0f;
}

}  // namespace

void CalibrationAmax::merge(const CalibrationAmax& other) {
  ensure(fc2.size() == other.fc2.size(), "amax of ", fc2.size(), " experts and of ",
         other.fc2.size());
  fc1 = std::max(fc1, other.fc1);
  for (std::size_t e = 0; e < fc2.size(); ++e) fc2[e] = std::max(fc2[e], other.fc2[e]);
}

float CalibrationAmax::largest() const { return *std::max_element(fc2.begin(), fc2.end()); }

CalibrationAmax calibration_amax(const Layer& layer, std::int64_t tokens, const float* hidden,
                                 const std::int64_t* token_ids,
                                 std::span<const std::int32_t> packed) {
  require(tokens > 0, "calibrate: no tokens are given");
  ops::FfnShape shape = layer.routed().shape;
  shape.quant = formats::ActivationQuant::kF32;
  const HostExperts experts(layer);
  HostBuffer workspace(calibration_bytes(layer, experts, shape, std::min(tokens, kBlockTokens)));
  CalibrationAmax amax{0, std::vector<float>(std::size_t(shape.experts), -1.0f)};
  for (std::int64_t t = 0; t < tokens; t += kBlockTokens) {
    ForwardArgs a;
    a.tokens = std::min(kBlockTokens, tokens - t);
    a.hidden = hidden + t * layer.problem().hidden;
    a.hidden_stride = layer.problem().hidden;
    a.token_ids = token_ids != nullptr ? token_ids + t : nullptr;
    run_block(layer, experts, {t, a, packed}, workspace, amax);
  }
  return amax;
}

StaticScales calibrated_scales(formats::ActivationQuant quant, const CalibrationAmax& amax,
                               float largest) {
  StaticScales scales;
  scales.fc1 = scale_for(quant, amax.fc1);
  for (float m : amax.fc2) {
    if (m < 0) scales.unseen.push_back(std::int64_t(scales.fc2.size()));
    scales.fc2.push_back(scale_for(quant, m < 0 ? largest : m));
  }
  return scales;
}

}  // namespace switchyard::layer
