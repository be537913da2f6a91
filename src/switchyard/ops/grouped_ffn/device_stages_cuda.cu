// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "switchyard/base/cuda_launch.h"
#include "switchyard/base/float_math.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/ops/route/route_math.h"

namespace switchyard::ops {
namespace {

constexpr int kThreads = 256;

/// Four columns of one token.
struct Columns {
  float v[4] = {0, 0, 0, 0};

  __device__ void add(float weight, const float4& row) {
    v[0] += weight * row.x, v[1] += weight * row.y, v[2] += weight * row.z, v[3] += weight * row.w;
  }
  __device__ void scale(float factor) {
    for (float& x : v) x *= factor;
  }
};

__device__ float element(Dtype dtype, std::uint16_t bits) {
  return dtype == Dtype::kFp16 ? fp16_to_float(bits) : bf16_to_float(bits);
}

__device__ std::uint32_t rounded(Dtype dtype, float v) {
  return dtype == Dtype::kFp16 ? float_to_fp16(v) : float_to_bf16(v);
}

__device__ float4 token_columns(const DeviceFinalize& a, std::int64_t t, std::int64_t col) {
  float v[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4; ++i)
    if (col + i < a.hidden) v[i] = element(a.x_dtype, a.x[t * a.x_stride + col + i]);
  return {v[0], v[1], v[2], v[3]};
}

__device__ void store_columns(const DeviceFinalize& a, std::int64_t at, std::int64_t valid,
                              const float* v) {
  if (a.out_dtype == Dtype::kF32) {
    for (int i = 0; i < 4; ++i)
      if (i < valid) static_cast<float*>(a.out)[at + i] = v[i];
    return;
  }
  auto* out = static_cast<std::uint16_t*>(a.out) + at;
  const bool whole = valid >= 4 && reinterpret_cast<std::uintptr_t>(out) % 8 == 0;
  if (whole) {
    const std::uint32_t low = rounded(a.out_dtype, v[0]) | rounded(a.out_dtype, v[1]) << 16;
    const std::uint32_t high = rounded(a.out_dtype, v[2]) | rounded(a.out_dtype, v[3]) << 16;
    *reinterpret_cast<uint2*>(out) = make_uint2(low, high);
    return;
  }
  for (int i = 0; i < 4; ++i)
    if (i < valid) out[i] = std::uint16_t(rounded(a.out_dtype, v[i]));
}

/// Loads of up to this many choices are in flight before the first is added.
constexpr int kAhead = 8;

/// Some choices of a token.
struct Choices {
  std::int32_t sorted[kAhead];
  float weight[kAhead];
  bool used[kAhead];

  /// From choice `from` on. What is read stands since the rows were sorted, two launches ago or
  /// more, which may be later than what this multiprocessor's own cache knows.
  __device__ Choices(const DeviceFinalize& a, std::int64_t t, int from) {
    const int top_k = int(a.top_k);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      used[i] = false;
      if (from + i >= top_k) continue;
      const std::int64_t choice = t * top_k + from + i;
      sorted[i] = __ldcg(a.sorted_of + choice);
      const std::int32_t id = __ldcg(a.ids + choice);
      weight[i] = __ldcg(a.weights + choice);
      if (a.weight_on_input && sorted[i] >= 0) weight[i] = 1;
      used[i] = sorted[i] >= 0 || (id >= a.experts && id < a.experts + a.zero_experts);
    }
  }
};

__global__ void __launch_bounds__(kThreads)
    finalize_kernel(const __grid_constant__ DeviceFinalize a, int chunks) {
  const std::int64_t t = blockIdx.x / chunks;
  const std::int64_t col = ((blockIdx.x % chunks) * std::int64_t(blockDim.x) + threadIdx.x) * 4;
  const int top_k = int(a.top_k), scaled = int(a.top_k - a.unscaled_choices);
  if (!a.sorted_early) sm90::wait_for_previous_launch();
  Choices choices(a, t, 0);
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  if (col >= a.hidden) return;
  Columns sum;
  for (int from = 0; from < top_k; from += kAhead) {
    if (from > 0) choices = Choices(a, t, from);
    float4 row[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (!choices.used[i]) continue;
      const std::int64_t sorted = choices.sorted[i];
      row[i] = sorted >= 0 ? *reinterpret_cast<const float4*>(a.rows + sorted * a.rows_stride + col)
                           : token_columns(a, t, col);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (from + i >= top_k) continue;
      if (from + i == scaled) sum.scale(a.factor);
      if (choices.used[i]) sum.add(choices.weight[i], row[i]);
    }
  }
  if (a.unscaled_choices == 0) sum.scale(a.factor);
  if (a.addend)
    for (int i = 0; i < 4; ++i)
      if (col + i < a.hidden) sum.v[i] += a.addend[t * a.hidden + col + i];
  store_columns(a, t * a.out_stride + col, a.hidden - col, sum.v);
}

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

void finalize_cuda(const DeviceFinalize& a, Stream stream) {
  const std::int64_t quads = (a.hidden + 3) / 4;
  const std::int64_t threads = std::min<std::int64_t>(kThreads, (quads + 31) / 32 * 32);
  const std::int64_t chunks = (quads + threads - 1) / threads;
  launch_overlapped("finalize: launch", finalize_kernel,
                    {.blocks = unsigned(a.tokens * chunks), .threads = unsigned(threads)}, stream,
                    a, int(chunks));
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
