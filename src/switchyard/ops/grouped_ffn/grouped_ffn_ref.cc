// SPDX-License-Identifier: Apache-2.0
// The oracle of the expert FFN: dequantised weights, the format's own requantisation points, double
// sums.
#include <algorithm>
#include <cstring>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/e8m0.h"
#include "switchyard/ops/activation/activation.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/quantize/quantize.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using formats::Matrix;

template <class F>
void for_each(ThreadPool* pool, std::int64_t count, F&& f) {
  if (pool != nullptr) return pool->for_each(count, f);
  for (std::int64_t i = 0; i < count; ++i) f(i, 0);
}

/// What the format does to a row in front of a GEMM, dequantised.
void requantize(const FfnShape& s, const float* x, std::int64_t cols, float static_scale,
                double* out) {
  if (s.quant != ActivationQuant::kNone && s.quant != ActivationQuant::kF32)
    return quantize_row_ref({.kind = s.quant, .x = x, .cols = cols, .static_scale = static_scale},
                            out);
  for (std::int64_t k = 0; k < cols; ++k) {
    float v = x[k];
    if (s.quant == ActivationQuant::kNone) {
      if (s.dtype == Dtype::kBf16) v = bf16_to_float(float_to_bf16(v));
      if (s.dtype == Dtype::kFp16) v = fp16_to_float(float_to_fp16(v));
    }
    out[k] = v;
  }
}

double exact_code(const Matrix& w, std::int64_t at) {
  const auto byte = [&](std::int64_t i) { return std::uint8_t(w.codes[std::size_t(i)]); };
  std::uint16_t bits;
  switch (w.layout.element) {
    case formats::Element::kE4m3:
      return formats::decode_e4m3(byte(at));
    case formats::Element::kE2m1:
      return formats::decode_e2m1(std::uint8_t(byte(at / 2) >> (4 * (at % 2)) & 0xf));
    case formats::Element::kF32: {
      float f;
      std::memcpy(&f, &w.codes[std::size_t(4 * at)], 4);
      return f;
    }
    default:
      std::memcpy(&bits, &w.codes[std::size_t(2 * at)], 2);
  }
  return w.layout.element == formats::Element::kBf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

double exact_scale(const Matrix& w, std::int64_t at) {
  float f;
  switch (w.layout.scale) {
    case formats::ScaleType::kNone:
      return 1;
    case formats::ScaleType::kF32:
      std::memcpy(&f, &w.scales[std::size_t(4 * at)], 4);
      return f;
    case formats::ScaleType::kE8m0:
      return formats::decode_e8m0(std::uint8_t(w.scales[std::size_t(at)]));
    case formats::ScaleType::kE4m3:
      return formats::decode_e4m3(std::uint8_t(w.scales[std::size_t(at)]));
  }
  return 1;
}

/// Row n of w in double: code times block scale times global scale, nothing rounded.
void exact_row(const Matrix& w, std::int64_t n, double* out) {
  const std::int64_t block = w.layout.block_cols > 0 ? w.layout.block_cols : w.cols;
  const std::int64_t block_rows = w.layout.block_rows > 0 ? w.layout.block_rows : w.rows;
  const std::int64_t first = n / block_rows * w.layout.scale_cols(w.cols);
  for (std::int64_t k = 0; k < w.cols; k += block) {
    const double scale = exact_scale(w, first + k / block) * double(w.global_scale);
    for (std::int64_t i = k; i < std::min(k + block, w.cols); ++i)
      out[i] = exact_code(w, n * w.cols + i) * scale;
  }
}

/// y[i, n] = x[i] . w[n] + bias[n]
void matmul(ThreadPool* pool, const Matrix& w, const std::vector<float>& bias,
            const std::vector<double>& x, std::int64_t rows, std::vector<double>& y) {
  y.assign(std::size_t(rows * w.rows), 0);
  for_each(pool, w.rows, [&](std::int64_t n, int) {
    std::vector<double> weights(std::size_t(w.cols));
    exact_row(w, n, weights.data());
    for (std::int64_t i = 0; i < rows; ++i) {
      double sum = 0;
      for (std::int64_t k = 0; k < w.cols; ++k)
        sum += weights[std::size_t(k)] * x[std::size_t(i * w.cols + k)];
      y[std::size_t(i * w.rows + n)] = sum + (bias.empty() ? 0.0 : double(bias[std::size_t(n)]));
    }
  });
}

/// One expert over the (token, choice) rows that chose it.
class ExpertRef {
 public:
  ExpertRef(const FfnRefArgs& a, std::int64_t e, std::vector<std::int64_t> rows)
      : a_(a), s_(*a.shape), e_(e), rows_(std::move(rows)), weights_((*a.expert)(e)) {}

  /// [rows, hidden], in the order of `rows`.
  std::vector<double> run() {
    const std::int64_t n = std::int64_t(rows_.size());
    std::vector<double> x(std::size_t(n * s_.hidden)), gate, up, y;
    for (std::int64_t i = 0; i < n; ++i) input(rows_[std::size_t(i)], x.data() + i * s_.hidden);
    matmul(a_.pool, weights_.up, weights_.up_bias, x, n, up);
    if (s_.gated) matmul(a_.pool, *weights_.gate, weights_.gate_bias, x, n, gate);
    std::vector<double> inter(std::size_t(n * s_.inter));
    for (std::int64_t i = 0; i < n; ++i) intermediate(i, gate, up, inter.data() + i * s_.inter);
    matmul(a_.pool, weights_.down, weights_.down_bias, inter, n, y);
    return y;
  }

 private:
  void input(std::int64_t r, double* out) const {
    const float* token = a_.x + r / s_.top_k * s_.hidden;
    if (!s_.weight_on_input) return requantize(s_, token, s_.hidden, a_.fc1_input_scale, out);
    std::vector<float> weighted(token, token + s_.hidden);
    for (float& v : weighted) v *= a_.weights[r];
    requantize(s_, weighted.data(), s_.hidden, a_.fc1_input_scale, out);
  }

  void intermediate(std::int64_t i, const std::vector<double>& gate, const std::vector<double>& up,
                    double* out) const {
    const std::int64_t r = rows_[std::size_t(i)];
    std::vector<float> activated(std::size_t(s_.inter));
    for (std::int64_t n = 0; n < s_.inter; ++n) {
      const std::size_t at = std::size_t(i * s_.inter + n);
      const double v = activate_ref(a_.activation[e_], s_.gated ? gate[at] : 0.0, up[at]);
      activated[std::size_t(n)] = float(v);
      out[n] = v;
    }
    // Without requantisation the double stays unrounded: the oracle adds no rounding of its own.
    if (s_.quant != ActivationQuant::kF32)
      requantize(s_, activated.data(), s_.inter, a_.fc2_input_scale ? a_.fc2_input_scale[e_] : 1.0f,
                 out);
    if (a_.inter_out != nullptr) std::copy(out, out + s_.inter, a_.inter_out + r * s_.inter);
    const bool given = a_.inter_in != nullptr && (a_.use_inter == nullptr || a_.use_inter[r] != 0);
    if (given) std::copy(a_.inter_in + r * s_.inter, a_.inter_in + (r + 1) * s_.inter, out);
  }

  const FfnRefArgs& a_;
  const FfnShape& s_;
  std::int64_t e_;
  std::vector<std::int64_t> rows_;
  checkpoint::ExpertWeights weights_;
};

void combine(const FfnRefArgs& a, const std::vector<double>& rows) {
  const FfnShape& s = *a.shape;
  for (std::int64_t t = 0; t < a.tokens; ++t)
    for (std::int64_t h = 0; h < s.hidden; ++h) {
      double sum = 0;
      for (std::int64_t j = 0; j < s.top_k; ++j) {
        const std::int64_t r = t * s.top_k + j;
        if (a.ids[r] < 0) continue;
        const bool weighted = !s.weight_on_input || a.ids[r] >= s.experts;
        const double factor = j < s.top_k - s.unscaled_choices ? a.factor : 1.0;
        sum +=
            factor * (weighted ? double(a.weights[r]) : 1.0) * rows[std::size_t(r * s.hidden + h)];
      }
      const double addend = a.addend != nullptr ? a.addend[t * s.hidden + h] : 0.0;
      a.out[t * s.hidden + h] = sum + addend;
    }
}

}  // namespace

