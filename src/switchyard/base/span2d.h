// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/host_device.h"

namespace switchyard {

/// A row-major view with its own row stride.
///
/// Shapes:  [rows, cols]; row r starts at data + r * stride; stride >= cols; rows may be 0.
/// Units:   elements of T.
template <class T>
struct Span2d {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  SWITCHYARD_HD T* row(std::int64_t r) const { return data + r * stride; }
};

}  // namespace switchyard
