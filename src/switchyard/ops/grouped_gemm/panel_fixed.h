// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/formats/matrix.h"
#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {

/// Input rows as integers: each block of columns is a vector of integers times a power of two, split
/// into signed bytes ("digits" to the base 256), which byte dot products multiply with E2M1 codes
/// exactly.
///
/// A block whose values span too many binades for its digits, or that holds NaN, infinity or values
/// under 2^-100, is marked wide: the kernel reads its bf16 pairs instead. So no value is ever
/// rounded. Which blocks are wide is a function of the row alone.
/// Shapes:  a row is one record per block: FixedHeader, then `digits` planes of `cols` bytes, lowest
///          digit first; in a plane, columns are ordered as fixed_column() says.
struct FixedForm {
  int cols = 32;   // columns of a block: the weights' cut, at most 32
  int digits = 3;  // 2 or 3: integers below 2^14 or 2^22

  std::int64_t record_bytes() const { return 16 + std::int64_t(cols) * digits; }
  std::int64_t row_bytes(std::int64_t padded_cols) const {
    return padded_cols / cols * record_bytes();
  }
};

/// What precedes the digits of a block.
struct FixedHeader {
  std::int32_t offset;  // -12 times the sum of the integers: weights are stored as 2w + 12
  float unit;           // what an integer times 2w is worth
  std::int32_t wide;    // non-zero: read the pairs
  std::int32_t unused;
};
static_assert(sizeof(FixedHeader) == 16, "record_bytes() counts it");

/// The column, within 8, whose digit lies at byte i of 8: the order in which the nibbles of an E2M1
/// panel unpack into bytes.
constexpr int fixed_column(int i) { return i / 4 * 2 + i % 4 / 2 + i % 2 * 4; }

/// The form that `quant` activations take in front of E2M1 weights in `layout`. Two digits hold
/// every block of 16 E2M1 values times one E4M3 scale; three hold every E4M3 value.
FixedForm fixed_form(const PanelLayout& layout, formats::ActivationQuant quant);

/// The FixRow of AVX-512; call it only where the environment has that tier.
void fix_row_avx512(const FixedForm& form, const std::uint16_t* pairs, std::int64_t padded_cols,
                    std::byte* row);
/// The AVX-512 panel GEMM on fixed rows: `args.x.fixed` is set and the weights are E2M1.
void panel_gemm_fixed_avx512(const PanelGemmArgs& args);

}  // namespace switchyard::ops
