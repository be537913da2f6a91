// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/errors.h"
#include "switchyard/tune/device_roof.h"

namespace switchyard::tune {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("roof: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace

struct DeviceRoofMeter::Work {};

DeviceRoofMeter::DeviceRoofMeter() { refuse(); }
DeviceRoofMeter::DeviceRoofMeter(const void*, std::size_t) { refuse(); }
DeviceRoofMeter::~DeviceRoofMeter() = default;
void DeviceRoofMeter::sample(int) { refuse(); }

}  // namespace switchyard::tune
