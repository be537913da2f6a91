// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/prefill_e4m3_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_rows_sm90.h"

namespace switchyard::ops {
namespace {

using namespace sm90::prefill;  // NOLINT(google-build-using-namespace): the ends are part of it

struct StoreScaledRows {
  static constexpr bool kPaired = false;
  static constexpr int kStep = 16;
  RowsEnd end;

  template <int size>
  __device__ void store(float (&acc)[2][size], int tiles, const Sums& first,
                        E4m3Operands::Scratch&) const {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      if (t >= tiles) return;
      const Sums sums = tile_of(first, t);
      scale_sums(acc[t], end.scales, end.stride, sums);
      if (end.bias) add_row_bias(acc[t], end, sums);
      store_rows(acc[t], end, sums);
    }
  }
};

}  // namespace

void gemm_rows_prefill_e4m3_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream) {
  launch<E4m3Operands>("grouped GEMM of FC2: launch", gemm, StoreScaledRows{end}, stream);
}

}  // namespace switchyard::ops
