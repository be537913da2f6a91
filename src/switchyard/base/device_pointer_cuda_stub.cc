// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/device_pointer.h"

namespace switchyard {

bool device_can_read(const void*) { return false; }

}  // namespace switchyard
