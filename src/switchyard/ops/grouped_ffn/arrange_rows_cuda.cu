// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/base/cuda_launch.h"
#include "switchyard/core/routing.h"
#include "switchyard/ops/grouped_ffn/arrange_rows_cuda.h"
#include "switchyard/ops/grouped_ffn/arrange_rows_sm90.h"
#include "switchyard/ops/grouped_gemm/sm90.h"

namespace switchyard::ops {
namespace {

using sm90::lane_of;
using sm90::TokenColumns;

constexpr int kThreads = 256, kWarps = kThreads / 32;
/// Blocks that a multiprocessor's worth of tokens is cut into at most.
constexpr std::int64_t kEnoughBlocks = 264;

__device__ int padded(int rows) { return (rows + 7) / 8 * 8; }

/// What a block counts of all ids: each expert's, and those of them in front of its token.
struct Counts {
  int* all;
  int* front;

  __device__ Counts(int* memory, int experts) : all(memory), front(memory + experts) {}
};

/// By the whole block; whole numbers, so the order of the additions shows nowhere.
__device__ void count_ids(const DeviceSort& a, std::int64_t token, const Counts& c) {
  const int experts = int(a.experts);
  for (int e = threadIdx.x; e < 2 * experts; e += kThreads) c.all[e] = 0;
  __syncthreads();
  const int first = int(token * a.top_k), count = int(a.tokens * a.top_k);
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int id = a.ids[i];
    if (id < 0 || id >= experts) continue;
    atomicAdd(&c.all[id], 1);
    if (i < first) atomicAdd(&c.front[id], 1);
  }
  __syncthreads();
}

/// The sorted row of choice `j`, by a warp; -1 for an id outside the experts.
__device__ int sorted_row(const DeviceSort& a, std::int64_t token, int j, const Counts& c) {
  const std::int32_t* ids = a.ids + token * a.top_k;
  const int id = ids[j];
  if (id < 0 || id >= a.experts) return -1;
  int before = 0;
  for (int e = lane_of(); e < id; e += 32) before += padded(c.all[e]);
  // A caller's own choices may name an expert twice.
  if (lane_of() < j && ids[lane_of()] == id) ++before;
  return __reduce_add_sync(~0u, before) + c.front[id];
}

/// The table of all experts, and the holes behind their rows; by one warp.
__device__ void write_table(const DeviceSort& a, const Counts& c) {
  const int experts = int(a.experts), share = (experts + 31) / 32;
  const int begin = min(lane_of() * share, experts), end = min(begin + share, experts);
  int sum = 0;
  for (int e = begin; e < end; ++e) sum += padded(c.all[e]);
  int row = sum;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, row, step);
    if (lane_of() >= step) row += other;
  }
  if (lane_of() == 31) a.offsets[experts] = row;
  row -= sum;
  for (int e = begin; e < end; ++e) {
    const int count = c.all[e], next = row + padded(count);
    a.offsets[e] = row;
    a.counts[e] = count;
    for (int hole = row + count; hole < next; ++hole) a.source[hole] = -1;
    row = next;
  }
}

/// What one launch does.
enum class Arrange { kGather, kSort };

/// What its parameters are.
struct ArrangeCall {
  DeviceSort sort;
  DeviceGather gather;
  int parts;  // blocks of a token
};

