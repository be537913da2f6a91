// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/activation/activation_rows_impl.h"

namespace switchyard::ops {

void activation_avx2(const ActivationArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  run_activation(args, row_begin, row_end);
}

}  // namespace switchyard::ops
