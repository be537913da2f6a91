// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/prefill_bf16_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_rows_sm90.h"

namespace switchyard::ops {
namespace {

using namespace sm90::prefill;  // NOLINT(google-build-using-namespace): the ends are part of it

struct StoreRows {
  RowsEnd end;

  template <int size>
  __device__ void store(float (&acc)[size], const Sums& sums, Board&) const {
    if (end.bias) add_row_bias(acc, end, sums);
    store_rows(acc, end, sums);
  }
};

}  // namespace

void gemm_rows_prefill_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream) {
  launch<Bf16Operands>("grouped GEMM of FC2: launch", gemm, StoreRows{end}, stream);
}

}  // namespace switchyard::ops
