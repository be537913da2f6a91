// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_launch_sm90.h"

namespace switchyard::ops {
namespace {

/// Writes fp32 rows, 16 bytes a thread.
struct StoreRows {
  RowsEnd end;

  __device__ void store(const sm90::Board& board, const sm90::Part& part) const {
    const float* bias =
        end.bias ? reinterpret_cast<const float*>(end.bias + part.tile.expert * end.bias_stride)
                 : nullptr;
    constexpr int kQuads = int(kTileRows) / 4;
    const int quad = threadIdx.x % kQuads;
    const std::int64_t col = part.row_tile * kTileRows + quad * 4;
    if (col >= end.hidden) return;
    for (int token = threadIdx.x % 128 / kQuads; token < part.tokens(); token += 128 / kQuads) {
      float4 v = board.four(token, quad * 4);
      float* out = end.out + part.row(token) * end.out_stride + col;
      if (bias) {
        v.x += bias[col];
        if (col + 1 < end.hidden) v.y += bias[col + 1];
        if (col + 2 < end.hidden) v.z += bias[col + 2];
        if (col + 3 < end.hidden) v.w += bias[col + 3];
      }
      *reinterpret_cast<float4*>(out) = v;  // rows are padded to whole quads
    }
  }
};

}  // namespace

void gemm_rows_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream, std::int64_t tile) {
  sm90::launch_gemm("grouped GEMM of FC2: launch", gemm, StoreRows{end}, stream, tile);
}

}  // namespace switchyard::ops
