// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/errors.h"
#include "switchyard/tune/device_roof.h"

namespace switchyard::tune {

Roof measure_device_roof(const void*, std::size_t) {
  throw DeviceError("roof: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace switchyard::tune
