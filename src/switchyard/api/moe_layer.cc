// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/moe_layer.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "switchyard/api/checkpoint.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/base/check.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/convert.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/run_experts.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/layer/synthetic.h"
#include "switchyard/resolve/json.h"

namespace switchyard {
namespace {

using formats::Matrix;

/// One matrix of a caller's [E, rows, cols] array; fp32 is rounded to bf16, the rest is borrowed.
Matrix borrow_matrix(const void* base, Dtype dtype, std::int64_t e, std::int64_t rows,
                     std::int64_t cols) {
  Matrix m;
  m.rows = rows;
  m.cols = cols;
  const std::size_t count = std::size_t(rows * cols);
  if (dtype != Dtype::kF32) {
    m.layout.element = dtype == Dtype::kFp16 ? formats::Element::kFp16 : formats::Element::kBf16;
    m.codes = {static_cast<const std::byte*>(base) + std::size_t(e) * count * 2, count * 2};
    return m;
  }
  const float* values = static_cast<const float*>(base) + std::size_t(e) * count;
  return formats::quantize_matrix({values, count}, rows, cols,
                                  {.element = formats::Element::kBf16});
}

std::vector<float> copy_floats(const float* data, std::int64_t count) {
  return data == nullptr ? std::vector<float>() : std::vector<float>(data, data + count);
}

std::vector<float> copy_row(const float* data, std::int64_t e, std::int64_t count) {
  return data == nullptr ? std::vector<float>() : copy_floats(data + e * count, count);
}

checkpoint::ExpertWeights array_expert(const LayerArrays& a, std::int64_t e) {
  const Problem& p = a.problem;
  checkpoint::ExpertWeights w;
  const std::int64_t h = p.expert_hidden();
  if (p.gated()) w.gate = borrow_matrix(a.gate, a.dtype, e, p.inter, h);
  w.up = borrow_matrix(a.up, a.dtype, e, p.inter, h);
  w.down = borrow_matrix(a.down, a.dtype, e, h, p.inter);
  if (p.gated()) w.gate_bias = copy_row(a.gate_bias, e, p.inter);
  w.up_bias = copy_row(a.up_bias, e, p.inter);
  w.down_bias = copy_row(a.down_bias, e, h);
  return w;
}

void check_optional(const char* name, const void* data, bool read) {
  require((data != nullptr) == read, "layer arrays: ", name, read ? " is null" : " is given",
          " and the problem's routing ",
          read ? "reads it; pass it" : "does not read it; pass null");
}

void check_routing_arrays(const LayerArrays& a) {
  const RoutingSpec& r = a.problem.routing;
  check_optional("choice_bias", a.choice_bias, r.choice_bias);
  check_optional("per_expert_scale", a.per_expert_scale, r.per_expert_scale);
  check_optional("hash_table", a.hash_table, r.choice == ChoiceRule::kHash);
  require(a.vocab >= (a.hash_table != nullptr ? 1 : 0), "layer arrays: vocab is ", a.vocab,
          "; it counts the rows of hash_table");
}

void check_latent_arrays(const LayerArrays& a) {
  const bool latent = a.problem.latent > 0;
  const bool both = a.latent_down != nullptr && a.latent_up != nullptr;
  const bool none = a.latent_down == nullptr && a.latent_up == nullptr && a.latent_norm == nullptr;
  require(latent ? both : none, "layer arrays: the problem's latent width is ", a.problem.latent,
          latent ? ", which needs latent_down and latent_up; pass both"
                 : ", which takes no latent array; pass null");
}

/// A copy that owns its values: the oracle reads the projections after construction.
Matrix copy_matrix(const void* base, Dtype dtype, std::int64_t rows, std::int64_t cols) {
  Matrix m = borrow_matrix(base, dtype, 0, rows, cols);
  if (dtype == Dtype::kF32) return m;
  auto storage = std::make_shared<std::vector<std::byte>>(m.codes.begin(), m.codes.end());
  m.codes = *storage;
  m.storage = std::move(storage);
  return m;
}

void check_arrays(const LayerArrays& a) {
  const Problem& p = a.problem;
  p.check();
  require(fold_format(p.format) == "none",
          "layer arrays are unquantised, their problem says format ", p.format,
          "; set BuildOptions::format to convert");
  require(a.up != nullptr && a.down != nullptr && (a.gate != nullptr) == p.gated(),
          "layer arrays need up and down", p.gated() ? " and gate" : ", and no gate",
          " for activation ", to_string(type_of(p.activation)));
  require(p.num_shared == 0,
          "layer arrays have no shared expert, the problem says num_shared = ", p.num_shared);
  require(a.router_weight != nullptr || p.routing.choice == ChoiceRule::kCaller,
          "layer arrays need router_weight unless the caller routes");
  check_routing_arrays(a);
  check_latent_arrays(a);
}

/// An owned matrix in the layer's storage, made of a caller's array.
Matrix stored_matrix(const ExpertArrays& a, const void* data, std::int64_t rows, std::int64_t cols,
                     const formats::WeightLayout& layout) {
  return formats::convert_matrix(borrow_matrix(data, a.dtype, 0, rows, cols), layout);
}

checkpoint::ExpertWeights expert_from(const ExpertArrays& a, const ops::FfnShape& s) {
  require(a.up != nullptr && a.down != nullptr && (a.gate != nullptr) == s.gated,
          "update_expert: this layer's experts need up and down",
          s.gated ? " and gate" : ", and no gate", "; pass exactly these");
  const bool plain = s.weights.scale == formats::ScaleType::kNone;
  const bool fp16 = s.weights.element == formats::Element::kFp16;
  require(!plain || a.dtype == Dtype::kF32 || (a.dtype == Dtype::kFp16) == fp16,
          "update_expert: the arrays are ", to_string(a.dtype), ", this layer's weights are ",
          to_string(s.weights.element), "; give that type or f32");
  require(
      a.fc1_input_scale.has_value() == a.fc2_input_scale.has_value(),
      "update_expert: one of fc1_input_scale and fc2_input_scale is given; give both or neither");
  checkpoint::ExpertWeights w;
  if (s.gated) w.gate = stored_matrix(a, a.gate, s.inter, s.hidden, s.weights);
  w.up = stored_matrix(a, a.up, s.inter, s.hidden, s.weights);
  w.down = stored_matrix(a, a.down, s.hidden, s.inter, s.weights);
  if (w.gate) w.gate->input_scale = a.fc1_input_scale;
  w.up.input_scale = a.fc1_input_scale;
  w.down.input_scale = a.fc2_input_scale;
  w.gate_bias = copy_floats(a.gate_bias, s.inter);
  w.up_bias = copy_floats(a.up_bias, s.inter);
  w.down_bias = copy_floats(a.down_bias, s.hidden);
  return w;
}

/// What tells the activations of two layers' experts `e` apart.
auto constants_of(const Problem& p, std::int64_t e) {
  const ActivationParams a = lower(p.activation, e);
  return std::tuple(a.type, a.form, a.has_limit, a.limit_after, a.alpha, a.beta,
                    a.has_limit ? a.limit : 0.0f);
}

/// The arrays while they are guaranteed to live, null afterwards.
using Borrowed = std::shared_ptr<const LayerArrays*>;

checkpoint::LayerWeights weights_from(const LayerArrays& a, const Borrowed& borrowed) {
  check_arrays(a);
  const Problem& p = a.problem;
  const std::int64_t experts = p.num_experts() + p.routing.zero_experts;
  checkpoint::LayerWeights w;
  w.block = "arrays";
  w.problem = p;
  w.problem.format = "none";
  w.layout.element = a.dtype == Dtype::kFp16 ? formats::Element::kFp16 : formats::Element::kBf16;
  if (a.dtype == Dtype::kF32) w.notices.push_back("F32 weights rounded to bf16");
  w.router.weight = copy_floats(a.router_weight, experts * p.hidden);
  w.router.logit_bias = copy_floats(a.router_bias, experts);
  w.router.choice_bias = copy_floats(a.choice_bias, experts);
  w.router.per_expert_scale = copy_floats(a.per_expert_scale, p.num_experts());
  if (a.hash_table != nullptr)
    w.router.hash_table.assign(a.hash_table, a.hash_table + a.vocab * p.top_k());
  w.router.vocab = a.vocab;
  if (p.latent > 0)
    w.latent = {.down = copy_matrix(a.latent_down, a.dtype, p.latent, p.hidden),
                .up = copy_matrix(a.latent_up, a.dtype, p.hidden, p.latent),
                .norm = copy_floats(a.latent_norm, p.latent),
                .norm_eps = a.latent_norm_eps};
  w.expert = [borrowed](std::int64_t e) {
    ensure(*borrowed != nullptr, "a caller's arrays are read during construction only");
    return array_expert(**borrowed, e);
  };
  return w;
}

/// A forward on cuda leaves nothing on the host to count.
void require_counted(const layer::Layer& layer) {
  require(!layer::on_cuda(layer),
          "expert load: a layer on cuda does not count it yet; give its forwards "
          "ForwardArgs::expert_counts");
}

}  // namespace

MoeLayer MoeLayer::from_checkpoint(const Checkpoint& checkpoint, std::int64_t index,
                                   const BuildOptions& options) {
  return LayerBuilder::build(checkpoint.impl().layer(index), options);
}

MoeLayer MoeLayer::from_preset(std::string_view preset, const BuildOptions& options) {
  return LayerBuilder::build(layer::make_synthetic(make_preset(preset), options.seed), options);
}

MoeLayer MoeLayer::from_arrays(const LayerArrays& arrays, const BuildOptions& options) {
  const Borrowed borrowed = std::make_shared<const LayerArrays*>(&arrays);
  MoeLayer layer = LayerBuilder::build(weights_from(arrays, borrowed), options);
  *borrowed = nullptr;
  return layer;
}

void MoeLayer::update_expert(std::int64_t e, const ExpertArrays& arrays) {
  layer::Layer& layer = *state_->layer;
  layer.update_expert(e, expert_from(arrays, layer.routed().shape));
}

void MoeLayer::update_expert(std::int64_t e, const Checkpoint& checkpoint, std::int64_t index) {
  layer::Layer& layer = *state_->layer;
  checkpoint::LayerWeights weights = checkpoint.impl().layer(index);
  const std::string& own = problem().format;
  require(weights.problem.format == own || weights.problem.format == "none" || state_->requantised,
          "update_expert: layer ", index, " of the checkpoint is stored as ",
          show_format(weights.problem.format), ", this layer runs ", show_format(own),
          " as it was stored; give weights in that format or unquantised ones");
  const std::int64_t experts = std::min(weights.problem.num_experts(), problem().num_experts());
  require(e >= 0 && e < experts, "update_expert: expert ", e, " is outside 0..", experts - 1,
          ", the routed experts that layer ", index, " of the checkpoint and this layer have");
  // The packed expert computes with the layer's activation, whatever the checkpoint declares.
  require(constants_of(weights.problem, e) == constants_of(problem(), e), "update_expert: expert ",
          e, " of layer ", index, " of the checkpoint computes ",
          to_string(type_of(weights.problem.activation)), ", this layer ",
          to_string(type_of(problem().activation)),
          ", or both the same with other constants; give weights of the same activation");
  weights = layer::convert_format(std::move(weights), *layer.options().leaf);
  layer.update_expert(e, weights.expert(e));
  std::vector<std::string>& notices = state_->notices;
  for (std::string& notice : weights.notices)
    if (std::find(notices.begin(), notices.end(), notice) == notices.end())
      notices.push_back(std::move(notice));
}

ExpertLoad MoeLayer::expert_load() const {
  require_counted(*state_->layer);
  return state_->layer->expert_load();
}
ExpertLoad MoeLayer::take_expert_load() const {
  require_counted(*state_->layer);
  return state_->layer->take_expert_load();
}

MoeLayer::MoeLayer(std::unique_ptr<State> state) : state_(std::move(state)) {}
MoeLayer::MoeLayer(MoeLayer&&) noexcept = default;
MoeLayer& MoeLayer::operator=(MoeLayer&&) noexcept = default;
MoeLayer::~MoeLayer() = default;

const Problem& MoeLayer::problem() const { return state_->layer->problem(); }
std::string MoeLayer::leaf() const { return state_->layer->options().leaf->id.str(); }
std::string MoeLayer::report_json() const { return resolve::to_json(state_->report); }
const std::vector<std::string>& MoeLayer::notices() const { return state_->notices; }
std::int64_t MoeLayer::packed_bytes() const { return state_->layer->packed_bytes(); }
std::vector<CallTactic> MoeLayer::tactics(std::int64_t tokens) const {
  layer::check_forward_tokens(*state_->layer, tokens);
  return layer::tactics_of(*state_->layer, tokens);
}
int MoeLayer::threads() const { return state_->layer->options().pool->size(); }
const layer::Layer& MoeLayer::impl() const { return *state_->layer; }

std::int64_t MoeLayer::expert_stored_bytes() const {
  const ops::FfnShape& s = state_->layer->routed().shape;
  const std::int64_t fc1 = s.weights.stored_bytes(s.inter, s.hidden);
  return (s.gated ? 2 : 1) * fc1 + s.weights.stored_bytes(s.hidden, s.inter);
}

std::size_t MoeLayer::workspace_bytes(std::int64_t max_tokens) const {
  return state_->layer->workspace_bytes(max_tokens);
}

void MoeLayer::forward(const ForwardArgs& args) const { state_->layer->forward(args); }

}  // namespace switchyard
