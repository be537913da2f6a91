// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "switchyard/tune/roof.h"

namespace switchyard::tune {

/// What the current GPU reaches at best, measured: memory read by all multiprocessors, and bf16
/// matrix products of random data that stay in shared memory.
///
/// Errors:  DeviceError from every function when the device refuses, or when the build has no CUDA.
class DeviceRoofMeter {
 public:
  /// Reads memory of its own, 1 GiB of random bits.
  DeviceRoofMeter();
  /// Reads `memory`, which should be larger than the L2 cache; under 512 MiB its own as above.
  DeviceRoofMeter(const void* memory, std::size_t bytes);
  ~DeviceRoofMeter();
  DeviceRoofMeter(const DeviceRoofMeter&) = delete;
  DeviceRoofMeter& operator=(const DeviceRoofMeter&) = delete;

  /// Takes `count` more samples of both rates.
  void sample(int count);
  /// What was sampled so far.
  const RoofSamples& taken() const { return taken_; }

 private:
  struct Work;
  std::unique_ptr<Work> work_;
  RoofSamples taken_;
};

}  // namespace switchyard::tune
