// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace switchyard::formats {

/// Whether activations can be divided by `scale` and multiplied by it again: a normal number whose
/// reciprocal is one too.
constexpr bool serves_as_static_scale(float scale) {
  return scale >= 0x1p-126f && scale <= 0x1p126f;  // false for NaN
}

}  // namespace switchyard::formats
