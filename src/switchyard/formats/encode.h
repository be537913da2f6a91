// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace switchyard::formats {

/// codes[i] = e4m3(x[i] * factor); a factor of 0 gives codes 0 for either sign, NaN gives 0x7F.
///
/// Shapes:  x, codes [count].
void encode_e4m3_times(const float* x, std::int64_t count, float factor, std::uint8_t* codes);

/// codes[i] = e4m3(x[i] / divisor), IEEE division; a divisor that is NaN or infinite gives 0x7F for
/// every value (the signs of such quotients differ between processors).
///
/// Shapes:  x, codes [count].
void encode_e4m3_over(const float* x, std::int64_t count, float divisor, std::uint8_t* codes);

/// Packs e2m1(x[i] * factor), even i in the low nibble; a factor of 0 gives +0 codes for either
/// sign.
///
/// Shapes:  x [count], count even; codes [count / 2].
void encode_e2m1_times(const float* x, std::int64_t count, float factor, std::uint8_t* codes);

}  // namespace switchyard::formats
