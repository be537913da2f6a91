// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "switchyard/base/cuda_launch.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/ops/route/router_gemm.h"

namespace switchyard::ops {
namespace {

// Every kernel adds a logit in one order, so that a row has the same bits in every batch: within
// each of kChunks pieces of K by ascending column, then the pieces.
constexpr int kChunks = 16, kSlice = 32;
constexpr int kFewRows = 8, kMostFewRows = 64;
constexpr int kColumns = 64, kThreads = 256;  // of a tile

/// Columns of a piece, whole slices.
__host__ __device__ std::int64_t chunk_columns(std::int64_t hidden) {
  const std::int64_t even = (hidden + kChunks - 1) / kChunks;
  return (even + kSlice - 1) / kSlice * kSlice;
}

__device__ float load_x(const RouterGemmArgs& a, std::int64_t at) {
  if (a.dtype == Dtype::kF32) return static_cast<const float*>(a.x)[at];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(a.x)[at];
  return a.dtype == Dtype::kBf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

/// Four columns from `at` on; those past `valid` are 0.
__device__ float4 load_x4(const RouterGemmArgs& a, std::int64_t at, std::int64_t valid,
                          bool aligned) {
  if (aligned && valid >= 4) {
    if (a.dtype == Dtype::kF32)
      return *reinterpret_cast<const float4*>(static_cast<const float*>(a.x) + at);
    if (a.dtype == Dtype::kBf16) {
      const uint2 v = *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(a.x) + at);
      return {bf16_to_float(std::uint16_t(v.x)), bf16_to_float(std::uint16_t(v.x >> 16)),
              bf16_to_float(std::uint16_t(v.y)), bf16_to_float(std::uint16_t(v.y >> 16))};
    }
  }
  float v[4];
  for (int i = 0; i < 4; ++i) v[i] = i < valid ? load_x(a, at + i) : 0.0f;
  return {v[0], v[1], v[2], v[3]};
}

__device__ float4 load_w4(const float* w, std::int64_t valid, bool aligned) {
  if (aligned && valid >= 4) return *reinterpret_cast<const float4*>(w);
  float v[4];
  for (int i = 0; i < 4; ++i) v[i] = i < valid ? w[i] : 0.0f;
  return {v[0], v[1], v[2], v[3]};
}

__device__ void add_products(float& sum, const float4& x, const float4& w) {
  sum += x.x * w.x;
  sum += x.y * w.y;
  sum += x.z * w.z;
  sum += x.w * w.w;
}

__device__ float finish(const RouterGemmArgs& a, float sum, float squares, std::int64_t expert) {
  // The norm is one factor per row, so it may follow the products.
  const float z = a.norm_eps > 0 ? sum / sqrtf(squares / float(a.hidden) + a.norm_eps) : sum;
  return a.bias ? z + a.bias[expert] : z;
}

/// The pieces of the 16 lanes from `first` on, in their order, for all lanes.
__device__ float add_chunks(float mine, int first) {
  float total = 0;
  for (int c = 0; c < kChunks; ++c) total += __shfl_sync(~0u, mine, first + c);
  return total;
}

/// Few rows: a warp takes one row and two experts, a lane one piece of one product. Enough loads
/// are in flight without shared memory.
__global__ void __launch_bounds__(32 * kFewRows)
    router_rows_kernel(const RouterGemmArgs a, bool aligned) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const int lane = threadIdx.x % 32, chunk = lane % kChunks;
  const std::int64_t row = std::int64_t(blockIdx.y) * kFewRows + threadIdx.x / 32;
  const std::int64_t expert = std::int64_t(blockIdx.x) * 2 + lane / kChunks;
  if (row >= a.logits.rows) return;  // the whole warp
  const std::int64_t columns = chunk_columns(a.hidden);
  const std::int64_t begin = chunk * columns, end = min(begin + columns, a.hidden);
  const float* w = a.weight + min(expert, a.logits.cols - 1) * a.hidden;
  const std::int64_t x = row * a.x_stride;
  float sum = 0, squares = 0;
#pragma unroll 8
  for (std::int64_t k = begin; k < end; k += 4) {
    const float4 xs = load_x4(a, x + k, a.hidden - k, aligned);
    const float4 ws = load_w4(w + k, a.hidden - k, aligned);
    add_products(sum, xs, ws);
    add_products(squares, xs, xs);
  }
  const float total = add_chunks(sum, lane / kChunks * kChunks);
  const float norm = add_chunks(squares, 0);
  if (chunk == 0 && expert < a.logits.cols)
    a.logits.row(row)[expert] = finish(a, total, norm, expert);
}

/// Many rows: a block computes kRows x kColumns logits over slices of K in shared memory, a thread
/// kRows / 16 x 4 of them.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    router_tile_kernel(const RouterGemmArgs a, bool aligned) {
  constexpr int kMine = kRows / 16;
  __shared__ __align__(16) float x[kSlice][kRows + 4], w[kSlice][kColumns + 4];
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t row0 = std::int64_t(blockIdx.x) * kRows;
  const std::int64_t expert0 = std::int64_t(blockIdx.y) * kColumns;
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const int quad = threadIdx.x % 8 * 4, line = threadIdx.x / 8;  // of a load
  const std::int64_t columns = chunk_columns(a.hidden);
  float sum[kMine][4] = {}, total[kMine][4] = {}, square[kMine] = {}, squares[kMine] = {};
  for (std::int64_t k = 0; k < a.hidden; k += kSlice) {
    if (k > 0 && k % columns == 0) {
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        squares[i] += square[i], square[i] = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) total[i][j] += sum[i][j], sum[i][j] = 0;
      }
    }
    const std::int64_t valid = a.hidden - k - quad;
    for (int r = line; r < kRows; r += 32) {
      const bool in = row0 + r < a.logits.rows && valid > 0;
      const float4 v =
          in ? load_x4(a, (row0 + r) * a.x_stride + k + quad, valid, aligned) : float4{0, 0, 0, 0};
      x[quad][r] = v.x, x[quad + 1][r] = v.y, x[quad + 2][r] = v.z, x[quad + 3][r] = v.w;
    }
    for (int e = line; e < kColumns; e += 32) {
      const bool in = expert0 + e < a.logits.cols && valid > 0;
      const float4 v = in ? load_w4(a.weight + (expert0 + e) * a.hidden + k + quad, valid, aligned)
                          : float4{0, 0, 0, 0};
      w[quad][e] = v.x, w[quad + 1][e] = v.y, w[quad + 2][e] = v.z, w[quad + 3][e] = v.w;
    }
    __syncthreads();
