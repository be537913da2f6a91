// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "switchyard/formats/matrix.h"

namespace switchyard::test {

/// A matrix of E2M1 with every code in every block; scale codes by row and block.
template <class ScaleCode>
formats::Matrix coded_matrix(const formats::WeightLayout& layout, std::int64_t rows,
                             std::int64_t cols, ScaleCode&& scale_code) {
  struct Bytes {
    std::vector<std::byte> codes, scales;
  };
  auto bytes = std::make_shared<Bytes>();
  const std::int64_t row_bytes = cols / 2;
  for (std::int64_t i = 0; i < rows * row_bytes; ++i)
    bytes->codes.push_back(std::byte((37 * i + i / row_bytes) & 0xff));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t b = 0; b < cols / layout.block_cols; ++b)
      bytes->scales.push_back(std::byte(scale_code(r, b)));
  formats::Matrix m = formats::quantize_matrix(std::vector<float>(std::size_t(rows * cols), 1.0f),
                                               rows, cols, layout);
  m.codes = bytes->codes;
  m.scales = bytes->scales;
  m.global_scale = 1;
  m.storage = bytes;
  return m;
}

}  // namespace switchyard::test
