// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_ffn/grouped_ffn.h"

namespace switchyard::ops {

/// What a call asks of a machine, for planners: expected values under even routing.
struct FfnWork {
  double experts = 0;    // distinct ones that get a row
  double rows_each = 0;  // of such an expert

  /// Of a call with at least one token.
  FfnWork(const FfnShape& shape, std::int64_t tokens);
};

/// One grouped GEMM of a call on tiles: out columns [experts][rows_out, cols].
struct GemmWork {
  std::int64_t rows_out = 0, cols = 0;
  double weight_bits = 16;
};

/// The time that a persistent kernel of sm_90 would need at best with tiles of `tile` tokens: the
/// larger of what memory, the second-level cache and the tensor cores need, times the waves that
/// the tiles really take over those that they would fill.
///
/// Units:   µs on the largest part; only ratios between tiles mean something.
double estimated_us(const FfnWork& work, const GemmWork& gemm, std::int64_t tile);

}  // namespace switchyard::ops