#pragma unroll 8
    for (int c = 0; c < kSlice; ++c) {
      const float4 ws = *reinterpret_cast<const float4*>(&w[c][4 * tx]);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const float v = x[c][ty * kMine + i];
        sum[i][0] += v * ws.x;
        sum[i][1] += v * ws.y;
        sum[i][2] += v * ws.z;
        sum[i][3] += v * ws.w;
        square[i] += v * v;
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const std::int64_t row = row0 + ty * kMine + i;
    if (row >= a.logits.rows) return;
    for (int j = 0; j < 4; ++j) {
      const std::int64_t expert = expert0 + 4 * tx + j;
      if (expert < a.logits.cols)
        a.logits.row(row)[expert] =
            finish(a, total[i][j] + sum[i][j], squares[i] + square[i], expert);
    }
  }
}

template <int rows>
void launch_tiles(const RouterGemmArgs& a, bool aligned, Stream stream) {
  launch_overlapped("router GEMM: launch", router_tile_kernel<rows>,
                    {.blocks = unsigned((a.logits.rows + rows - 1) / rows),
                     .blocks_y = unsigned((a.logits.cols + kColumns - 1) / kColumns),
                     .threads = kThreads},
                    stream, a, aligned);
}

}  // namespace

void router_gemm_cuda(const RouterGemmArgs& a, Stream stream) {
  a.check();
  if (a.logits.rows == 0) return;
  const bool aligned = a.hidden % 4 == 0 && a.x_stride % 4 == 0 &&
                       reinterpret_cast<std::uintptr_t>(a.x) % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(a.weight) % 16 == 0;
  if (a.logits.rows > 1024) return launch_tiles<64>(a, aligned, stream);
  if (a.logits.rows > kMostFewRows) return launch_tiles<16>(a, aligned, stream);
  const std::int64_t rows = std::min<std::int64_t>(a.logits.rows, kFewRows);
  launch_overlapped("router GEMM: launch", router_rows_kernel,
                    {.blocks = unsigned((a.logits.cols + 1) / 2),
                     .blocks_y = unsigned((a.logits.rows + kFewRows - 1) / kFewRows),
                     .threads = unsigned(32 * rows)},
                    stream, a, aligned);
}

}  // namespace switchyard::ops
