// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace switchyard {

/// Whether anything stands at `path`, links followed.
/// Errors:  UsageError when the system does not say: a folder on the way that may not be entered, a
///          part of the path that is a file, links in a circle, a name that is too long. And for a
///          link that leads nowhere, which is no absent file to whoever listed the folder.
bool stands_at(const std::string& path);

/// What the failure `error` (an errno) of looking at `path` says: false when nothing stands there.
/// Errors:  UsageError for every other failure, with the system's word for it.
bool stands_despite(int error, const std::string& path);

}  // namespace switchyard
