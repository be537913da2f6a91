// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/probe_cuda.h"

namespace switchyard::resolve {

GpuFacts probe_gpus() { return {}; }

}  // namespace switchyard::resolve
