// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "switchyard/ops/projection/projection.h"

namespace switchyard::ops {
namespace {

double rounded(const ProjectionShape& s, double v) {
  if (!s.rounds || s.dtype == Dtype::kF32) return v;
  const float f = float(v);
  return s.dtype == Dtype::kFp16 ? fp16_to_float(float_to_fp16(f))
                                 : bf16_to_float(float_to_bf16(f));
}

/// What the GEMM reads of row t.
std::vector<double> input_row(const ProjectionRefArgs& a, std::int64_t t) {
  const ProjectionShape& s = *a.shape;
  std::vector<double> row(a.x + t * s.in, a.x + (t + 1) * s.in);
  if (a.norm != nullptr) {
    double squares = 0;
    for (double v : row) squares += v * v;
    const double root = std::sqrt(squares / double(s.in) + double(a.norm_eps));
    for (std::size_t k = 0; k < row.size(); ++k) row[k] = row[k] / root * double(a.norm[k]);
  }
  for (double& v : row) v = rounded(s, v);
  return row;
}

}  // namespace

void projection_ref(const ProjectionRefArgs& a) {
  const ProjectionShape& s = *a.shape;
  std::vector<std::vector<double>> rows;
  for (std::int64_t t = 0; t < a.tokens; ++t) rows.push_back(input_row(a, t));
  auto one_output = [&](std::int64_t n, int) {
    std::vector<float> weights(std::size_t(s.in));  // 16-bit weights are exact in fp32
    a.weight->decode_row(n, weights);
    for (std::int64_t t = 0; t < a.tokens; ++t) {
      double sum = 0;
      for (std::size_t k = 0; k < weights.size(); ++k)
        sum += rows[std::size_t(t)][k] * double(weights[k]);
      a.out[t * s.out + n] = sum;
    }
  };
  if (a.pool != nullptr) return a.pool->for_each(s.out, one_output);
  for (std::int64_t n = 0; n < s.out; ++n) one_output(n, 0);
}

}  // namespace switchyard::ops
