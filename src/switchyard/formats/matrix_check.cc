// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>

#include "switchyard/base/check.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/e8m0.h"
#include "switchyard/formats/matrix.h"
#include "switchyard/formats/static_scale.h"

namespace switchyard::formats {
namespace {

/// True for a product of non-negative factors that leaves 63 bits.
bool overflows(std::int64_t a, std::int64_t b) {
  return a != 0 && b > std::numeric_limits<std::int64_t>::max() / a;
}

void check_sizes(const Matrix& m, std::string_view what) {
  require(m.rows >= 0 && m.cols >= 0, what, ": the shape is [", m.rows, ", ", m.cols,
          "]; extents must not be negative");
  require(m.layout.element != Element::kE2m1 || m.cols % 2 == 0, what, ": ", m.cols,
          " columns of 4-bit codes; two codes share a byte, so the width must be even");
  require(m.layout.block_rows >= 0 && m.layout.block_cols >= 0, what, ": scale blocks of ",
          m.layout.block_rows, " x ", m.layout.block_cols, "; extents must not be negative");
  require(!overflows(m.rows, m.cols) && !overflows(m.rows * m.cols, 8), what, ": the shape [",
          m.rows, ", ", m.cols, "] has more bytes than 64 bits can count");
  std::int64_t code_bytes = m.rows * m.layout.row_bytes(m.cols);
  require(std::int64_t(m.codes.size()) == code_bytes, what, ": ", m.codes.size(),
          " bytes of codes, but [", m.rows, ", ", m.cols, "] in ", to_string(m.layout.element),
          " takes ", code_bytes, "; check the tensor's shape and element type");
  std::int64_t scale_rows = m.layout.scale_rows(m.rows), scale_cols = m.layout.scale_cols(m.cols);
  std::int64_t scale_bytes = scale_rows * scale_cols * bytes_of(m.layout.scale);
  require(std::int64_t(m.scales.size()) == scale_bytes, what, ": ", m.scales.size(),
          " bytes of scales, but a grid of ", scale_rows, " x ", scale_cols, " in ",
          to_string(m.layout.scale), " takes ", scale_bytes,
          "; a partial last block has a scale of its own");
}

/// True when one of the bytes is a scale that check() refuses; no early exit, so that it
/// vectorises.
bool has_bad_byte(std::span<const std::byte> scales, ScaleType type) {
  unsigned bad = 0;
  unsigned limit = type == ScaleType::kE8m0 ? 255 : 0x7f;  // NaN; above 0x7f the sign is set
  for (std::byte b : scales) bad |= unsigned(unsigned(b) >= limit);
  return bad != 0;
}

float scale_at(const Matrix& m, std::int64_t i) {
  if (m.layout.scale == ScaleType::kF32) {
    float f;
    memcpy(&f, m.scales.data() + i * 4, 4);
    return f;
  }
  auto code = std::uint8_t(m.scales[std::size_t(i)]);
  return m.layout.scale == ScaleType::kE8m0 ? decode_e8m0(code) : decode_e4m3(code);
}

void check_scale(float scale, std::string_view what, std::string_view which) {
  require(!std::isnan(scale) && !std::isinf(scale) && !std::signbit(scale), what, ": ", which,
          " is ", scale,
          "; a scale must be finite and must not be negative, so the tensor is "
          "damaged or of another layout");
}

void check_block_scales(const Matrix& m, std::string_view what) {
  bool bytes = bytes_of(m.layout.scale) == 1;
  if (bytes && !has_bad_byte(m.scales, m.layout.scale)) return;
  std::int64_t cols = m.layout.scale_cols(m.cols);
  std::int64_t count = m.layout.scale_rows(m.rows) * cols;
  for (std::int64_t i = 0; i < count; ++i) {
    float scale = scale_at(m, i);
    if (!(scale >= 0) || std::signbit(scale) || std::isinf(scale))
      check_scale(scale, what, cat("the block scale at row ", i / cols, ", column ", i % cols));
  }
}

}  // namespace

void Matrix::check(std::string_view what) const {
  check_sizes(*this, what);
  check_block_scales(*this, what);
  check_scale(global_scale, what, "the global scale");
  ensure(layout.global_scale || global_scale == 1, what, ": a global scale of ", global_scale,
         " in a layout that has none");
  if (!input_scale) return;
  check_scale(*input_scale, what, "the input scale");
  require(serves_as_static_scale(*input_scale), what, ": the input scale is ", *input_scale,
          "; activations are divided by it, so it must be from 2^-126 to 2^126");
}

}  // namespace switchyard::formats
