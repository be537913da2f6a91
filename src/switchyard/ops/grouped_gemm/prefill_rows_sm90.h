// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_prefill_sm90.h"

/// FC2's end in the prefill tier. For .cu files only.
namespace switchyard::ops::sm90::prefill {

/// Exchanges between four lanes, `1 << bit` and twice that apart: lane i gets value i of each.
__device__ inline void transpose_four(float (&v)[4]) {
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

/// Adds the expert's bias to the columns below `hidden`.
template <int size>
__device__ void add_row_bias(float (&acc)[size], const RowsEnd& end, const Sums& sums) {
  const float* bias = reinterpret_cast<const float*>(end.bias + sums.expert * end.stride);
  const std::int64_t col = sums.row_tile * kTileRows + Sums::row();
  const float low = col < end.hidden ? bias[col] : 0;
  const float high = col + 8 < end.hidden ? bias[col + 8] : 0;
#pragma unroll
  for (int i = 0; i < size; ++i) acc[i] += i / 2 % 2 == 0 ? low : high;
}

/// Writes fp32 rows, 16 bytes a lane: 64 bytes of each of eight tokens a warp.
template <int size>
__device__ void store_rows(const float (&acc)[size], const RowsEnd& end, const Sums& sums) {
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

}  // namespace switchyard::ops::sm90::prefill