void grouped_ffn_ref(const FfnRefArgs& a) {
  const FfnShape& s = *a.shape;
  std::vector<std::vector<std::int64_t>> chosen(static_cast<std::size_t>(s.experts));
  std::vector<double> rows(std::size_t(a.tokens * s.top_k * s.hidden));
  for (std::int64_t r = 0; r < a.tokens * s.top_k; ++r) {
    const std::int32_t id = a.ids[r];
    ensure(id >= -1 && id < s.experts + s.zero_experts, "oracle: expert id ", id,
           " is out of range");
    if (id >= 0 && id < s.experts) chosen[std::size_t(id)].push_back(r);
    if (id >= s.experts)
      std::copy_n(a.x + r / s.top_k * s.hidden, s.hidden, rows.begin() + r * s.hidden);
  }
  for (std::int64_t e = 0; e < s.experts; ++e) {
    if (chosen[std::size_t(e)].empty()) continue;
    const std::vector<double> y = ExpertRef(a, e, chosen[std::size_t(e)]).run();
    for (std::size_t i = 0; i < chosen[std::size_t(e)].size(); ++i)
      std::copy_n(y.begin() + std::int64_t(i) * s.hidden, s.hidden,
                  rows.begin() + chosen[std::size_t(e)][i] * s.hidden);
  }
  if (a.rows != nullptr) std::copy(rows.begin(), rows.end(), a.rows);
  if (a.out != nullptr) combine(a, rows);
}

}  // namespace switchyard::ops
