// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "switchyard/eplb/placement.h"

namespace switchyard::eplb {

/// A placement as a file's text: JSON with format "switchyard.placement", version 1, num_experts,
/// num_slots, num_ranks, and layers [num_layers][num_slots] of expert ids.
std::string placement_text(const Placement& placement);
/// Its inverse, strict: every key must be there, and no other.
/// Errors: UsageError naming `where` and the key, or as Placement::check.
Placement parse_placement(std::string_view text, std::string_view where);

/// Writes a placement file whole, or leaves what was there. Errors: UsageError naming `path`.
void write_placement(const Placement& placement, const std::string& path);
/// Reads and checks one. Errors: as parse_placement.
Placement read_placement(const std::string& path);

}  // namespace switchyard::eplb
