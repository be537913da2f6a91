// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "switchyard/base/dtype.h"
#include "switchyard/core/problem.h"

namespace switchyard::comm {

/// How a row of expert output travels in the combine. Every form rounds each value once.
enum class Wire : std::uint8_t {
  kF32,    // as it is
  kBf16,   // rounded to bf16
  kFp16,   // rounded to fp16
  kFp8,    // E4M3 with one fp32 scale per 128 values, max(amax, 1e-4) / 448
  kNvfp4,  // E2M1, one E4M3 scale per 16 values, g = 2688 / amax of the row beside it
};

/// "f32", "bf16", "fp16", "fp8" or "nvfp4".
std::string_view to_string(Wire w);
/// The form that a layer's combine precision means for hidden states of `dtype`.
Wire to_wire(CombinePrecision precision, Dtype dtype);

/// Units: bytes of one row of `hidden` values.
std::int64_t wire_bytes(Wire w, std::int64_t hidden);

/// Rounds one row into its wire form; allocates nothing.
///
/// Shapes:  x [hidden]; out [wire_bytes()], 16-byte aligned; hidden is even for kNvfp4.
/// NaN:     kFp8: its block becomes NaN. kNvfp4: its block of 16 becomes NaN; an infinity makes the
///          row NaN.
void encode_row(Wire w, const float* x, std::int64_t hidden, std::byte* out);

/// acc[i] += weight * row[i] in fp32, product and sum rounded each; weight 1 adds the row itself.
///
/// Shapes:  row as encode_row() wrote it; acc [hidden].
void add_row(Wire w, const std::byte* row, float weight, std::int64_t hidden, float* acc);

}  // namespace switchyard::comm
