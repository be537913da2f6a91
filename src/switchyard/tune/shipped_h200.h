// SPDX-License-Identifier: Apache-2.0
// Written by scripts/ship_tactics.py.
#pragma once

#include <string_view>

namespace switchyard::tune {

/// What was measured on an H200: the kernels' digest, and the build.
inline constexpr std::string_view kH200Kernels = "26dd18644552", kH200Build = "0.1.0+4f4df96436b6";

}  // namespace switchyard::tune
