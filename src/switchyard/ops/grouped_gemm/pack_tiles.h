// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/formats/matrix.h"
#include "switchyard/ops/grouped_gemm/pack_tiles_math.h"

namespace switchyard::ops {

/// All rows of `m`, where they lie.
StoredRows stored_rows(const formats::Matrix& m);

/// Errors:  UsageError unless the codes of `m` are of the kind that `code` packs.
void check_codes(const formats::Matrix& m, TileCode code);

}  // namespace switchyard::ops
