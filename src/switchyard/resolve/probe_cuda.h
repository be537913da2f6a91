// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::resolve {

/// A GPU that cannot address another one's memory.
struct PeerGap {
  int gpu = 0, peer = 0;
};

/// What the CUDA runtime says of this machine.
struct GpuFacts {
  bool built = false;  // was this library compiled with its CUDA twins?
  int num_gpus = 0;
  int sm = 0;                                   // of device 0, e.g. 90; 0 without a GPU
  std::int64_t l2_bytes = 0, memory_bytes = 0;  // of device 0
  std::string name = {};                        // of device 0, as the driver names it
  std::vector<PeerGap> gaps = {};               // among all GPUs
};

/// Asks the CUDA runtime; a build without CUDA answers that it has none. A machine without a GPU or
/// a driver is no error. For the probe, and for benchmarks, which size what they read by it.
GpuFacts probe_gpus();

}  // namespace switchyard::resolve
