// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/allreduce_traffic.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "switchyard/base/random.h"
#include "switchyard/base/sha256.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/e8m0.h"
#include "switchyard/formats/nvfp4.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm_ref.h"

namespace switchyard::api {
namespace {

using ops::AllReduceQuant;
using Pattern = ops::AllReduceFusionPattern;

constexpr std::int64_t kGroup = 128;
// Tensors of one rank, and those that all ranks share.
enum Tensor : std::uint64_t { kInput, kShared, kRows, kWeights, kNumTensors };
constexpr std::uint64_t kResidual = 1'000'000, kGamma = 1'000'001;

bool writes_norm(Pattern p) {
  return p != Pattern::kAllReduce && p != Pattern::kARResidualRMSNormFP8Quant &&
         p != Pattern::kARResidualRMSNormFP4Quant &&
         p != Pattern::kARResidualRMSNormPerTokenGroupFP8PackedQuant &&
         p != Pattern::kARResidualRMSNormDynamicFP8Quant;
}

double rel_l2(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return error == 0 ? 0 : std::sqrt(error / size);
}

double limit_of(Dtype t) { return t == Dtype::kF32 ? 1e-5 : t == Dtype::kBf16 ? 0x1p-8 : 0x1p-11; }

}  // namespace

bool is_moe(Pattern p) {
  return p == Pattern::kMoEReductionARResidualRMSNorm ||
         p == Pattern::kMoEFinalizeARResidualRMSNorm;
}

AllReduceQuant quant_of(const BenchAllReduceOptions& o) {
  return is_moe(o.pattern) ? o.quant : ops::quant_of(o.pattern);
}

AllReduceTraffic::AllReduceTraffic(const BenchAllReduceOptions& options, std::int64_t tokens,
                                   int rank)
    : o_(options), tokens_(tokens), rank_(std::uint64_t(rank)) {
  const std::uint64_t own = rank_ * kNumTensors;
  if (!is_moe(o_.pattern)) fill(input_, tokens, own + kInput);
  if (o_.shared) fill(shared_, tokens, own + kShared);
  fill(residual_, tokens, kResidual);
  fill(gamma_, 1, kGamma);
  if (is_moe(o_.pattern)) make_experts();
  const auto elements = std::size_t(tokens * o_.hidden);
  const std::size_t rows = elements * size_of(o_.dtype);
  const bool has_output =
      o_.pattern == Pattern::kAllReduce || o_.pattern == Pattern::kMoEReductionARResidualRMSNorm;
  for (Bytes* b : {&contribution_, &sum_}) b->resize(rows);
  if (has_output) output_.resize(rows);
  if (o_.pattern != Pattern::kAllReduce) residual_out_.resize(rows);
  if (writes_norm(o_.pattern)) norm_out_.resize(rows);
  const AllReduceQuant quant = quant_of(o_);
  if (quant != AllReduceQuant::kNone)
    quant_out_.resize(quant == AllReduceQuant::kNvfp4 ? elements / 2 : elements);
  if (quant == AllReduceQuant::kNvfp4)
    scale_out_.resize(std::size_t(formats::padded_scale_bytes(
        o_.scale_layout, {tokens, (o_.hidden + formats::kNvfp4Block - 1) / formats::kNvfp4Block})));
  if (quant == AllReduceQuant::kFp8Group)
    scale_out_.resize(std::size_t(ops::group_scale_bytes(tokens, o_.hidden, kGroup)));
  if (quant == AllReduceQuant::kFp8Token) scale_out_.resize(std::size_t(tokens) * sizeof(float));
}

void AllReduceTraffic::fill(Bytes& out, std::int64_t rows, std::uint64_t tensor) {
  const Random random(o_.seed, tensor);
  out.resize(std::size_t(rows * o_.hidden) * size_of(o_.dtype));
  for (std::int64_t i = 0; i < rows * o_.hidden; ++i)
    store_element(o_.dtype, out.data(), i, random.normal(std::uint64_t(i)));
}

// Row (m, c) holds choice c of token m, so that fewer tokens have the same rows in front; a
// reduction, which is expert-major, is given them in its own order.
void AllReduceTraffic::make_experts() {
  const bool reduction = o_.pattern == Pattern::kMoEReductionARResidualRMSNorm;
  const std::int64_t columns = reduction ? o_.experts : o_.top_k;
  Bytes by_token;
  fill(by_token, tokens_ * columns, rank_ * kNumTensors + kRows);
  const Random random(o_.seed, rank_ * kNumTensors + kWeights);
  const std::size_t bytes = std::size_t(o_.hidden) * size_of(o_.dtype);
  weights_.resize(std::size_t(tokens_ * columns));
  index_.resize(weights_.size());
  rows_ = by_token;
  for (std::int64_t m = 0; m < tokens_; ++m)
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t from = m * columns + c, to = reduction ? c * tokens_ + m : from;
      weights_[std::size_t(to)] = 0.05f + random.uniform(std::uint64_t(from));
      index_[std::size_t(from)] = std::int32_t(from);
      std::memcpy(rows_.data() + std::size_t(to) * bytes,
                  by_token.data() + std::size_t(from) * bytes, bytes);
    }
}

