// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "switchyard/base/cuda_launch.h"
#include "switchyard/base/host_device.h"
#include "switchyard/core/routing.h"
#include "switchyard/ops/grouped_ffn/finalize_columns_sm90.h"
#include "switchyard/ops/grouped_gemm/sm90.h"

namespace switchyard::ops {
namespace {

using namespace sm90;  // NOLINT(google-build-using-namespace): the kernels are part of it

constexpr int kThreads = 256;

// ---- few tokens: a thread has four columns of one ----

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
    finalize_tokens_kernel(const __grid_constant__ DeviceFinalize a, int chunks) {
  const std::int64_t t = blockIdx.x / chunks;
  const std::int64_t col = ((blockIdx.x % chunks) * std::int64_t(blockDim.x) + threadIdx.x) * 4;
  const int top_k = int(a.top_k), scaled = int(a.top_k - a.unscaled_choices);
  if (!a.sorted_early) wait_for_previous_launch();
  Choices choices(a, t, 0);
  wait_for_previous_launch();
  allow_next_launch();
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

// ---- many tokens: rows pass through a ring of shared memory ----

/// Columns of a token that a block sums up at a time, four a thread.
constexpr int kCols = 512, kWarps = kCols / 4 / 32;
constexpr int kMostStages = 6;
/// Of all stages, so that two blocks share a multiprocessor.
constexpr int kRingBytes = 100 * 1024;
/// From here on; below, the blocks' first reads are most of it.
constexpr std::int64_t kManyTokens = 512;

/// A choice of the token at hand, as the summing threads see it.
struct Choice {
  enum Kind : std::int32_t { kSkipped, kRow, kToken };
  float weight;
  Kind kind;
};

/// What a block has in front of its stages, to which rows are copied in units of 16 bytes.
struct alignas(16) Ring {
  std::uint64_t full[kMostStages], empty[kMostStages];
  Choice choices[kMostStages][kMaxTopK];
};

/// How a call runs in rings.
struct RingCall {
  DeviceFinalize a;
  int stages, chunks;

  SWITCHYARD_HD int stage_floats() const { return int(a.top_k) * kCols; }
  SWITCHYARD_HD std::int64_t items() const { return a.tokens * chunks; }
};

/// The items that a block works off, and where in the ring each lies.
struct Walk {
  const RingCall& call;
  std::int64_t item = blockIdx.x;
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ bool more() const { return item < call.items(); }
  __device__ std::int64_t token() const { return item / call.chunks; }
  __device__ std::int64_t first_col() const { return item % call.chunks * kCols; }
  __device__ void advance() {
    item += gridDim.x;
    if (++stage == call.stages) stage = 0, phase ^= 1;
  }
};

/// What the fetching lane of a choice reads of it, an item ahead.
struct Asked {
  std::int32_t sorted = -1, id = -1;
  float weight = 0;

  __device__ Asked() = default;
  __device__ Asked(const DeviceFinalize& a, std::int64_t token, int lane) {
    if (token >= a.tokens || lane >= a.top_k) return;
    const std::int64_t choice = token * a.top_k + lane;
    sorted = __ldcg(a.sorted_of + choice);
    id = __ldcg(a.ids + choice);
    weight = __ldcg(a.weights + choice);
  }
  __device__ Choice choice(const DeviceFinalize& a) const {
    if (sorted >= 0) return {a.weight_on_input ? 1.0f : weight, Choice::kRow};
    const bool zero_expert = id >= a.experts && id < a.experts + a.zero_experts;
    return {weight, zero_expert ? Choice::kToken : Choice::kSkipped};
  }
};

/// The fetching warp: a lane brings the row of its choice.
__device__ void fetch_rows(const RingCall& call, Ring& ring, float* stages) {
  const DeviceFinalize& a = call.a;
  const int lane = threadIdx.x % 32;
  Walk w{call};
  if (!a.sorted_early) wait_for_previous_launch();
  Asked next(a, w.token(), lane);
  wait_for_previous_launch();
  allow_next_launch();
  for (; w.more(); w.advance()) {
    const Asked asked = next;
    const std::int64_t col = w.first_col(), left = (a.hidden - col + 3) / 4 * 4;
    const auto bytes = std::uint32_t(4 * min(left, std::int64_t(kCols)));
    next = Asked(a, (w.item + gridDim.x) / call.chunks, lane);
    const Choice choice = asked.choice(a);
    barrier_wait(&ring.empty[w.stage], w.phase ^ 1);
    if (lane < a.top_k) ring.choices[w.stage][lane] = choice;
    const bool brings = lane < a.top_k && choice.kind == Choice::kRow;
    const unsigned rows = __popc(__ballot_sync(~0u, brings));
    __syncwarp();  // the first lane's arrival speaks for the choices of all
    if (lane == 0) barrier_expect(&ring.full[w.stage], rows * bytes);
    __syncwarp();
    if (brings)
      copy_bulk(stages + w.stage * call.stage_floats() + lane * kCols,
                a.rows + asked.sorted * a.rows_stride + col, bytes, &ring.full[w.stage]);
  }
}

/// Sums up a thread's columns, in choice order.
__device__ Columns sum_choices(const DeviceFinalize& a, std::int64_t token, std::int64_t col,
                               const Choice* choices, const float* rows) {
  const int top_k = int(a.top_k), scaled = int(a.top_k - a.unscaled_choices);
  Columns sum;
#pragma unroll 4
  for (int j = 0; j < top_k; ++j) {
    const Choice c = choices[j];
    if (j == scaled) sum.scale(a.factor);
    if (c.kind == Choice::kSkipped) continue;
    sum.add(c.weight, c.kind == Choice::kRow
                          ? *reinterpret_cast<const float4*>(rows + j * kCols + threadIdx.x * 4)
                          : token_columns(a, token, col));
  }
  if (a.unscaled_choices == 0) sum.scale(a.factor);
  return sum;
}

/// The summing warps.
__device__ void sum_rows(const RingCall& call, Ring& ring, const float* stages) {
  const DeviceFinalize& a = call.a;
  for (Walk w{call}; w.more(); w.advance()) {
    const std::int64_t token = w.token(), col = w.first_col() + threadIdx.x * 4;
    barrier_wait(&ring.full[w.stage], w.phase);
    Columns sum =
        sum_choices(a, token, col, ring.choices[w.stage], stages + w.stage * call.stage_floats());
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&ring.empty[w.stage]);
    if (col >= a.hidden) continue;
    if (a.addend)
      for (int i = 0; i < 4; ++i)
        if (col + i < a.hidden) sum.v[i] += a.addend[token * a.hidden + col + i];
    store_columns(a, token * a.out_stride + col, a.hidden - col, sum.v);
  }
}

__global__ void __launch_bounds__(32 * (kWarps + 1), 2)
    finalize_ring_kernel(const __grid_constant__ RingCall call) {
  extern __shared__ __align__(128) std::byte memory[];
  Ring& ring = *reinterpret_cast<Ring*>(memory);
  float* stages = reinterpret_cast<float*>(memory + sizeof(Ring));
  if (threadIdx.x == 0) {
    for (int i = 0; i < call.stages; ++i) {
      barrier_init(&ring.full[i], 1);
      barrier_init(&ring.empty[i], kWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= 32 * kWarps) {
    fetch_rows(call, ring, stages);
  } else {
    wait_for_previous_launch();
    allow_next_launch();
    sum_rows(call, ring, stages);
  }
}

/// Blocks that a machine of 132 multiprocessors runs at once.
constexpr std::int64_t kRingBlocks = 2 * 132;

/// Stages that fit; a ring of one would not run ahead.
int stages_of(const DeviceFinalize& a) {
  const std::int64_t stage = a.top_k * kCols * 4;
  return int(std::min<std::int64_t>(kMostStages, kRingBytes / stage));
}

void launch_ring(const DeviceFinalize& a, Stream stream) {
  const RingCall call{a, stages_of(a), int((a.hidden + kCols - 1) / kCols)};
  launch_overlapped("finalize: launch", finalize_ring_kernel,
                    {.blocks = unsigned(std::min(kRingBlocks, call.items())),
                     .threads = 32 * (kWarps + 1),
                     .shared_bytes = sizeof(Ring) + std::size_t(call.stages) * 4 *
                                                        std::size_t(call.stage_floats())},
                    stream, call);
}

void launch_tokens(const DeviceFinalize& a, Stream stream) {
  const std::int64_t quads = (a.hidden + 3) / 4;
  const std::int64_t threads = std::min<std::int64_t>(kThreads, (quads + 31) / 32 * 32);
  const std::int64_t chunks = (quads + threads - 1) / threads;
  launch_overlapped("finalize: launch", finalize_tokens_kernel,
                    {.blocks = unsigned(a.tokens * chunks), .threads = unsigned(threads)}, stream,
                    a, int(chunks));
}

}  // namespace

void finalize_cuda(const DeviceFinalize& a, Stream stream) {
  if (a.tokens >= kManyTokens && stages_of(a) > 1) return launch_ring(a, stream);
  launch_tokens(a, stream);
}

}  // namespace switchyard::ops
