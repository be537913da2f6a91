// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "switchyard/base/cuda_launch.h"
#include "switchyard/base/device_memory.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/tune/device_roof.h"
#include "switchyard/tune/timer.h"

namespace switchyard::tune {
namespace {

namespace sm90 = ops::sm90;

constexpr unsigned kBlocks = 132 * 8, kReadThreads = 512, kMatrixBlocks = 132;
constexpr int kAhead = 8, kRuns = 7;
constexpr int kTileA = 64 * 128, kTileB = 256 * 128;  // bytes of 64 bf16 columns
constexpr int kRounds = 4096;

/// Adds up everything; the store that never happens keeps the loads.
__global__ void __launch_bounds__(kReadThreads)
    read_kernel(const uint4* data, std::int64_t count, uint4* sink) {
  sm90::wait_for_previous_launch();
  const std::int64_t step = std::int64_t(gridDim.x) * kReadThreads;
  uint4 sum = {0, 0, 0, 0};
  std::int64_t i = std::int64_t(blockIdx.x) * kReadThreads + threadIdx.x;
  for (; i + (kAhead - 1) * step < count; i += kAhead * step) {
    uint4 v[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) v[a] = __ldcs(data + i + a * step);
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
      sum.x ^= v[a].x, sum.y ^= v[a].y, sum.z ^= v[a].z, sum.w ^= v[a].w;
  }
  if (sum.x == 0x12345678 && sum.y == 0x9abcdef0 && sum.z == sum.w) *sink = sum;
}

/// Two warpgroups multiply random tiles that stay in shared memory.
__global__ void __launch_bounds__(256, 1) matrix_kernel(float* sink) {
  extern __shared__ std::byte raw[];
  sm90::wait_for_previous_launch();
  std::byte* tiles = raw + (1024 - sm90::shared_address(raw) % 1024) % 1024;
  auto* words = reinterpret_cast<std::uint32_t*>(tiles);
  std::uint32_t seed = 2654435761u * (threadIdx.x + 1 + 256 * blockIdx.x);
  for (int i = threadIdx.x; i < (2 * kTileA + kTileB) / 4; i += 256) {
    seed = seed * 1664525u + 1013904223u;
    words[i] = (seed & 0x807f807fu) | 0x3f003f00u;  // two bf16 of magnitude 0.5 to 1
  }
  sm90::fence_async_proxy();
  __syncthreads();
  const std::uint32_t base = sm90::shared_address(tiles);
  const std::uint64_t a = sm90::operand(base + threadIdx.x / 128 * kTileA);
  const std::uint64_t b = sm90::operand(base + 2 * kTileA);
  float acc[128] = {};
  for (int round = 0; round < kRounds; ++round) {
    sm90::mma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) sm90::mma_bf16<256>(acc, a + 2 * step, b + 2 * step);
    sm90::mma_commit();
    sm90::mma_wait<1>();
  }
  sm90::mma_wait<0>();
  float sum = 0;
  for (float v : acc) sum += v;
  if (sum == 0.123f) *sink = sum;
}

double median_us(const DeviceStream& stream, const std::function<void()>& enqueue) {
  DeviceGraph graph(stream, enqueue);
  graph.run();
  std::vector<double> times;
  for (int i = 0; i < kRuns; ++i) times.push_back(graph.run());
  return percentile(times, 0.5);
}

}  // namespace

Roof measure_device_roof(const void* memory, std::size_t bytes) {
  std::optional<DeviceMemory> own;
  if (bytes < (std::size_t(512) << 20)) {
    bytes = std::size_t(1) << 30;
    own.emplace(bytes);
    memory = own->data();
  }
  const DeviceStream stream;
  const DeviceMemory sink(64);
  const std::int64_t count = std::int64_t(bytes / sizeof(uint4));
  const double read = median_us(stream, [&] {
    launch_overlapped("roof: launch", read_kernel, {.blocks = kBlocks, .threads = kReadThreads},
                      stream.get(), static_cast<const uint4*>(memory), count,
                      static_cast<uint4*>(sink.data()));
  });
  const double matrix = median_us(stream, [&] {
    launch_overlapped(
        "roof: launch", matrix_kernel,
        {.blocks = kMatrixBlocks, .threads = 256, .shared_bytes = 1024 + 2 * kTileA + kTileB},
        stream.get(), static_cast<float*>(sink.data()));
  });
  const double flops = 2.0 * 2 * 64 * 256 * 64 * double(kRounds) * kMatrixBlocks;
  return {double(bytes) / read * 1e-3, flops / matrix * 1e-3};
}

}  // namespace switchyard::tune
