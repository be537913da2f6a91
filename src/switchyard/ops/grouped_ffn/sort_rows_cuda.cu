// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/base/cuda_launch.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/grouped_gemm/sm90.h"

namespace switchyard::ops {
namespace {

/// Threads of a sorting block: few where there are few ids to read.
constexpr int kMostThreads = 512, kFewThreads = 128, kMostWarps = kMostThreads / 32;
constexpr std::int64_t kFewRows = 512;
/// Up to this many tokens the sorting block of an expert copies its rows too.
constexpr std::int64_t kGatherTokens = 64;
constexpr int kGatherWarps = 8;

__device__ int lane_of() { return threadIdx.x % 32; }

/// Eight columns of a row, 16 bytes.
__device__ uint4 load_group(const DeviceGather& g, const std::uint16_t* x, std::int64_t col,
                            bool aligned) {
  if (aligned && col + 8 <= g.hidden) return *reinterpret_cast<const uint4*>(x + col);
  std::uint32_t v[4];
  for (int i = 0; i < 4; ++i) {
    const std::int64_t c = col + 2 * i;
    v[i] = (c < g.hidden ? x[c] : 0u) | (c + 1 < g.hidden ? x[c + 1] : 0u) << 16;
  }
  return {v[0], v[1], v[2], v[3]};
}

__device__ std::uint32_t weigh_pair(std::uint32_t pair, float weight) {
  const float low = bf16_to_float(std::uint16_t(pair)), high = bf16_to_float(pair >> 16);
  return float_to_bf16(low * weight) | std::uint32_t(float_to_bf16(high * weight)) << 16;
}

/// One warp copies one sorted row.
__device__ void gather_row(const DeviceGather& g, std::int64_t top_k, std::int64_t row,
                           std::int32_t choice) {
  const std::uint16_t* x = g.x + choice / top_k * g.x_stride;
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  const std::int64_t groups = (g.hidden + kTileCols - 1) / kTileCols * 8;
#pragma unroll 4
  for (std::int64_t group = lane_of(); group < groups; group += 32) {
    uint4 v = load_group(g, x, group * 8, aligned);
    if (g.weights) {
      const float w = g.weights[choice];
      v = {weigh_pair(v.x, w), weigh_pair(v.y, w), weigh_pair(v.z, w), weigh_pair(v.w, w)};
    }
    *reinterpret_cast<uint4*>(g.out.at(row, group)) = v;
  }
}

/// What a block knows after counting all ids.
struct Counted {
  int first;      // sorted row of the expert's first
  int before[2];  // rows of the expert in front of this warp's ids, and all of them
};

/// Counts every id in shared memory (whole numbers: their order shows nowhere).
__device__ Counted count_ids(const DeviceSort& a, int expert, std::int64_t begin, std::int64_t end,
                             int* counts, int* own) {
  __shared__ int first;
  const int warp = threadIdx.x / 32, experts = int(a.experts);
  for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = 0;
  if (threadIdx.x == 0) first = 0;
  __syncthreads();
  int mine = 0;
  for (std::int64_t i = begin + lane_of(); i < end; i += 32) {
    const std::int32_t id = a.ids[i];
    mine += id == expert;
    if (id >= 0 && id < expert) atomicAdd(&counts[id], 1);
  }
  mine = __reduce_add_sync(~0u, mine);
  if (lane_of() == 0) own[warp] = mine;
  __syncthreads();
  int padded = 0;
  for (int e = threadIdx.x; e < expert; e += blockDim.x) padded += (counts[e] + 7) / 8 * 8;
  padded = __reduce_add_sync(~0u, padded);
  if (lane_of() == 0 && padded > 0) atomicAdd(&first, padded);
  Counted c{0, {0, 0}};
  for (int w = 0; w < int(blockDim.x) / 32; ++w) {
    if (w < warp) c.before[0] += own[w];
    c.before[1] += own[w];
  }
  __syncthreads();
  c.first = first;
  return c;
}

/// One block per expert, and one for what belongs to none: each reads all ids, so that no block
/// waits for another and the order is the stable one.
__global__ void __launch_bounds__(kMostThreads)
    sort_kernel(const DeviceSort a, const DeviceGather g, bool gathers) {
  extern __shared__ int counts[];
  __shared__ int own[kMostWarps];
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const int expert = blockIdx.x, experts = int(a.experts), warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  const std::int64_t rows = a.tokens * a.top_k;
  const std::int64_t share = ((rows + warps - 1) / warps + 31) / 32 * 32;
  const std::int64_t begin = min(share * warp, rows), end = min(begin + share, rows);
  const Counted c = count_ids(a, expert, begin, end, counts, own);
  if (threadIdx.x == 0) a.offsets[expert] = c.first;
  if (expert == experts) {
    for (std::int64_t i = begin + lane_of(); i < end; i += 32)
      if (a.ids[i] < 0 || a.ids[i] >= experts) a.sorted_of[i] = -1;
    return;
  }
  const int total = c.before[1];
  if (threadIdx.x == 0) a.counts[expert] = total;
  if (total == 0) return;
  int at = c.first + c.before[0];
  for (std::int64_t from = begin; from < end; from += 32) {
    const std::int64_t i = from + lane_of();
    const bool hit = i < end && a.ids[i] == expert;
    const unsigned hits = __ballot_sync(~0u, hit);
    if (hit) {
      const int row = at + __popc(hits & ((1u << lane_of()) - 1));
      a.source[row] = std::int32_t(i);
      a.sorted_of[i] = row;
    }
    at += __popc(hits);
  }
  const int last = c.first + total, padded = (last + 7) / 8 * 8;
  if (last + int(threadIdx.x) < padded) a.source[last + threadIdx.x] = -1;
  if (!gathers) return;
  __syncthreads();
  for (int row = c.first + warp; row < last; row += warps)
    gather_row(g, a.top_k, row, a.source[row]);
}

__global__ void __launch_bounds__(32 * kGatherWarps)
    gather_kernel(const DeviceSort a, const DeviceGather g) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t row = std::int64_t(blockIdx.x) * kGatherWarps + threadIdx.x / 32;
  if (row >= a.offsets[a.experts]) return;
  const std::int32_t choice = a.source[row];
  if (choice >= 0) gather_row(g, a.top_k, row, choice);
}

}  // namespace

void sort_and_gather_cuda(const DeviceSort& a, const DeviceGather& g, Stream stream) {
  const bool gathers = a.tokens <= kGatherTokens, few = a.tokens * a.top_k <= kFewRows;
  launch_overlapped("sorting of rows: launch", sort_kernel,
                    {.blocks = unsigned(a.experts + 1),
                     .threads = unsigned(few ? kFewThreads : kMostThreads),
                     .shared_bytes = std::size_t(a.experts) * sizeof(int)},
                    stream, a, g, gathers);
  if (gathers) return;
  launch_overlapped("gathering of rows: launch", gather_kernel,
                    {.blocks = unsigned((g.out.capacity + kGatherWarps - 1) / kGatherWarps),
                     .threads = 32 * kGatherWarps},
                    stream, a, g);
}

}  // namespace switchyard::ops
