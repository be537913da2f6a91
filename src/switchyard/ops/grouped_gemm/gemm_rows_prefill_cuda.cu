// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_prefill_sm90.h"

namespace switchyard::ops {
namespace {

using sm90::prefill::Board;
using sm90::prefill::Sums;

/// Exchanges between four lanes, `1 << bit` and twice that apart: lane i gets value i of each.
__device__ void transpose_four(float (&v)[4]) {
  const bool odd = Sums::lane() & 4, high = Sums::lane() & 8;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const float got = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 4);
    v[i] = odd ? got : v[i];
    v[i + 1] = odd ? v[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float got = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 8);
    v[i] = high ? got : v[i];
    v[i + 2] = high ? v[i + 2] : got;
  }
}

/// Writes fp32 rows, 16 bytes a lane: 64 bytes of each of eight tokens a warp.
struct StoreRows {
  RowsEnd end;

  template <int size>
  __device__ void add_bias(float (&acc)[size], const Sums& sums) const {
    const float* bias = reinterpret_cast<const float*>(end.bias + sums.expert * end.stride);
    const std::int64_t col = sums.row_tile * kTileRows + Sums::row();
    const float low = col < end.hidden ? bias[col] : 0;
    const float high = col + 8 < end.hidden ? bias[col + 8] : 0;
#pragma unroll
    for (int i = 0; i < size; ++i) acc[i] += i / 2 % 2 == 0 ? low : high;
  }

  template <int size>
  __device__ void store(float (&acc)[size], const Sums& sums, Board&) const {
    if (end.bias) add_bias(acc, sums);
    const int lane = Sums::lane(), i = lane / 4 % 4;
    const std::int64_t col =
        sums.row_tile * kTileRows + Sums::warp() * 16 + i / 2 * 8 + lane / 16 * 4;
    const int token = lane % 4 * 2 + i % 2;
    float* out = end.out + (sums.first + token) * end.out_stride + col;
#pragma unroll
    for (int j = 0; j < size / 4; ++j) {
      if (j * 8 >= sums.tokens) return;
      float v[4] = {acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]};
      transpose_four(v);
      if (j * 8 + token < sums.tokens && col < end.hidden)  // rows are padded to whole quads
        *reinterpret_cast<float4*>(out + j * 8 * end.out_stride) = {v[0], v[1], v[2], v[3]};
    }
  }
};

}  // namespace

void gemm_rows_prefill_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream) {
  sm90::prefill::launch("grouped GEMM of FC2: launch", gemm, StoreRows{end}, stream);
}

}  // namespace switchyard::ops
