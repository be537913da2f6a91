// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/quantize/quantize_rows_impl.h"

namespace switchyard::ops {

void quantize_row_avx512(const QuantizeRowArgs& args) { run_quantize(args); }

}  // namespace switchyard::ops
