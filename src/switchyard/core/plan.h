// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "switchyard/core/deployment.h"
#include "switchyard/core/problem.h"

namespace switchyard {

/// How a leaf came to win.
enum class SelectedBy : std::uint8_t { kPinned, kPreferred, kDefault, kFailed };

/// "pinned", "preferred", "default" or "failed".
std::string_view to_string(SelectedBy s);
/// Inverse of to_string(). Errors: UsageError on any other word.
SelectedBy to_selected_by(std::string_view s);

/// What a layer is to run, as the resolver decided it; a trace of what ran is compared with this.
struct Plan {
  Problem problem;
  Deployment deployment;  // its device is the leaf's
  std::string leaf;       // complete identity
  SelectedBy selected_by = SelectedBy::kDefault;
  std::string fingerprint;

  bool operator==(const Plan&) const = default;
};

}  // namespace switchyard
