// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/ops/quantize/quantize.h"
#include "switchyard/ops/quantize/quantize_rows_impl.h"

namespace switchyard::ops {

void quantize_row_cpu(const QuantizeRowArgs& args, CpuIsa isa) {
  args.check();
  ensure(args.cols == 0 || args.values != nullptr, "quantize_row_cpu: no place for the values");
  ensure(args.row_scale != nullptr, "quantize_row_cpu: no place for the row's scale");
  const bool per_block =
      args.kind == ActivationQuant::kFp8Block128 || args.kind == ActivationQuant::kFp8Block128Ue8m0;
  ensure(args.cols == 0 || !per_block || args.block_scales != nullptr,
         "quantize_row_cpu: no place for the block scales");
  ensure(args.kind != ActivationQuant::kF32, "quantize_row_cpu: f32 activations are not quantised");
  if (isa >= CpuIsa::kAvx512) return quantize_row_avx512(args);
  run_quantize(args);
}

}  // namespace switchyard::ops
