// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "switchyard/base/cuda_launch.h"
#include "switchyard/base/device_memory.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/tune/device_roof.h"

namespace switchyard::tune {
namespace {

namespace sm90 = ops::sm90;

constexpr unsigned kBlocks = 132 * 8, kReadThreads = 512, kMatrixBlocks = 132;
constexpr int kAhead = 8;
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

/// Random bits: memory of equal words is no memory as a layer has it.
__global__ void __launch_bounds__(kReadThreads) fill_kernel(std::uint32_t* data, std::int64_t n) {
  sm90::wait_for_previous_launch();
  const std::int64_t step = std::int64_t(gridDim.x) * kReadThreads;
  for (std::int64_t i = std::int64_t(blockIdx.x) * kReadThreads + threadIdx.x; i < n; i += step) {
    std::uint32_t v = std::uint32_t(i) * 2654435761u;
    v = (v ^ v >> 15) * 2246822519u;
    data[i] = v ^ v >> 13;
  }
}

constexpr std::size_t kLeast = std::size_t(512) << 20, kOwn = std::size_t(1) << 30;
constexpr double kMatrixFlops = 2.0 * 2 * 64 * 256 * 64 * double(kRounds) * kMatrixBlocks;

}  // namespace

/// Both loads, each recorded once.
struct DeviceRoofMeter::Work {
  Work(const void* memory, std::size_t bytes)
      : own(bytes < kLeast ? kOwn : 0),
        data(bytes < kLeast ? own.data() : memory),
        size(bytes < kLeast ? kOwn : bytes),
        read(stream, [&] { enqueue_read(); }),
        matrix(stream, [&] { enqueue_matrix(); }) {
    if (own.size() > 0) fill();
    read.run();  // the first one is slow
    matrix.run();
  }

  void fill() {
    launch_overlapped("roof: launch", fill_kernel, {.blocks = kBlocks, .threads = kReadThreads},
                      stream.get(), static_cast<std::uint32_t*>(own.data()),
                      std::int64_t(own.size() / sizeof(std::uint32_t)));
    stream.wait();
  }
  void enqueue_read() {
    launch_overlapped("roof: launch", read_kernel, {.blocks = kBlocks, .threads = kReadThreads},
                      stream.get(), static_cast<const uint4*>(data),
                      std::int64_t(size / sizeof(uint4)), static_cast<uint4*>(sink.data()));
  }
  void enqueue_matrix() {
    launch_overlapped(
        "roof: launch", matrix_kernel,
        {.blocks = kMatrixBlocks, .threads = 256, .shared_bytes = 1024 + 2 * kTileA + kTileB},
        stream.get(), static_cast<float*>(sink.data()));
  }

  DeviceStream stream;
  DeviceMemory sink{64}, own;
  const void* data;
  std::size_t size;
  DeviceGraph read, matrix;
};

DeviceRoofMeter::DeviceRoofMeter() : DeviceRoofMeter(nullptr, 0) {}
DeviceRoofMeter::DeviceRoofMeter(const void* memory, std::size_t bytes)
    : work_(std::make_unique<Work>(memory, bytes)) {}
DeviceRoofMeter::~DeviceRoofMeter() = default;

void DeviceRoofMeter::sample(int count) {
  for (int i = 0; i < count; ++i) {
    const double read = work_->read.run(), matrix = work_->matrix.run();
    taken_.add({double(work_->size) / read * 1e-3, kMatrixFlops / matrix * 1e-3});
  }
}

}  // namespace switchyard::tune
