// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "switchyard/base/cuda_launch.h"
#include "switchyard/base/float_math.h"
#include "switchyard/ops/grouped_ffn/finalize_columns_sm90.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/ops/route/route_math.h"

namespace switchyard::ops {
namespace {

using namespace sm90;  // NOLINT(google-build-using-namespace): the kernels are part of it

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) write_rows_kernel(const DeviceFinalize a) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t choice = blockIdx.x, t = choice / a.top_k;
  const std::int32_t sorted = a.sorted_of[choice], id = a.ids[choice];
  const bool zero_expert = id >= a.experts && id < a.experts + a.zero_experts;
  if (sorted < 0 && !zero_expert) return;
  for (std::int64_t col = threadIdx.x * 4; col < a.hidden; col += 4 * kThreads) {
    const float4 v = zero_expert
                         ? token_columns(a, t, col)
                         : *reinterpret_cast<const float4*>(a.rows + sorted * a.rows_stride + col);
    const float row[4] = {v.x, v.y, v.z, v.w};
    store_columns(a, choice * a.hidden + col, a.hidden - col, row);
  }
}

/// One warp per token; the lanes' sums fold in halves, so a token's bits are its own.
__global__ void __launch_bounds__(32) shared_gate_kernel(const DeviceSharedGate a) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t t = blockIdx.x;
  float z = 0;
  if (a.gate)
    for (std::int64_t c = threadIdx.x; c < a.hidden; c += 32)
      z += element(a.dtype, a.x[t * a.x_stride + c]) * a.gate[c];
  for (int half = 16; half > 0; half /= 2) z += __shfl_down_sync(~0u, z, half);
  if (threadIdx.x != 0) return;
  a.ids[t] = 0;
  a.weights[t] = a.gate ? sigmoid_float(z) : 1.0f;
}

__global__ void __launch_bounds__(kThreads)
    skip_kernel(std::int32_t* sorted_of, std::int64_t count) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t i = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) sorted_of[i] = -1;
}

__global__ void __launch_bounds__(kThreads) round_kernel(const DeviceRounding a) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t i = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < a.count)
    static_cast<std::uint16_t*>(a.out)[i] = std::uint16_t(rounded(a.dtype, a.rows[i]));
}

__global__ void __launch_bounds__(kThreads) copy_kernel(const DeviceCopy a) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t row = blockIdx.x;
  for (std::int64_t c = threadIdx.x; c < a.cols; c += kThreads)
    a.to[row * a.stride + c] = a.from[row * a.cols + c];
}

/// One expert's row of one token.
__global__ void __launch_bounds__(kThreads) spread_kernel(const DeviceSpread a) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t at = blockIdx.x, expert = at / a.tokens, t = at % a.tokens;
  std::int64_t choice = -1;
  for (std::int64_t i = t * a.top_k; i < (t + 1) * a.top_k; ++i)
    if (a.ids[i] == expert) choice = i;
  const float weight = choice < 0 ? 0.0f : a.weights == nullptr ? 1.0f : a.weights[choice];
  if (threadIdx.x == 0) a.scales[at] = weight;
  if (choice < 0) return;
  const std::uint16_t* from = a.rows + choice * a.hidden;
  std::uint16_t* to = a.dense + at * a.hidden;
  for (std::int64_t c = threadIdx.x; c < a.hidden; c += kThreads) to[c] = from[c];
}

unsigned blocks_for(std::int64_t items) { return unsigned((items + kThreads - 1) / kThreads); }

}  // namespace

void skip_rows_cuda(std::int32_t* sorted_of, std::int64_t count, Stream stream) {
  launch_overlapped("skipping of rows: launch", skip_kernel,
                    {.blocks = blocks_for(count), .threads = kThreads}, stream, sorted_of, count);
}

void round_rows_cuda(const DeviceRounding& a, Stream stream) {
  if (a.count == 0) return;
  launch_overlapped("rounding of rows: launch", round_kernel,
                    {.blocks = blocks_for(a.count), .threads = kThreads}, stream, a);
}

void copy_rows_cuda(const DeviceCopy& a, Stream stream) {
  if (a.rows == 0) return;
  launch_overlapped("copy of rows: launch", copy_kernel,
                    {.blocks = unsigned(a.rows), .threads = kThreads}, stream, a);
}

void spread_rows_cuda(const DeviceSpread& a, Stream stream) {
  if (a.tokens == 0) return;
  launch_overlapped("rows by expert: launch", spread_kernel,
                    {.blocks = unsigned(a.experts * a.tokens), .threads = kThreads}, stream, a);
}

void write_rows_cuda(const DeviceFinalize& a, Stream stream) {
  launch_overlapped("unfinalised rows: launch", write_rows_kernel,
                    {.blocks = unsigned(a.tokens * a.top_k), .threads = kThreads}, stream, a);
}

void shared_gate_cuda(const DeviceSharedGate& a, Stream stream) {
  launch_overlapped("shared gate: launch", shared_gate_kernel,
                    {.blocks = unsigned(a.tokens), .threads = 32}, stream, a);
}

}  // namespace switchyard::ops
