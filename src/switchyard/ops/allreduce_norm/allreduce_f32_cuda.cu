// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/allreduce_norm/device_launch.h"

namespace switchyard::ops::fused {

void launch_f32(const FusedCall& c, bool, const Launch& launch, Stream stream) {
  launch_on<F32, F32>(c, launch, stream);
}

}  // namespace switchyard::ops::fused
