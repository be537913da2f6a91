// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"

#include <algorithm>

namespace switchyard::ops {

std::int64_t token_tile(std::int64_t max_tokens, std::int64_t max_rows, std::int64_t experts) {
  // Up to 64 tokens an expert's rows fit one tile, so its weights are read once.
  for (std::int64_t tile : {8, 64})
    if (max_tokens <= tile) return tile;
  const std::int64_t mean = max_rows / std::max<std::int64_t>(1, experts);
  return mean <= 48 ? 64 : 128;
}

}  // namespace switchyard::ops
