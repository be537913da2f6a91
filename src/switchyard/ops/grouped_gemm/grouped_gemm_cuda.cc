// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"

#include <algorithm>

#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"

namespace switchyard::ops {

std::int64_t token_tile(std::int64_t max_tokens, std::int64_t max_rows, std::int64_t experts) {
  if (max_tokens <= 8) return 8;  // an expert's rows fit one tile
  // Rows of an expert scatter about their mean: past these most would take a second tile, and a
  // second pass over the weights.
  const std::int64_t mean = max_rows / std::max<std::int64_t>(1, experts);
  return mean <= 6 ? 16 : mean <= 20 ? 32 : mean <= 48 ? 64 : 128;
}

bool serves_prefill(const DeviceGemm& gemm) {
  const bool bf16 = gemm.layout.code == TileCode::kBf16 && gemm.x.planes == 1;
  return (bf16 || gemm.layout.code == TileCode::kE4m3Operand) && gemm.experts <= kPrefillExperts;
}

bool prefers_prefill(const DeviceGemm& gemm) {
  constexpr std::int64_t kFewestRows = 96;  // an expert's
  return serves_prefill(gemm) && gemm.max_rows >= kFewestRows * gemm.experts;
}

}  // namespace switchyard::ops
