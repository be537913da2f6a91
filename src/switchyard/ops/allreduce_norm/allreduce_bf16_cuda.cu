// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/allreduce_norm/device_launch.h"

namespace switchyard::ops::fused {

void launch_bf16(const FusedCall& c, bool wide, const Launch& launch, Stream stream) {
  wide ? launch_on<Bf16, F32>(c, launch, stream) : launch_on<Bf16, Bf16>(c, launch, stream);
}

}  // namespace switchyard::ops::fused
