// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"
#include "switchyard/ops/grouped_gemm/mma_e4m3_sm90.h"
#include "switchyard/ops/grouped_gemm/sm90.h"

/// How sums of 128 columns of E4M3 become sums over all of K, the same way in every tier; for .cu
/// files only.
namespace switchyard::ops::sm90 {

/// The fp32 scales of one row tile, a column tile's pair in each lane of a warp. It knows the code,
/// so it divides by a constant.
class WeightScales {
 public:
  /// Of the tile's rows; `row_tile` past the last one reads that.
  __device__ WeightScales(const DeviceGemm& g, int expert, int row_tile)
      : count_(int((g.layout.cols + kCols - 1) / kCols)) {
    const std::int64_t row_tiles = g.layout.row_tiles();
    const std::byte* all = g.weights + expert * g.expert_stride +
                           row_tiles * count_ * tile_bytes(TileCode::kE4m3Operand);
    const std::int64_t row = min(row_tile, int(row_tiles) - 1);
    row_ = reinterpret_cast<const float2*>(all) + row * count_;
    next_ = load(0);
  }
  /// Those of column tile `t`; every tile in ascending order, by all lanes.
  __device__ float2 of(int t) {
    if (t % 32 == 0) {
      now_ = next_;
      next_ = load(t + 32);  // a chunk ahead: nothing waits for it
    }
    return make_float2(__shfl_sync(~0u, now_.x, t % 32), __shfl_sync(~0u, now_.y, t % 32));
  }

 private:
  static constexpr std::int64_t kCols = tile_cols(TileCode::kE4m3Operand);

  __device__ float2 load(int from) const {
    const int t = from + int(threadIdx.x % 32);
    return t < count_ ? row_[t] : make_float2(0, 0);
  }

  const float2* row_;
  int count_;
  float2 now_{}, next_{};
};

/// One tile of 128 columns; overwrites the sums.
template <int tokens>
__device__ void issue_e4m3(float (&part)[tokens / 2], std::uint64_t a, std::uint64_t b) {
  mma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step)  // 32 columns are 32 bytes further: 2 units of 16
    mma_e4m3<tokens>(part, a + 2 * step, b + 2 * step, step);
  mma_commit();
}

/// Two floats of shared memory, when this statement's turn comes: a plain load would be made early
/// and its registers kept.
__device__ inline float2 load_now(const float* at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(shared_address(at)));
  return v;
}

/// acc += part times both scales. Unpaired rows of weights share one, so the product is made once.
///
/// Shapes:  rows: of the tokens, in shared memory, or null for 1.
template <int tokens, bool paired>
__device__ void join_sums(const float (&part)[tokens / 2], float2 weights, const float* rows,
                          float (&acc)[tokens / 2]) {
#pragma unroll
  for (int i = 0; i < tokens / 2; i += 4) {
    float2 row = make_float2(1, 1);
    if (rows) row = load_now(rows + i * 2 + threadIdx.x % 4 * 2);
    const float x = weights.x * row.x, y = weights.x * row.y;
    acc[i] = __fmaf_rn(part[i], x, acc[i]);
    acc[i + 1] = __fmaf_rn(part[i + 1], y, acc[i + 1]);
    acc[i + 2] = __fmaf_rn(part[i + 2], paired ? weights.y * row.x : x, acc[i + 2]);
    acc[i + 3] = __fmaf_rn(part[i + 3], paired ? weights.y * row.y : y, acc[i + 3]);
  }
}

}  // namespace switchyard::ops::sm90
