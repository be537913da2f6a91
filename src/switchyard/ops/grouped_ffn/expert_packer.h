// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "switchyard/base/device_memory.h"
#include "switchyard/base/device_staging.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/base/home_gpu.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/grouped_gemm/pack_pieces.h"

namespace switchyard::ops {

/// What a packer of experts keeps beside them: for pieces of their stored bytes, and for what is
/// found about each row on the way. The widest row of tiles fits, however wide it is.
///
/// Units:   bytes; of each of two buffers.
struct PackerScratch {
  std::size_t staging = 0;  // on the device, and as much pinned host memory
  std::size_t marks = 0;    // on the device alone
  std::int64_t fc1_row_tiles = 1, fc2_row_tiles = 1;  // of one piece

  /// Of `shape`'s experts.
  static PackerScratch of(const FfnShape& shape, const ExpertLayout& layout);
  /// Of both buffers, on the device.
  std::size_t device_bytes() const { return 2 * (staging + marks); }
  /// Of both buffers, pinned on the host.
  std::size_t host_bytes() const { return 2 * staging; }
};

/// Packs canonical experts on the GPU: their stored bytes go up in pieces and are put in their
/// places there, so no packed expert ever stands on the host. The bytes are pack_expert_tiles()'s.
///
/// Belongs to the GPU that was current when it was built, and may be called from any thread, from
/// one at a time; several packers work beside each other.
/// Errors:  DeviceError when the device refuses, or when the build has no CUDA.
class ExpertPacker {
 public:
  /// Allocates its two buffers; `layout` is tile_expert_layout() of `shape`.
  ExpertPacker(const FfnShape& shape, const ExpertLayout& layout);
  /// Waits for its own work.
  ~ExpertPacker();
  ExpertPacker(const ExpertPacker&) = delete;
  ExpertPacker& operator=(const ExpertPacker&) = delete;

  /// Packs `expert` to `packed` [layout.bytes] in device memory; returns when all of it was read,
  /// which is before all is written: wait().
  ///
  /// Units:   as pack_expert().
  /// Errors:  UsageError when a matrix does not have the shape or layout that `shape` says.
  void pack(const checkpoint::ExpertWeights& expert, float fc2_input_scale, std::byte* packed);
  /// Waits until everything is written.
  void wait() const { stream_.wait(); }

 private:
  struct Target;
  void write_tail(const checkpoint::ExpertWeights& expert, float fc2_input_scale,
                  std::byte* packed);
  void write_matrix(const TileSources& sources, const Target& to);
  DeviceStaging& next() { return buffers_[turn_++ % buffers_.size()]; }

  HomeGpu gpu_;
  FfnShape shape_;
  ExpertLayout layout_;
  PackerScratch scratch_;
  std::array<DeviceStaging, 2> buffers_;
  std::size_t turn_ = 0;
  DeviceStream stream_;
};

}  // namespace switchyard::ops
