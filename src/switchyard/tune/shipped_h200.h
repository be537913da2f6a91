// SPDX-License-Identifier: Apache-2.0
// Written by scripts/ship_tactics.py.
#pragma once

#include <string_view>

namespace switchyard::tune {

/// What was measured on an H200: the kernels' digest, and the build.
inline constexpr std::string_view kH200Kernels = "6fadd1818cf8", kH200Build = "0.1.0+badcc0c3c314";

}  // namespace switchyard::tune
