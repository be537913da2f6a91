// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "switchyard/core/problem.h"

namespace switchyard {

/// Names of the published shapes, in the order of the table.
std::vector<std::string> preset_names();
/// The published shape `name`, unquantised in bf16.
/// Errors: UsageError for an unknown name, with the near and the known ones.
Problem make_preset(std::string_view name);

}  // namespace switchyard
