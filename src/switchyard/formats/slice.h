// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/formats/matrix.h"

namespace switchyard::formats {

// A slice keeps every weight's value: its scales lie on the whole matrix's grid. Where the slice
// begins inside a scale block, the grid is refined to the largest block that has boundaries both
// there and on the whole grid, and scales are repeated: 128 columns from column 96 on become 32.

/// The layout of a slice that begins at row `begin` of a matrix stored as `layout`.
WeightLayout layout_from_row(WeightLayout layout, std::int64_t begin);
/// The layout of a slice that begins at column `begin` of a matrix stored as `layout`.
WeightLayout layout_from_col(WeightLayout layout, std::int64_t begin);

/// Rows [begin, begin + size) of `m` in layout_from_row(); codes are borrowed from it or from what
/// it borrows, repeated scales lie in storage of their own. `size` may be 0.
///
/// Errors:  InternalError outside the matrix.
Matrix slice_rows(const Matrix& m, std::int64_t begin, std::int64_t size);

/// Columns [begin, begin + size) of `m` in layout_from_col(), copied into storage of its own.
/// `size` may be 0.
///
/// Errors:  UsageError when the cut falls inside a byte, InternalError outside the matrix.
Matrix slice_cols(const Matrix& m, std::int64_t begin, std::int64_t size);

}  // namespace switchyard::formats
