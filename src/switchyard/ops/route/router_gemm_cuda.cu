// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/cuda_launch.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/ops/route/router_gemm.h"

namespace switchyard::ops {
namespace {

/// A block computes a square of logits over slices of K that it holds in shared memory.
constexpr int kSide = 32, kSlice = 32, kThreads = 256;
constexpr int kRowsPerThread = kSide * kSide / kThreads;

__device__ float load_x(const RouterGemmArgs& a, std::int64_t row, std::int64_t col) {
  const std::int64_t at = row * a.x_stride + col;
  if (a.dtype == Dtype::kF32) return static_cast<const float*>(a.x)[at];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(a.x)[at];
  return a.dtype == Dtype::kBf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

__global__ void __launch_bounds__(kThreads) router_gemm_kernel(const RouterGemmArgs a) {
  __shared__ float x[kSide][kSlice + 1], w[kSide][kSlice + 1];
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t row0 = std::int64_t(blockIdx.x) * kSide;
  const std::int64_t expert0 = std::int64_t(blockIdx.y) * kSide;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum[kRowsPerThread] = {};
  for (std::int64_t k = 0; k < a.hidden; k += kSlice) {
    const bool in = k + lane < a.hidden;
    for (int i = warp; i < kSide; i += kThreads / 32) {
      x[i][lane] = in && row0 + i < a.logits.rows ? load_x(a, row0 + i, k + lane) : 0.0f;
      w[i][lane] =
          in && expert0 + i < a.logits.cols ? a.weight[(expert0 + i) * a.hidden + k + lane] : 0.0f;
    }
    __syncthreads();
    for (int c = 0; c < kSlice && k + c < a.hidden; ++c)
#pragma unroll
      for (int i = 0; i < kRowsPerThread; ++i)
        sum[i] += x[warp * kRowsPerThread + i][c] * w[lane][c];
    __syncthreads();
  }
  const std::int64_t expert = expert0 + lane;
  if (expert >= a.logits.cols) return;
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const std::int64_t row = row0 + warp * kRowsPerThread + i;
    if (row < a.logits.rows) a.logits.row(row)[expert] = a.bias ? sum[i] + a.bias[expert] : sum[i];
  }
}

}  // namespace

void router_gemm_cuda(const RouterGemmArgs& args, Stream stream) {
  args.check();
  if (args.logits.rows == 0) return;
  launch_overlapped("router GEMM: launch", router_gemm_kernel,
                    {.blocks = unsigned((args.logits.rows + kSide - 1) / kSide),
                     .blocks_y = unsigned((args.logits.cols + kSide - 1) / kSide),
                     .threads = kThreads},
                    stream, args);
}

}  // namespace switchyard::ops
