// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/errors.h"
#include "switchyard/ops/activation/activation.h"

namespace switchyard::ops {

void activation_cuda(const ActivationArgs& args, Stream) {
  args.check();
  throw DeviceError("activation: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace switchyard::ops
