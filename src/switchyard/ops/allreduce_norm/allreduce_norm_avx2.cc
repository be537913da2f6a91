// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/allreduce_norm/allreduce_norm_rows_impl.h"

namespace switchyard::ops {

const RowKernels kRowKernelsAvx2 = make_row_kernels();

}  // namespace switchyard::ops
