// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "switchyard/core/environment.h"
#include "switchyard/tune/table.h"

namespace switchyard {

/// A table without entries, of this build on this machine.
tune::TuningTable table_here(const Environment& env);

/// What a layer on this machine's GPU has to say of choices that ship and are not used there; empty
/// where there is nothing.
std::string shipped_notice(const Environment& env);

/// The tuned choices for layers of this process: those of the table at `path`, unless that is
/// empty, and behind them those that ship with the library for this machine.
/// Errors: UsageError for a file that is no table, or one of another machine or build.
std::shared_ptr<const tune::TacticBook> tuned_choices(const Environment& env,
                                                      const std::string& path);

}  // namespace switchyard
