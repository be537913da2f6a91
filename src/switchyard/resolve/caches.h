// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::resolve {

/// What the last-level caches of `cpus` hold together, each counted once, by the kernel's folder
/// `root` (/sys/devices/system/cpu). 0 where it says nothing of some of them.
///
/// Units:   bytes.
std::int64_t last_level_bytes(const std::string& root, const std::vector<int>& cpus);

}  // namespace switchyard::resolve
