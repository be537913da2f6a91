// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "switchyard/resolve/report.h"

namespace switchyard::resolve {

/// The complete report as canonical JSON: sorted keys, every field, numbers that read back exactly.
/// `indent` < 0 gives one line. Key `strategies` is absent while none were asked.
std::string to_json(const Report& report, int indent = -1);
/// The problem alone, in the same form.
std::string to_json(const Problem& problem, int indent = -1);
/// The environment alone, in the same form.
std::string to_json(const Environment& env, int indent = -1);

/// Inverse of to_json(); resolving the question that it holds gives the same report again.
/// Errors: UsageError naming the key for text that is no JSON, or a key that is missing, unknown,
/// of another type or out of range.
Report report_from_json(std::string_view text);
/// Inverse of to_json(problem). Errors: those of report_from_json().
Problem problem_from_json(std::string_view text);
/// Inverse of to_json(env). Errors: those of report_from_json().
Environment environment_from_json(std::string_view text);

}  // namespace switchyard::resolve
