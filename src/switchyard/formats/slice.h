// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/formats/matrix.h"

namespace switchyard::formats {

/// Rows [begin, begin + size) of `m`; codes are borrowed from it or from what it borrows.
///
/// Errors:  UsageError when the cut falls inside a scale block (a multiple of block_rows is
/// needed),
///          InternalError outside the matrix.
Matrix slice_rows(const Matrix& m, std::int64_t begin, std::int64_t size);

/// Columns [begin, begin + size) of `m`, copied into storage of its own.
///
/// Errors:  UsageError when the cut falls inside a scale block or a byte, InternalError outside.
Matrix slice_cols(const Matrix& m, std::int64_t begin, std::int64_t size);

}  // namespace switchyard::formats
