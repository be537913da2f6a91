// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/allreduce_norm/device_launch.h"

namespace switchyard::ops::fused {

void launch_fp16(const FusedCall& c, bool wide, const Launch& launch, Stream stream) {
  wide ? launch_on<Fp16, F32>(c, launch, stream) : launch_on<Fp16, Fp16>(c, launch, stream);
}

}  // namespace switchyard::ops::fused
