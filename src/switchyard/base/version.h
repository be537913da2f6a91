// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace switchyard {

/// The library's semantic version, e.g. "0.1.0".
std::string_view version();
/// The commit it was configured from, 12 hex digits, or "unknown" outside a repository.
std::string_view commit();
/// The twins compiled into this build, e.g. "cpu portable, cpu avx512".
std::string_view twins();
/// A digest of the sources of the GPU's tile kernels, 12 hex digits: times that were measured with
/// other ones say nothing of these.
std::string_view tile_kernels();

}  // namespace switchyard
