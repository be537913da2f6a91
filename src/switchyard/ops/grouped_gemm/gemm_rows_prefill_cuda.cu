// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/prefill_rows_sm90.h"

namespace switchyard::ops {

void gemm_rows_prefill_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream) {
  using sm90::prefill::Bf16Operands, sm90::prefill::StoreRows;
  sm90::prefill::launch<Bf16Operands<StoreRows>>("grouped GEMM of FC2: launch", gemm,
                                                 StoreRows{end}, stream);
}

}  // namespace switchyard::ops