ops::NormArgs AllReduceTraffic::norm() {
  ops::NormArgs n{.residual_in = residual_.data(),
                  .rms_gamma = gamma_.data(),
                  .weight_bias = 1,
                  .residual_out = residual_out_.data(),
                  .norm_out = norm_out_.empty() ? nullptr : norm_out_.data()};
  switch (quant_of(o_)) {
    case AllReduceQuant::kNone:
      break;
    case AllReduceQuant::kFp8Static:
      n.quant = ops::Fp8StaticOut{{&decode_scale_}, quant_out_.data()};
      break;
    case AllReduceQuant::kNvfp4:
      n.quant =
          ops::Nvfp4Out{{&encode_scale_}, quant_out_.data(), scale_out_.data(), o_.scale_layout};
      break;
    case AllReduceQuant::kFp8Group:
      n.quant = ops::Fp8GroupOut{kGroup, quant_out_.data(), scale_out_.data()};
      break;
    case AllReduceQuant::kFp8Token:
      n.quant = ops::Fp8TokenOut{quant_out_.data(), reinterpret_cast<float*>(scale_out_.data())};
      break;
  }
  return n;
}

ops::AllReduceCall AllReduceTraffic::fused() {
  const ops::CallShape shape{tokens_, o_.hidden, o_.dtype, o_.strategy};
  const void* shared = o_.shared ? shared_.data() : nullptr;
  if (o_.pattern == Pattern::kAllReduce)
    return ops::AllReduceArgs{shape, {input_.data()}, output_.data()}.call();
  if (!is_moe(o_.pattern)) return ops::ARResidualRMSNormArgs{shape, {input_.data()}, norm()}.call();
  if (o_.pattern == Pattern::kMoEReductionARResidualRMSNorm)
    return ops::MoEReductionArgs{shape,
                                 {.active_experts_token_input = rows_.data(),
                                  .scale_input = weights_.data(),
                                  .num_experts = o_.experts,
                                  .token_input = shared,
                                  .routed_scaling_factor = o_.routed_scaling_factor},
                                 output_.data(),
                                 norm()}
        .call();
  return ops::MoEFinalizeArgs{shape,
                              {.rows = rows_.data(),
                               .num_rows = tokens_ * o_.top_k,
                               .expanded_idx_to_permuted_idx = index_.data(),
                               .top_k = o_.top_k,
                               .expert_scale_factor = weights_.data(),
                               .routed_scaling_factor = o_.routed_scaling_factor,
                               .shared_expert_output = shared},
                              norm()}
      .call();
}

std::string AllReduceTraffic::digest() const {
  std::string all;
  for (const Bytes* b : {&output_, &residual_out_, &norm_out_, &quant_out_, &scale_out_})
    all.append(b->begin(), b->end());
  return sha256_hex(all);
}

