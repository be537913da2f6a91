// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace switchyard {

/// How a layer ends whose ranks hold the same tokens (tep, ttp).
enum class Ending : std::uint8_t {
  kPlain,   // the sum of the ranks' shares
  kFused,   // pattern 7: finalize, all-reduce, residual and norm in one call
  kReduce,  // pattern 6: the same of all held experts' rows, for few tokens
};
/// "plain", "fused" or "reduce".
std::string_view to_string(Ending e);
/// Inverse of to_string(). Errors: UsageError on any other word.
Ending to_ending(std::string_view s);

/// What stands behind a layer in the model: residual and norm. All ranks pass the same residual.
///
/// Shapes:  residual_in, residual_out, norm_out [tokens, H] dense, rms_gamma [H], of the layer's
///          dtype; one of the outputs may be null.
struct BehindLayer {
  const void* residual_in = nullptr;
  const void* rms_gamma = nullptr;
  float rms_eps = 1e-6f, weight_bias = 0;
  void* residual_out = nullptr;
  void* norm_out = nullptr;
};

/// Experts' rows on the rank that ran them, in front of their sum.
///
/// Shapes:  rows [tokens * choices, width] in the layer's dtype (fp32 of a latent layer), rounded
///          once; weights, index [tokens, choices]: a choice's row, or -1 where it adds nothing;
///          sum [tokens, width], to be written: what finalize makes of them, without the factor.
struct DispatchedRows {
  std::int64_t tokens = 0, choices = 0, width = 0;
  const void* rows = nullptr;
  const float* weights = nullptr;
  const std::int32_t* index = nullptr;
  float* sum = nullptr;
};

/// A caller's own finalize, which stands in front of the combine: its sums are what travels.
struct FinalizeRows {
  void* context = nullptr;
  void (*run)(void* context, const DispatchedRows& rows) = nullptr;
};

}  // namespace switchyard
