// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "switchyard/formats/nvfp4.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm_math.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm_rows.h"

namespace switchyard::ops {
namespace {

RowOf row_type(const CallShape& s) { return {s.dtype, s.hidden}; }

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// One weighted row more, in fp32 or rounded to T at every step.
void add_expert(const CallShape& s, const RowKernels& k, const void* row, float weight,
                float* acc) {
  (s.legacy_rounding ? k.add_weighted_rounded : k.add_weighted)(row_type(s), row, weight, acc);
}

/// The factor behind the routed sum, then what is added unscaled.
void finish_local(const CallShape& s, const RowKernels& k, const std::optional<float>& factor,
                  const void* shared, float* acc) {
  if (factor && *factor != 1) {
    k.scale(acc, *factor, s.hidden);
    if (s.legacy_rounding) k.round(row_type(s), acc);
  }
  if (shared != nullptr) (s.legacy_rounding ? k.add_rounded : k.add)(row_type(s), shared, acc);
}

/// acc, which is 0, += the contribution of a source to token m.
struct AddSource {
  const CallShape& s;
  const RowKernels& k;
  std::int64_t m;
  float* acc;

  void operator()(const PlainSource& source) const {
    k.add(row_type(s), row_of(source.input, s, m), acc);
  }
  void operator()(const MoeReductionSource& source) const {
    for (std::int64_t e = 0; e < source.num_experts; ++e) {
      const float weight = source.scale_input[e * s.tokens + m];
      if (weight == 0) continue;  // the row of an expert that was not chosen may hold anything
      add_expert(s, k, row_of(source.active_experts_token_input, s, e * s.tokens + m), weight, acc);
    }
    finish_local(s, k, source.routed_scaling_factor,
                 source.token_input ? row_of(source.token_input, s, m) : nullptr, acc);
  }
  void operator()(const MoeFinalizeSource& source) const {
    for (std::int64_t j = m * source.top_k; j < (m + 1) * source.top_k; ++j) {
      const std::int32_t row = source.expanded_idx_to_permuted_idx[j];
      if (row < 0) continue;
      const float weight = source.expert_scale_factor == nullptr
                               ? 1
                               : load_element(source.scale_dtype, source.expert_scale_factor, j);
      if (weight == 0) continue;
      add_expert(s, k, row_of(source.rows, s, row), weight, acc);
    }
    finish_local(s, k, source.routed_scaling_factor,
                 source.shared_expert_output ? row_of(source.shared_expert_output, s, m) : nullptr,
                 acc);
  }
};

/// Quantises a row of norms.
struct QuantiseRow {
  const float* norm;
  std::int64_t hidden;
  const RowKernels& k;
  const QuantRow& out;

