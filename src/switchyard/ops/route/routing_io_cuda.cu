// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/cuda_launch.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/ops/route/routing_io.h"

namespace switchyard::ops {
namespace {

constexpr int kThreads = 256;

__device__ std::int64_t global_thread() {
  return std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
}

__global__ void __launch_bounds__(kThreads)
    fill_kernel(const DeviceChoices c, const std::int32_t* given_ids, const float* given_weights) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t i = global_thread();
  if (i >= c.tokens * c.width) return;
  const std::int64_t t = i / c.width, j = i % c.width;
  if (j >= c.top_k) {
    c.ids[i] = std::int32_t(c.experts + j - c.top_k);
    c.weights[i] = 1;
  } else if (given_ids) {
    const std::int32_t id = given_ids[t * c.top_k + j];
    c.ids[i] = id >= 0 && id < c.experts + c.zero_experts ? id : -1;
    c.weights[i] = given_weights[t * c.top_k + j];
  }
}

__global__ void __launch_bounds__(kThreads)
    report_kernel(const DeviceChoices c, const RoutingReport r) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t i = global_thread();
  if (i >= c.tokens * c.top_k) return;
  const std::int64_t at = i / c.top_k * c.width + i % c.top_k;
  const std::int32_t id = c.ids[at];
  if (r.ids) r.ids[i] = id;
  if (r.weights) r.weights[i] = c.weights[at];
  if (r.counts && id >= 0)  // whole numbers: the order of the additions shows nowhere
    atomicAdd(reinterpret_cast<unsigned long long*>(r.counts + id), 1ull);
  // A zero expert has no input to weigh: its row is the token itself.
  if (r.row_weights) r.row_weights[i] = r.weight_on_input && id < c.experts ? 1.0f : c.weights[at];
  if (r.row_index) r.row_index[i] = id < 0 ? -1 : std::int32_t(i);
}

__global__ void __launch_bounds__(kThreads) localise_kernel(const DeviceLocal a) {
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t i = global_thread();
  if (i >= a.count) return;
  const std::int32_t id = a.ids[i];
  const std::int32_t local = id >= 0 && id < a.size ? a.table[id] : -1;
  a.local_ids[i] = local;
  a.local_weights[i] = local < 0 ? 0.0f : a.weights[i];
}

unsigned blocks_for(std::int64_t items) { return unsigned((items + kThreads - 1) / kThreads); }

}  // namespace

void fill_choices_cuda(const DeviceChoices& c, const std::int32_t* given_ids,
                       const float* given_weights, Stream stream) {
  if (c.tokens == 0 || (given_ids == nullptr && c.width == c.top_k)) return;
  launch_overlapped("choices: launch", fill_kernel,
                    {.blocks = blocks_for(c.tokens * c.width), .threads = kThreads}, stream, c,
                    given_ids, given_weights);
}

void localise_cuda(const DeviceLocal& a, Stream stream) {
  if (a.count == 0) return;
  launch_overlapped("local choices: launch", localise_kernel,
                    {.blocks = blocks_for(a.count), .threads = kThreads}, stream, a);
}

void report_routing_cuda(const DeviceChoices& c, const RoutingReport& r, Stream stream) {
  const bool asked = r.ids || r.weights || r.counts || r.row_weights || r.row_index;
  if (c.tokens == 0 || !asked) return;
  launch_overlapped("report of routing: launch", report_kernel,
                    {.blocks = blocks_for(c.tokens * c.top_k), .threads = kThreads}, stream, c, r);
}

}  // namespace switchyard::ops
