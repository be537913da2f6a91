// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/plan.h"

#include "switchyard/base/nearest.h"

namespace switchyard {

std::string_view to_string(SelectedBy s) {
  switch (s) {
    case SelectedBy::kPinned:
      return "pinned";
    case SelectedBy::kPreferred:
      return "preferred";
    case SelectedBy::kDefault:
      return "default";
    case SelectedBy::kFailed:
      return "failed";
  }
  throw InternalError(cat("selection ", int(s), " has no text"));
}

SelectedBy to_selected_by(std::string_view s) {
  return to_enum(
      "selection", s,
      {SelectedBy::kPinned, SelectedBy::kPreferred, SelectedBy::kDefault, SelectedBy::kFailed});
}

}  // namespace switchyard
