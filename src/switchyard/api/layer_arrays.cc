// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/layer_arrays.h"

#include <utility>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/base/dtype.h"
#include "switchyard/checkpoint/finite.h"
#include "switchyard/formats/encode.h"

namespace switchyard {

using formats::Matrix;

namespace {

checkpoint::TensorType type_of(Dtype dtype) {
  return dtype == Dtype::kF32    ? checkpoint::TensorType::kF32
         : dtype == Dtype::kFp16 ? checkpoint::TensorType::kF16
                                 : checkpoint::TensorType::kBf16;
}

/// Of a matrix that is dense.
void check_finite(const NamedArray& a, std::int64_t e, std::int64_t rows, std::int64_t cols) {
  const auto size = std::int64_t(size_of(a.dtype));
  const auto* base = static_cast<const std::byte*>(a.base) + e * rows * cols * size;
  const auto at = checkpoint::first_special({.base = base,
                                             .type = type_of(a.dtype),
                                             .rows = rows,
                                             .cols = cols,
                                             .row_stride = cols * size,
                                             .col_stride = size,
                                             .unit_bytes = int(size)});
  require(!at, "array ", a.name, e > 0 ? cat(" of expert ", e) : "", ": the weight at row ",
          at ? at->first : 0, ", column ", at ? at->second : 0, " is ",
          at ? load_element(a.dtype, base, at->first * cols + at->second) : 0,
          ", must be finite; the array is damaged, or no weights yet");
}

}  // namespace

Matrix borrow_matrix(const NamedArray& a, std::int64_t e, std::int64_t rows, std::int64_t cols) {
  check_finite(a, e, rows, cols);
  Matrix m;
  m.rows = rows;
  m.cols = cols;
  const std::size_t count = std::size_t(rows * cols);
  if (a.dtype != Dtype::kF32) {
    m.layout.element = a.dtype == Dtype::kFp16 ? formats::Element::kFp16 : formats::Element::kBf16;
    m.codes = {static_cast<const std::byte*>(a.base) + std::size_t(e) * count * 2, count * 2};
    return m;
  }
  const float* values = static_cast<const float*>(a.base) + std::size_t(e) * count;
  return formats::quantize_matrix({values, count}, rows, cols,
                                  {.element = formats::Element::kBf16});
}

std::vector<float> copy_floats(const float* data, std::int64_t count) {
  return data == nullptr ? std::vector<float>() : std::vector<float>(data, data + count);
}

namespace {

std::vector<float> copy_row(const float* data, std::int64_t e, std::int64_t count) {
  return data == nullptr ? std::vector<float>() : copy_floats(data + e * count, count);
}

checkpoint::ExpertWeights array_expert(const LayerArrays& a, std::int64_t e) {
  const Problem& p = a.problem;
  checkpoint::ExpertWeights w;
  const std::int64_t h = p.expert_hidden();
  if (p.gated()) w.gate = borrow_matrix({"gate", a.gate, a.dtype}, e, p.inter, h);
  w.up = borrow_matrix({"up", a.up, a.dtype}, e, p.inter, h);
  w.down = borrow_matrix({"down", a.down, a.dtype}, e, h, p.inter);
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
Matrix copy_matrix(const NamedArray& a, std::int64_t rows, std::int64_t cols) {
  Matrix m = borrow_matrix(a, 0, rows, cols);
  if (a.dtype == Dtype::kF32) return m;
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

}  // namespace

checkpoint::LayerWeights BorrowedArrays::weights() const {
  const LayerArrays& a = **arrays_;
  check_arrays(a);
  const Problem& p = a.problem;
  const std::int64_t experts = p.num_experts() + p.routing.zero_experts;
  checkpoint::LayerWeights w;
  w.block = "arrays";
  w.problem = p;
  w.problem.format = "none";
  w.layout.element = a.dtype == Dtype::kFp16 ? formats::Element::kFp16 : formats::Element::kBf16;
  if (a.dtype == Dtype::kF32) w.notices.push_back("F32 weights rounded to bf16");
  if (a.router_weight != nullptr)
    check_finite({"router_weight", a.router_weight, Dtype::kF32}, 0, experts, p.hidden);
  w.router.weight = copy_floats(a.router_weight, experts * p.hidden);
  w.router.logit_bias = copy_floats(a.router_bias, experts);
  w.router.choice_bias = copy_floats(a.choice_bias, experts);
  w.router.per_expert_scale = copy_floats(a.per_expert_scale, p.num_experts());
  if (a.hash_table != nullptr)
    w.router.hash_table.assign(a.hash_table, a.hash_table + a.vocab * p.top_k());
  w.router.vocab = a.vocab;
  if (p.latent > 0)
    w.latent = {.down = copy_matrix({"latent_down", a.latent_down, a.dtype}, p.latent, p.hidden),
                .up = copy_matrix({"latent_up", a.latent_up, a.dtype}, p.hidden, p.latent),
                .norm = copy_floats(a.latent_norm, p.latent),
                .norm_eps = a.latent_norm_eps};
  w.expert = [arrays = arrays_](std::int64_t e) {
    ensure(*arrays != nullptr, "a caller's arrays are read during construction only");
    return array_expert(**arrays, e);
  };
  return w;
}

}  // namespace switchyard
