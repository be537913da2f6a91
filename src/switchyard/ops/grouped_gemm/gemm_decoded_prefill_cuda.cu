// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/prefill_decoded_sm90.h"

namespace switchyard::ops {

using sm90::prefill::DecodedOperands;

bool gemm_activation_prefill_decoded_cuda(const DeviceGemm& gemm, const ActivationEnd& end,
                                          Stream stream) {
  const char* what = "grouped GEMM of FC1: launch";
  if (end.gated) {
    sm90::prefill::launch<DecodedOperands>(what, gemm, sm90::StoreActivated<true>{end}, stream);
  } else {
    sm90::prefill::launch<DecodedOperands>(what, gemm, sm90::StoreActivated<false>{end}, stream);
  }
  return end.rows == nullptr;
}

void gemm_rows_prefill_decoded_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream) {
  sm90::prefill::launch<DecodedOperands>("grouped GEMM of FC2: launch", gemm, sm90::StoreRows{end},
                                         stream);
}

}  // namespace switchyard::ops
