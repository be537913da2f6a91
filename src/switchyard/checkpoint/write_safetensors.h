// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/checkpoint/tensor.h"

namespace switchyard::checkpoint {

/// A tensor to be written.
///
/// Shapes:  bytes [shape] row-major in `type`.
struct NamedTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

/// Writes `tensors` as one safetensors file whose __metadata__ has `format`, the kind of file it
/// is; whether `out` took them is the caller's to ask. Errors:  InternalError for bytes that are
/// not the shape's, or a name that comes twice.
void write_safetensors(std::ostream& out, const std::vector<NamedTensor>& tensors,
                       std::string_view format);

}  // namespace switchyard::checkpoint
