// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

namespace switchyard::resolve {

/// Receives each warning as one line without a newline; called under a lock, so it must not warn.
using WarningSink = std::function<void(std::string_view)>;

/// Replaces the process-wide sink and returns the one before; an empty sink drops warnings, and is
/// what a process starts with, as the library never prints.
WarningSink set_warning_sink(WarningSink sink);
/// Hands `text` to the sink.
void warn(std::string_view text);
/// Hands `text` to the sink unless this process warned under `key` before.
void warn_once(std::string_view key, std::string_view text);
/// Forgets which keys were warned of, so that a test can start afresh.
void forget_warnings();

}  // namespace switchyard::resolve
