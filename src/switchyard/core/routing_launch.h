// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace switchyard {

/// Whether routing shares the launch that sorts and quantises a call's tokens on cuda, for reports.
struct RoutingLaunchReport {
  bool together = false;
  std::string reason;  // "together", or the name of why not: docs/tuning.md lists them
  std::string text;    // the same in a sentence
};

}  // namespace switchyard
