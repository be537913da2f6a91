// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/formats/matrix.h"
#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {

/// Input rows as integers: each block of columns is a vector of integers times a power of two,
/// split into signed bytes ("digits" to the base 256), which byte dot products multiply with E2M1
/// codes exactly.
///
/// A quad (8 columns) with a value that is no such integer - too small beside the block's largest,
/// NaN, infinite, or in a block below 2^-100 - has only zero digits and is listed behind the
/// records: the kernel adds it from the bf16 pairs, after all blocks, in order. So no value is ever
/// rounded, and which quads are listed is a function of the row alone.
/// Shapes:  a row is one record per block, then the list: a count and that many quad numbers,
///          32 bits each. A record is a FixedHeader, then `digits` planes of `cols` bytes, lowest
///          digit first; in a plane, columns are ordered as fixed_column() says.
struct FixedForm {
  int cols = 32;   // columns of a block: the weights' cut, at most 32
  int digits = 3;  // 2 or 3: integers below 2^14 or 2^22

  std::int64_t record_bytes() const { return 8 + std::int64_t(cols) * digits; }
  /// Where the list lies in a row.
  std::int64_t list_offset(std::int64_t padded_cols) const {
    return padded_cols / cols * record_bytes();
  }
  /// An odd number of cache lines: rows that are read together then fall into distinct sets.
  std::int64_t row_bytes(std::int64_t padded_cols) const {
    return (list_offset(padded_cols) + 4 * (1 + padded_cols / 8) + 63) / 64 / 2 * 128 + 64;
  }
};

/// What precedes the digits of a block.
struct FixedHeader {
  std::int32_t offset;  // -12 times the sum of the integers: weights are multiplied as 2w + 12
  float unit;           // what an integer times 2w is worth
};
static_assert(sizeof(FixedHeader) == 8, "record_bytes() counts it");

/// The column, within 8, whose digit lies at byte i of 8: the order in which the nibbles of an E2M1
/// panel unpack into bytes.
constexpr int fixed_column(int i) { return i / 4 * 2 + i % 4 / 2 + i % 2 * 4; }

/// The form that `quant` activations take in front of E2M1 weights in `layout`. Two digits hold
/// every block of E2M1 values times one E4M3 scale, and E4M3 values within 2^10 of the largest;
/// bf16 values take three, which reach as far as 2^14.
FixedForm fixed_form(const PanelLayout& layout, formats::ActivationQuant quant);

/// The FixRow of AVX-512; call it only where the environment has that tier.
void fix_row_avx512(const FixedForm& form, const std::uint16_t* pairs, std::int64_t padded_cols,
                    std::byte* row);
/// The AVX-512 panel GEMM on fixed rows: `args.x.fixed` is set and the weights are E2M1.
void panel_gemm_fixed_avx512(const PanelGemmArgs& args);

}  // namespace switchyard::ops
