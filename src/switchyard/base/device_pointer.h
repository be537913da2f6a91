// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace switchyard {

/// Whether kernels of the current CUDA device may read `p`: its own, managed or pinned memory.
/// False for other host memory, for another GPU's, and in a build without CUDA.
bool device_can_read(const void* p);

}  // namespace switchyard
