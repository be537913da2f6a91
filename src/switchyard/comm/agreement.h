// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "switchyard/comm/group.h"

namespace switchyard::comm {

/// The values as one text, which a rank sends to the others.
/// Errors: InternalError for a name or value that holds a tab or a line end.
std::string agreed_text(std::span<const Agreed> values);

/// Judges every rank's agreed_text(), in rank order: what agree() throws.
/// Errors: UsageError with both sides, when a name or value differs.
void compare_agreed(std::span<const std::string> all, std::string_view phase);

/// The ranks' errors, in rank order and "" for a rank without one, as one line: each text once,
/// behind those who say it, e.g. "all 4 ranks: no memory" or "ranks 1, 3: no memory". At most 8
/// texts, then how many ranks say others. "" when nobody has an error.
std::string joined_errors(std::span<const std::string> all);

}  // namespace switchyard::comm