/// One token, or some of its columns. A block that sorts finds the rows of its token for itself:
/// none waits for another, and the order is the stable one.
template <Arrange work, formats::ActivationQuant quant>
__global__ void __launch_bounds__(kThreads)
    arrange_kernel(const __grid_constant__ ArrangeCall call) {
  extern __shared__ int memory[];
  __shared__ int rows[kMaxTopK];
  const DeviceSort& a = call.sort;
  const DeviceGather& g = call.gather;
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const int parts = call.parts;
  const std::int64_t token = blockIdx.x / parts;
  const int part = blockIdx.x % parts, warp = threadIdx.x / 32, top_k = int(a.top_k);
  const TokenColumns<quant> columns(g, token);
  std::int64_t group = std::int64_t(part) * kThreads + threadIdx.x;
  uint4 raw = columns.load(group);  // on its way while the ids are counted
  const std::int64_t all_threads = std::int64_t(gridDim.x) * kThreads;
  for (std::int64_t i = blockIdx.x * std::int64_t(kThreads) + threadIdx.x; i < a.num_arrivals;
       i += all_threads)
    a.arrivals[i] = 0;
  if constexpr (work == Arrange::kSort) {
    const Counts counts(memory, int(a.experts));
    count_ids(a, token, counts);
    for (int j = warp; j < top_k; j += kWarps) {
      const int row = sorted_row(a, token, j, counts);
      if (lane_of() != 0) continue;
      rows[j] = row;
      if (part > 0) continue;
      a.sorted_of[token * top_k + j] = row;
      if (row >= 0) a.source[row] = std::int32_t(token * top_k + j);
    }
    if (blockIdx.x == gridDim.x - 1 && warp == kWarps - 1) write_table(a, counts);
  } else {
    if (threadIdx.x < top_k) rows[threadIdx.x] = a.sorted_of[token * top_k + threadIdx.x];
  }
  __syncthreads();
  float amax = 0;
  if (quant == formats::ActivationQuant::kFp8Token) amax = sm90::amax_of_block(columns.amax());
  const std::int64_t step = std::int64_t(parts) * kThreads;
  for (std::int64_t from = std::int64_t(part) * kThreads; from < columns.groups(); from += step) {
    columns.write(group, raw, amax, {top_k, rows, g.weights ? g.weights + token * top_k : nullptr});
    group += step;
    raw = columns.load(group);
  }
}

/// Blocks of a token: more than one where there would be too few to fill the machine.
int parts_of(const DeviceSort& a, const DeviceGather& g) {
  const std::int64_t groups = (g.hidden + kTileCols - 1) / kTileCols * 8;
  const std::int64_t most = (groups + kThreads - 1) / kThreads;
  return int(std::clamp<std::int64_t>(kEnoughBlocks / a.tokens, 1, most));
}

/// Calls `visit` with the kernel of a quantiser.
template <Arrange work, class Visit>
void with_kernel(formats::ActivationQuant quant, Visit&& visit) {
  using enum formats::ActivationQuant;
  switch (quant) {
    case kNone:
      return visit(arrange_kernel<work, kNone>);
    case kFp8Block128:
      return visit(arrange_kernel<work, kFp8Block128>);
    case kFp8Block128Ue8m0:
      return visit(arrange_kernel<work, kFp8Block128Ue8m0>);
    case kFp8Token:
      return visit(arrange_kernel<work, kFp8Token>);
    case kFp8Tensor:
      return visit(arrange_kernel<work, kFp8Tensor>);
    case kMxfp8:
      return visit(arrange_kernel<work, kMxfp8>);
    case kNvfp4:
      return visit(arrange_kernel<work, kNvfp4>);
    case kF32:
      break;
  }
  ensure(false, "arranging of rows: nothing quantises by ", to_string(quant));
}

template <Arrange work>
void launch_arrange(const char* what, const ArrangeCall& call, std::int64_t shared_bytes,
                    Stream stream) {
  with_kernel<work>(call.gather.quant, [&](auto* kernel) {
    launch_overlapped(what, kernel,
                      {.blocks = unsigned(call.sort.tokens * call.parts),
                       .threads = kThreads,
                       .shared_bytes = std::size_t(shared_bytes)},
                      stream, call);
  });
}

}  // namespace

bool arranges_alone(const DeviceSort& a) { return a.tokens * a.top_k <= kMostIds; }

void arrange_rows_cuda(const DeviceSort& a, const DeviceGather& g, Stream stream) {
  const ArrangeCall call{a, g, parts_of(a, g)};
  const std::int64_t shared_bytes = 2 * a.experts * std::int64_t(sizeof(int));
  if (arranges_alone(a))
    return launch_arrange<Arrange::kSort>("arranging of rows: launch", call, shared_bytes, stream);
  launch_arrange<Arrange::kGather>("gathering of rows: launch", call, 0, stream);
}

}  // namespace switchyard::ops
