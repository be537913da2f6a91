// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_ffn/ffn_work.h"

#include <algorithm>
#include <cmath>

namespace switchyard::ops {

FfnWork::FfnWork(const FfnShape& shape, std::int64_t tokens) {
  const double all = double(std::max<std::int64_t>(1, shape.experts));
  const double chosen = std::min(1.0, double(shape.top_k) / all);
  experts = all * (1 - std::pow(1 - chosen, double(tokens)));
  rows_each = double(tokens * shape.top_k) / std::max(1.0, experts);
}

double estimated_us(const FfnWork& work, const GemmWork& gemm, std::int64_t tile) {
  constexpr double kMemory = 4.3e6, kCache = 5.5e6, kFlops = 7e8;  // bytes, bytes, flops a µs
  constexpr double kMultiprocessors = 132, kRowTile = 64;
  constexpr double kFullRate = 64;  // narrower tiles wait for the weights' way to the tensor cores
  const double tiles_each = std::ceil(work.rows_each / double(tile));
  const double values = double(gemm.rows_out) * double(gemm.cols) * work.experts;
  const double bytes = values * gemm.weight_bits / 8;
  const double flops = 2 * values * tiles_each * std::max(double(tile), kFullRate);
  const double waves =
      work.experts * tiles_each * std::ceil(double(gemm.rows_out) / kRowTile) / kMultiprocessors;
  const double full = std::max({bytes / kMemory, bytes * tiles_each / kCache, flops / kFlops});
  return full * std::ceil(waves) / waves;
}

}  // namespace switchyard::ops
