// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/base/cuda_launch.h"
#include "switchyard/ops/grouped_ffn/arrange_rows_cuda.h"
#include "switchyard/ops/grouped_ffn/quantize_row_sm90.h"
#include "switchyard/ops/grouped_gemm/sm90.h"

namespace switchyard::ops {
namespace {

/// Threads of a sorting block.
constexpr int kMostThreads = 512, kMostWarps = kMostThreads / 32;
constexpr int kGatherWarps = 8;

using sm90::lane_of;

/// Neighbouring ids that one lane looks at.
constexpr int kIdsOfLane = 4;
constexpr std::int64_t kIdsOfWarp = 32 * kIdsOfLane;
/// Loads of up to this many are in flight before the first is looked at.
constexpr int kAhead = 4;

/// Ids i ... i + 3; -1 from `end` on. `i` is a multiple of 4.
__device__ int4 load_ids(const std::int32_t* ids, std::int64_t i, std::int64_t end, bool aligned) {
  if (aligned && i + kIdsOfLane <= end) return *reinterpret_cast<const int4*>(ids + i);
  return {i < end ? ids[i] : -1, i + 1 < end ? ids[i + 1] : -1, i + 2 < end ? ids[i + 2] : -1,
          i + 3 < end ? ids[i + 3] : -1};
}

/// Calls `visit(index, ids)` for this lane's ids of begin ... end, in order, all lanes together.
template <class Visit>
__device__ void for_ids(const DeviceSort& a, std::int64_t begin, std::int64_t end, Visit&& visit) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(a.ids) % sizeof(int4) == 0;
  for (std::int64_t from = begin; from < end; from += kAhead * kIdsOfWarp) {
    int4 ids[kAhead];
    const std::int64_t first = from + lane_of() * kIdsOfLane;
#pragma unroll
    for (int n = 0; n < kAhead; ++n) ids[n] = load_ids(a.ids, first + n * kIdsOfWarp, end, aligned);
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (from + n * kIdsOfWarp >= end) break;
      const int four[kIdsOfLane] = {ids[n].x, ids[n].y, ids[n].z, ids[n].w};
      visit(first + n * kIdsOfWarp, four);
    }
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
  for_ids(a, begin, end, [&](std::int64_t, const int(&ids)[kIdsOfLane]) {
#pragma unroll
    for (int i = 0; i < kIdsOfLane; ++i) {
      mine += ids[i] == expert;
      if (ids[i] >= 0 && ids[i] < expert) atomicAdd(&counts[ids[i]], 1);
    }
  });
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

/// Gives the expert's ids of begin ... end the sorted rows from `at` on, in order.
__device__ void place_ids(const DeviceSort& a, int expert, std::int64_t begin, std::int64_t end,
                          int at) {
  for_ids(a, begin, end, [&](std::int64_t index, const int(&ids)[kIdsOfLane]) {
    int row = at;
    unsigned hits[kIdsOfLane];
#pragma unroll
    for (int i = 0; i < kIdsOfLane; ++i) {
      hits[i] = __ballot_sync(~0u, ids[i] == expert);
      row += __popc(hits[i] & ((1u << lane_of()) - 1));
      at += __popc(hits[i]);
    }
#pragma unroll
    for (int i = 0; i < kIdsOfLane; ++i) {
      if (ids[i] != expert) continue;
      a.source[row] = std::int32_t(index + i);
      a.sorted_of[index + i] = row++;
    }
  });
}

/// One block per expert, and one for what belongs to none: each reads all ids, so that no block
/// waits for another and the order is the stable one.
__global__ void __launch_bounds__(kMostThreads) sort_kernel(const DeviceSort a) {
  extern __shared__ int counts[];
  __shared__ int own[kMostWarps];
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const int expert = blockIdx.x, experts = int(a.experts), warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  const std::int64_t rows = a.tokens * a.top_k;
  const std::int64_t share =
      ((rows + warps - 1) / warps + kIdsOfLane - 1) / kIdsOfLane * kIdsOfLane;
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
  place_ids(a, expert, begin, end, c.first + c.before[0]);
  const int last = c.first + total, padded = (last + 7) / 8 * 8;
  if (last + int(threadIdx.x) < padded) a.source[last + threadIdx.x] = -1;
}

__global__ void __launch_bounds__(32 * kGatherWarps)
    quantize_kernel(const __grid_constant__ DeviceQuantize a) {
  const std::int64_t row = std::int64_t(blockIdx.x) * kGatherWarps + threadIdx.x / 32;
  // Both stand since the rows were sorted, which may be later than what this multiprocessor's own
  // cache knows.
  if (!a.sorted_early) sm90::wait_for_previous_launch();
  const bool exists = row < __ldcg(a.end) && __ldcg(a.source + row) >= 0;
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  if (!exists) return;
  const float* from = a.rows + row * a.stride;
  sm90::quantize_row({a.quant, a.cols, 1, a.out}, row, [&](std::int64_t col, float(&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = col + i < a.cols ? from[col + i] : 0.0f;
  });
}

/// The value at a column of quantised rows, without its scales.
__device__ double stored_value(const RowTiles& tiles, std::int64_t row, std::int64_t col) {
  if (tiles.codes) return formats::decode_e4m3(std::uint8_t(*(tiles.at(row, col / 16) + col % 16)));
  double v = 0;
  for (std::int64_t plane = 0; plane < tiles.planes; ++plane)
    v += bf16_to_float(
        *reinterpret_cast<const std::uint16_t*>(tiles.at(row, col / 8, plane) + col % 8 * 2));
  return v;
}

__global__ void __launch_bounds__(32 * kGatherWarps) capture_kernel(const DeviceCapture a) {
  sm90::wait_for_previous_launch();
  const std::int64_t choice = blockIdx.x, row = a.sorted_of[choice];
  if (row < 0) return;
  double scale = a.rows.token_scales ? a.rows.token_scales[row] : 1;
  if (a.static_scale)
    scale *= *reinterpret_cast<const float*>(a.static_scale + a.ids[choice] * a.stride);
  const RowTiles& tiles = a.rows.tiles;
  for (std::int64_t col = threadIdx.x; col < a.cols; col += blockDim.x) {
    double v = stored_value(tiles, row, col);
    if (a.rows.block_scales) v *= a.rows.block_scales[col / 128 * tiles.capacity + row];
    a.out[choice * a.cols + col] = v * scale;
  }
}

}  // namespace

void sort_and_gather_cuda(const DeviceSort& a, const DeviceGather& g, Stream stream) {
  if (arranges_alone(a)) return arrange_rows_cuda(a, g, stream);
  launch_overlapped("sorting of rows: launch", sort_kernel,
                    {.blocks = unsigned(a.experts + 1),
                     .threads = kMostThreads,
                     .shared_bytes = std::size_t(a.experts) * sizeof(int)},
                    stream, a);
  arrange_rows_cuda(a, g, stream);
}

void quantize_rows_cuda(const DeviceQuantize& a, Stream stream) {
  launch_overlapped("quantising of rows: launch", quantize_kernel,
                    {.blocks = unsigned((a.out.tiles.capacity + kGatherWarps - 1) / kGatherWarps),
                     .threads = 32 * kGatherWarps},
                    stream, a);
}

void capture_rows_cuda(const DeviceCapture& a, Stream stream) {
  launch_overlapped("capture of rows: launch", capture_kernel,
                    {.blocks = unsigned(a.choices), .threads = 32 * kGatherWarps}, stream, a);
}

}  // namespace switchyard::ops