std::int64_t AllReduceTraffic::output_bytes() const {
  std::size_t bytes = 0;
  for (const Bytes* b : {&output_, &residual_out_, &norm_out_, &quant_out_, &scale_out_})
    bytes += b->size();
  return std::int64_t(bytes);
}

double AllReduceTraffic::scale_of(std::int64_t m, std::int64_t h) const {
  switch (quant_of(o_)) {
    case AllReduceQuant::kNvfp4: {
      const std::int64_t blocks = (o_.hidden + formats::kNvfp4Block - 1) / formats::kNvfp4Block;
      const std::int64_t at =
          formats::scale_offset(o_.scale_layout, {tokens_, blocks}, m, h / formats::kNvfp4Block);
      return double(formats::decode_e4m3(scale_out_[std::size_t(at)])) / double(encode_scale_);
    }
    case AllReduceQuant::kFp8Group: {
      const std::int64_t g = h / kGroup, rows = (tokens_ + 3) / 4 * 4;
      return formats::decode_e8m0(scale_out_[std::size_t((g / 4 * rows + m) * 4 + g % 4)]);
    }
    case AllReduceQuant::kFp8Token: {
      float scale = 0;
      std::memcpy(&scale, scale_out_.data() + m * 4, sizeof scale);
      return scale;
    }
    default:
      return decode_scale_;
  }
}

std::vector<double> AllReduceTraffic::decoded_codes(std::int64_t tokens) {
  std::vector<double> out;
  const bool four_bits = quant_of(o_) == AllReduceQuant::kNvfp4;
  for (std::int64_t m = 0; m < tokens; ++m)
    for (std::int64_t h = 0; h < o_.hidden; ++h) {
      const std::int64_t i = m * o_.hidden + h;
      const double element = four_bits ? formats::decode_e2m1(std::uint8_t(
                                             quant_out_[std::size_t(i / 2)] >> (i % 2 * 4) & 15))
                                       : formats::decode_e4m3(quant_out_[std::size_t(i)]);
      out.push_back(element * scale_of(m, h));
    }
  return out;
}

std::vector<std::pair<std::string, std::vector<double>>> AllReduceTraffic::decoded(
    std::int64_t tokens) {
  std::vector<std::pair<std::string, std::vector<double>>> out;
  auto add = [&](const char* name, const Bytes& bytes) {
    if (bytes.empty()) return;
    out.emplace_back(name, std::vector<double>());
    for (std::int64_t i = 0; i < tokens * o_.hidden; ++i)
      out.back().second.push_back(load_element(o_.dtype, bytes.data(), i));
  };
  add("output", output_);
  add("residual_out", residual_out_);
  add("norm_out", norm_out_);
  if (!quant_out_.empty()) out.emplace_back("quant_out", decoded_codes(tokens));
  return out;
}

std::vector<OutputError> judge_traffic(const BenchAllReduceOptions& o, std::int64_t tokens,
                                       AllReduceTraffic& mine) {
  constexpr double kQuantLimit = 0.01;  // a few codes next to a boundary
  std::vector<AllReduceTraffic> ranks;
  for (int r = 0; r < int(o.ranks); ++r) ranks.emplace_back(o, tokens, r);
  std::vector<ops::AllReduceCall> calls;
  for (AllReduceTraffic& r : ranks) calls.push_back(r.fused());
  const ops::AllReduceReference want = ops::allreduce_norm_ref(calls);
  std::vector<OutputError> out;
  for (const auto& [name, got] : mine.decoded(tokens)) {
    if (name != "quant_out") {
      const auto& exact = name == "output"     ? want.sum
                          : name == "norm_out" ? want.norm
                                               : want.residual;
      out.push_back({name, rel_l2(got, exact), limit_of(o.dtype)});
      continue;
    }
    ops::QuantReference quant = ops::quantise_norm_ref(calls[0], want.norm);
    out.push_back({name, rel_l2(got, ops::dequantise(calls[0], quant)), kQuantLimit});
  }
  return out;
}

}  // namespace switchyard::api