  void operator()(const std::monostate&) const {}
  void operator()(const Fp8StaticOut& q) const {
    k.encode_e4m3(norm, 1.0f / *q.scale.value, hidden, out.codes);
  }
  void operator()(const Nvfp4Out& q) const {
    k.encode_nvfp4({norm, *q.scale.value, out.codes, out.scales}, hidden);
  }
  void operator()(const Fp8GroupOut& q) const {
    for (std::int64_t begin = 0, g = 0; begin < hidden; begin += q.group, ++g) {
      const std::int64_t n = std::min(q.group, hidden - begin);
      out.scales[g] = fp8_group_scale(k.amax(norm + begin, n));
      // Dividing by a power of two and multiplying by its reciprocal are the same.
      k.encode_e4m3(norm + begin, formats::reciprocal_e8m0(out.scales[g]), n, out.codes + begin);
    }
  }
  void operator()(const Fp8TokenOut&) const {
    const float scale = fp8_token_scale(k.amax(norm, hidden));
    std::memcpy(out.scales, &scale, sizeof scale);
    k.encode_e4m3_divided(norm, scale, hidden, out.codes);
  }
};

/// Bytes of codes and scales of a row.
struct QuantBytes {
  std::int64_t codes = 0, scales = 0;
};

QuantBytes quant_bytes(const NormArgs& norm, std::int64_t hidden) {
  switch (norm.quant_kind()) {
    case AllReduceQuant::kNone:
      return {};
    case AllReduceQuant::kFp8Static:
      return {hidden, 0};
    case AllReduceQuant::kNvfp4:
      return {hidden / 2, ceil_div(hidden, formats::kNvfp4Block)};
    case AllReduceQuant::kFp8Group:
      return {hidden, ceil_div(hidden, std::get<Fp8GroupOut>(norm.quant).group)};
    case AllReduceQuant::kFp8Token:
      return {hidden, std::int64_t(sizeof(float))};
  }
  throw InternalError("a quantised output of unknown size");
}

std::uint8_t* quant_out_of(const QuantOut& quant) {
  if (const auto* q = std::get_if<Fp8StaticOut>(&quant)) return q->quant_out;
  if (const auto* q = std::get_if<Nvfp4Out>(&quant)) return q->quant_out;
  if (const auto* q = std::get_if<Fp8GroupOut>(&quant)) return q->quant_out;
  if (const auto* q = std::get_if<Fp8TokenOut>(&quant)) return q->quant_out;
  return nullptr;
}

std::uint8_t* codes_of(const NormArgs& norm, const CallShape& s, std::int64_t m) {
  return quant_out_of(norm.quant) + m * quant_bytes(norm, s.hidden).codes;
}

/// Puts a row's linear scales where the output's layout has them.
void place_scales(const NormArgs& norm, const CallShape& s, std::int64_t m,
                  const std::uint8_t* scales) {
  const std::int64_t n = quant_bytes(norm, s.hidden).scales;
  if (const auto* q = std::get_if<Nvfp4Out>(&norm.quant)) {
    const formats::ScaleGrid grid{s.tokens, n};
    for (std::int64_t b = 0; b < n; ++b)
      q->scale_out[formats::scale_offset(q->layout, grid, m, b)] = scales[b];
  } else if (const auto* g = std::get_if<Fp8GroupOut>(&norm.quant)) {
    const std::int64_t rows = ceil_div(s.tokens, 4) * 4;
    for (std::int64_t b = 0; b < n; ++b) g->scale_out[(b / 4 * rows + m) * 4 + b % 4] = scales[b];
  } else if (const auto* t = std::get_if<Fp8TokenOut>(&norm.quant)) {
    std::memcpy(t->scale_out + m, scales, sizeof(float));
  }
}

}  // namespace

const RowKernels& row_kernels(CpuIsa isa) {
  if (isa >= CpuIsa::kAvx512) return kRowKernelsAvx512;
  if (isa >= CpuIsa::kAvx2) return kRowKernelsAvx2;
  return kRowKernelsPortable;
}

void local_row(const AllReduceCall& call, const RowKernels& k, std::int64_t m, float* acc) {
  std::fill_n(acc, call.shape.hidden, 0.0f);  // and not -0: a sum of -0 alone is +0
  std::visit(AddSource{call.shape, k, m, acc}, call.source);
}

void residual_row(const AllReduceCall& call, const RowKernels& k, std::int64_t m,
                  const RowScratch& s) {
  const RowOf t = row_type(call.shape);
  std::copy_n(s.acc, t.hidden, s.p);
  k.add_rounded(t, row_of(call.norm->residual_in, call.shape, m), s.p);
}

void normalise_row(const AllReduceCall& call, const RowKernels& k, const RowScratch& s) {
  const NormArgs& norm = *call.norm;
  const float rstd =
      rms_rstd(k.sum_squares(s.p, call.shape.hidden), call.shape.hidden, norm.rms_eps);
  k.normalise(row_type(call.shape), {s.p, norm.rms_gamma, rstd, norm.weight_bias, s.norm});
}

void quantise_row(const AllReduceCall& call, const RowKernels& k, const RowScratch& s,
                  const QuantRow& out) {
  std::visit(QuantiseRow{s.norm, call.shape.hidden, k, out}, call.norm->quant);
}

void norm_row(const AllReduceCall& call, const RowKernels& k, std::int64_t m, const RowScratch& s) {
  const NormArgs& norm = *call.norm;
  if (!norm.wants_norm()) return;
  normalise_row(call, k, s);
  if (norm.norm_out != nullptr)
    k.store(row_type(call.shape), s.norm, row_of(norm.norm_out, call.shape, m));
  if (norm.quant_kind() == AllReduceQuant::kNone) return;
  quantise_row(call, k, s, {codes_of(norm, call.shape, m), s.scales});
  place_scales(norm, call.shape, m, s.scales);
}

std::int64_t quant_code_bytes(const NormArgs& norm, std::int64_t hidden) {
  return quant_bytes(norm, hidden).codes;
}

std::int64_t quant_scale_bytes(const NormArgs& norm, std::int64_t hidden) {
  return quant_bytes(norm, hidden).scales;
}

void place_quant_row(const NormArgs& norm, const CallShape& shape, std::int64_t m,
                     const QuantRow& row) {
  std::copy_n(row.codes, quant_bytes(norm, shape.hidden).codes, codes_of(norm, shape, m));
  place_scales(norm, shape, m, row.scales);
}

void clear_scale_padding(const NormArgs& norm, const CallShape& s) {
  const std::int64_t n = quant_bytes(norm, s.hidden).scales;
  if (const auto* q = std::get_if<Nvfp4Out>(&norm.quant)) {
    if (s.tokens == 0 || q->layout == formats::ScaleLayout::kLinear) return;
    const formats::ScaleGrid grid{s.tokens, n};
    const std::int64_t tile = formats::scale_tile_rows(q->layout);
    const std::int64_t rows = ceil_div(s.tokens, tile) * tile, cols = ceil_div(n, 4) * 4;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = r < s.tokens ? n : 0; c < cols; ++c)
        q->scale_out[formats::scale_offset(q->layout, grid, r, c)] = 0;
  } else if (const auto* g = std::get_if<Fp8GroupOut>(&norm.quant)) {
    const std::int64_t rows = ceil_div(s.tokens, 4) * 4, columns = ceil_div(n, 4);
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t r = 0; r < (c + 1 == columns ? s.tokens : rows); ++r)
        for (std::int64_t b = r < s.tokens ? std::min<std::int64_t>(n - c * 4, 4) : 0; b < 4; ++b)
          g->scale_out[(c * rows + r) * 4 + b] = 0;
  }
}

}  // namespace switchyard::ops
