// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "switchyard/tune/roof.h"

namespace switchyard::tune {

/// What the current GPU reaches at best, measured: `memory` read by all multiprocessors, and bf16
/// matrix products of data in shared memory. `memory` should be larger than the L2 cache; under
/// 512 MiB a buffer of 1 GiB is made instead.
///
/// Errors:  DeviceError when the device refuses, or when the build has no CUDA.
Roof measure_device_roof(const void* memory, std::size_t bytes);

}  // namespace switchyard::tune
