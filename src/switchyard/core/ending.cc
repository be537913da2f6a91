// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/ending.h"

#include "switchyard/base/nearest.h"

namespace switchyard {

std::string_view to_string(Ending e) {
  return e == Ending::kPlain ? "plain" : e == Ending::kFused ? "fused" : "reduce";
}

Ending to_ending(std::string_view s) {
  return to_enum("finalize", s, {Ending::kPlain, Ending::kFused, Ending::kReduce});
}

}  // namespace switchyard
