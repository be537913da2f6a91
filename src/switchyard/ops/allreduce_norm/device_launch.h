// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/base/cuda_launch.h"
#include "switchyard/ops/allreduce_norm/device_kernels.h"

/// What the sources of the three element types share. For .cu files only.
namespace switchyard::ops::fused {

/// What failed, in messages.
constexpr const char* kLaunchWhat = "allreduce: launch";

/// What of a GPU sets how a launch is cut.
struct Room {
  int processors = 1, per_processor = 1;  // and blocks of the kernel that each runs at once
};

/// Asks the current GPU. Errors: DeviceError.
template <class Kernel>
inline Room room_of(Kernel kernel, const Launch& l) {
  if (l.shared_bytes > 48 * 1024)
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    int(l.shared_bytes)),
               kLaunchWhat);
  Room room;
  int device = 0;
  cuda_check(cudaGetDevice(&device), kLaunchWhat);
  cuda_check(cudaDeviceGetAttribute(&room.processors, cudaDevAttrMultiProcessorCount, device),
             kLaunchWhat);
  cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&room.per_processor, kernel, l.threads,
                                                           std::size_t(l.shared_bytes)),
             kLaunchWhat);
  room.per_processor = std::max(1, room.per_processor);
  return room;
}

/// The part of a GPU that one of several ranks on it takes: all their blocks, and those of each
/// stream's next call, which may take their place early, run at once. Else ranks would wait for
/// blocks that have no room. Errors: UsageError.
inline Room part_of(const Room& whole, int sharers) {
  constexpr int kLeast = 4;
  if (sharers == 1) return whole;
  const Room part{whole.processors / (2 * sharers), 1};
  require(part.processors >= kLeast, "allreduce: ", sharers, " ranks share a GPU of ",
          whole.processors, " processors, which has room for ", whole.processors / (2 * kLeast));
  return part;
}

/// Cuts the blocks down to a part of a GPU that other ranks share.
inline void fit(FusedCall& c, std::int64_t& finishers, const Room& part) {
  c.clearers = std::min(c.clearers, part.processors / 4);
  c.pushers = std::min(c.pushers, part.processors / 3);
  finishers = std::min<std::int64_t>(finishers, part.processors - c.pushers - c.clearers);
}

/// Blocks that send and blocks that finish. Few weighted rows are cut into slices, so that a row's
/// experts are added by several processors; other rows are finished by who sends them, which was
/// faster (docs/benchmarks.md). Padding of few rows' scales is more than they are: it gets blocks.
inline std::int64_t cut(FusedCall& c, const Launch& l, const Room& room) {
  constexpr int kSliceUnits = 128, kClearers = 16, kSlicedRows = 32;
  const AllReduceGeometry& g = l.geometry;
  const std::int64_t tokens = std::max<std::int64_t>(c.tokens, 1), all = room.processors;
  const bool few = tokens <= all, sliced = l.weighted && tokens <= kSlicedRows;
  if (sliced)
    c.slices = int(
        std::clamp<std::int64_t>(all / tokens - 1, 1, (c.units + kSliceUnits - 1) / kSliceUnits));
  if (g.slices > 0) c.slices = g.slices;
  std::int64_t pushers = sliced ? tokens * c.slices : 0;
  if (g.pushers != 0) pushers = std::max(0, g.pushers);
  if (c.peers.ranks == 1 || l.two_shot) pushers = 0;
  c.pushers = int(std::min(pushers, tokens * c.slices));
  std::int64_t finishers = few ? tokens : all * room.per_processor;
  if (g.finishers > 0) finishers = g.finishers;
  finishers = std::clamp<std::int64_t>(finishers, 1, tokens);
  const bool pads =
      c.quant.kind == AllReduceQuant::kNvfp4 && c.quant.layout != formats::ScaleLayout::kLinear;
  if (pads && few && !l.two_shot && c.tokens > 0) c.clearers = kClearers;
  if (g.sharers > 1) fit(c, finishers, room);
  return c.pushers + finishers + c.clearers;
}

/// Enqueues one kernel. Errors: DeviceError when the launch is refused.
inline void enqueue(void (*kernel)(FusedCall), FusedCall c, const Launch& l, Stream stream) {
  const std::int64_t blocks = cut(c, l, part_of(room_of(kernel, l), l.geometry.sharers));
  launch_overlapped(kLaunchWhat, kernel,
                    {.blocks = unsigned(blocks),
                     .threads = unsigned(l.threads),
                     .shared_bytes = std::size_t(l.shared_bytes)},
                    stream, c);
}

/// Picks among the kernels of T on the wire W.
template <class T, class W>
inline void launch_on(const FusedCall& c, const Launch& l, Stream stream) {
  if (l.two_shot)
    return enqueue(l.weighted ? two_shot<T, W, Source::kWeighted> : two_shot<T, W, Source::kPlain>,
                   c, l, stream);
  if constexpr (W::kWords == 4) {
    if (l.once)
      return enqueue(l.weighted ? one_shot<T, W, Source::kWeighted, true>
                                : one_shot<T, W, Source::kPlain, true>,
                     c, l, stream);
  }
  enqueue(
      l.weighted ? one_shot<T, W, Source::kWeighted, false> : one_shot<T, W, Source::kPlain, false>,
      c, l, stream);
}

}  // namespace switchyard::ops::fused
