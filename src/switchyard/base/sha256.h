// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

/// The SHA-256 digest of `bytes` as 64 lower-case hex digits.
///
/// Source: FIPS 180-4.
std::string sha256_hex(std::string_view bytes);

}  // namespace switchyard
