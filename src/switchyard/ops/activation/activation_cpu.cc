// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/activation/activation.h"
#include "switchyard/ops/activation/activation_rows_impl.h"

namespace switchyard::ops {

void activation_cpu(const ActivationArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  run_activation(args, row_begin, row_end);
}

ActivationRows activation_twin(CpuIsa isa) {
  if (isa >= CpuIsa::kAvx512) return activation_avx512;
  return isa >= CpuIsa::kAvx2 ? activation_avx2 : activation_cpu;
}

}  // namespace switchyard::ops
