// SPDX-License-Identifier: Apache-2.0
#include "switchyard/formats/matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/base/dtype.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/e8m0.h"

namespace switchyard::formats {
namespace {

std::int64_t blocks(std::int64_t extent, std::int64_t block) {
  return block == 0 ? 1 : (extent + block - 1) / block;
}

template <class T>
T load(std::span<const std::byte> bytes, std::int64_t i) {  // mappings are not always aligned
  T value;
  memcpy(&value, bytes.data() + std::size_t(i) * sizeof(T), sizeof(T));
  return value;
}

float load_scale(const Matrix& m, std::int64_t index) {
  switch (m.layout.scale) {
    case ScaleType::kNone:
      return 1;
    case ScaleType::kF32:
      return load<float>(m.scales, index);
    case ScaleType::kE8m0:
      return decode_e8m0(load<std::uint8_t>(m.scales, index));
    case ScaleType::kE4m3:
      return decode_e4m3(load<std::uint8_t>(m.scales, index));
  }
  throw InternalError(cat("scale type ", int(m.layout.scale), " is not one of the enum's"));
}

float load_code(const Matrix& m, std::int64_t r, std::int64_t c) {
  std::int64_t index = r * m.cols + c;
  switch (m.layout.element) {
    case Element::kF32:
      return load<float>(m.codes, index);
    case Element::kBf16:
      return bf16_to_float(load<std::uint16_t>(m.codes, index));
    case Element::kFp16:
      return fp16_to_float(load<std::uint16_t>(m.codes, index));
    case Element::kE4m3:
      return decode_e4m3(load<std::uint8_t>(m.codes, index));
    case Element::kE2m1:
      break;
  }
  std::uint8_t byte = load<std::uint8_t>(m.codes, r * m.layout.row_bytes(m.cols) + c / 2);
  return decode_e2m1(std::uint8_t(byte >> (c % 2 * 4)));
}

const std::array<float, 256>& e4m3_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t;
    for (int code = 0; code < 256; ++code) t[std::size_t(code)] = decode_e4m3(std::uint8_t(code));
    return t;
  }();
  return table;
}

using NibblePair = std::array<float, 2>;

const std::array<NibblePair, 256>& e2m1_table() {
  static const std::array<NibblePair, 256> table = [] {
    std::array<NibblePair, 256> t;
    for (int byte = 0; byte < 256; ++byte)
      t[std::size_t(byte)] = {decode_e2m1(std::uint8_t(byte)),
                              decode_e2m1(std::uint8_t(byte >> 4))};
    return t;
  }();
  return table;
}

/// out[i] = element x scale x global. With fp32 scales `global` is 1, with the others the first
/// product is exact: one rounding either way.
void decode_bytes(const std::uint8_t* codes, float scale, float global, std::span<float> out) {
  const auto& table = e4m3_table();
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = table[codes[i]] * scale * global;
}

void decode_nibbles(const std::uint8_t* codes, float scale, float global, std::span<float> out) {
  const auto& table = e2m1_table();
  for (std::size_t i = 0; i < out.size() / 2; ++i) {
    NibblePair pair = table[codes[i]];
    out[2 * i] = pair[0] * scale * global;
    out[2 * i + 1] = pair[1] * scale * global;
  }
}

void decode_floats(const Matrix& m, std::int64_t r, std::span<float> out) {
  std::span<const std::byte> row = m.codes.subspan(std::size_t(r * m.layout.row_bytes(m.cols)));
  auto fill = [&](auto decode) {
    for (std::int64_t c = 0; c < m.cols; ++c) out[std::size_t(c)] = decode(c);
  };
  if (m.layout.element == Element::kF32) {
    if (!out.empty())
      memcpy(out.data(), row.data(), out.size_bytes());  // an empty shard has no row
  } else if (m.layout.element == Element::kBf16) {
    fill([&](std::int64_t c) { return bf16_to_float(load<std::uint16_t>(row, c)); });
  } else {
    fill([&](std::int64_t c) { return fp16_to_float(load<std::uint16_t>(row, c)); });
  }
}

/// True when a row can be decoded block by block with one rounding.
bool has_fast_decode(const WeightLayout& l) {
  if (l.element == Element::kE2m1 && l.block_cols % 2 != 0) return false;
  if (bits_of(l.element) >= 16) return l.scale == ScaleType::kNone && !l.global_scale;
  return !(l.scale == ScaleType::kF32 && l.global_scale);
}

void decode_blocks(const Matrix& m, std::int64_t r, std::span<float> out) {
  const WeightLayout& layout = m.layout;
  bool nibbles = layout.element == Element::kE2m1;
  std::int64_t width = layout.block_cols == 0 ? m.cols : layout.block_cols;
  std::int64_t scale_row = layout.block_rows == 0 ? 0 : r / layout.block_rows;
  std::int64_t first_scale = scale_row * layout.scale_cols(m.cols);
  auto* row = reinterpret_cast<const std::uint8_t*>(m.codes.data()) + r * layout.row_bytes(m.cols);
  for (std::int64_t begin = 0, b = 0; begin < m.cols; begin += width, ++b) {
    float scale = load_scale(m, first_scale + b);
    auto part = out.subspan(std::size_t(begin), std::size_t(std::min(width, m.cols - begin)));
    if (nibbles) {
      decode_nibbles(row + begin / 2, scale, m.global_scale, part);
    } else {
      decode_bytes(row + begin, scale, m.global_scale, part);
    }
  }
}

}  // namespace

std::string_view to_string(Element e) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "fp16", "e4m3", "e2m1"};
  return kNames[int(e)];
}

std::string_view to_string(ScaleType s) {
  constexpr std::string_view kNames[] = {"none", "f32", "e8m0", "e4m3"};
  return kNames[int(s)];
}

std::string_view to_string(ActivationQuant q) {
  constexpr std::string_view kNames[] = {"none",      "f32",        "fp8_1x128", "fp8_1x128_ue8m0",
                                         "fp8_token", "fp8_tensor", "mxfp8",     "nvfp4"};
  return kNames[int(q)];
}

std::int64_t WeightLayout::scale_rows(std::int64_t rows) const {
  return scale == ScaleType::kNone ? 0 : blocks(rows, block_rows);
}

std::int64_t WeightLayout::scale_cols(std::int64_t cols) const {
  return scale == ScaleType::kNone ? 0 : blocks(cols, block_cols);
}

std::int64_t WeightLayout::row_bytes(std::int64_t cols) const {
  return element == Element::kE2m1 ? (cols + 1) / 2 : cols * (bits_of(element) / 8);
}

std::int64_t WeightLayout::stored_bytes(std::int64_t rows, std::int64_t cols) const {
  return rows * row_bytes(cols) + scale_rows(rows) * scale_cols(cols) * bytes_of(scale) +
         (global_scale ? 4 : 0);
}

double Matrix::value(std::int64_t r, std::int64_t c) const {
  ensure(r >= 0 && r < rows && c >= 0 && c < cols, "weight (", r, ", ", c, ") of a matrix of ",
         rows, " x ", cols);
  double code = load_code(*this, r, c);
  if (layout.scale == ScaleType::kNone) return code * double(global_scale);
  std::int64_t scale_row = layout.block_rows == 0 ? 0 : r / layout.block_rows;
  std::int64_t scale_col = layout.block_cols == 0 ? 0 : c / layout.block_cols;
  double scale = load_scale(*this, scale_row * layout.scale_cols(cols) + scale_col);
  return code * scale * double(global_scale);
}

void Matrix::decode_row(std::int64_t r, std::span<float> out) const {
  ensure(r >= 0 && r < rows && std::int64_t(out.size()) == cols, "row ", r, " into ", out.size(),
         " values, of a matrix of ", rows, " x ", cols);
  if (!has_fast_decode(layout)) {
    for (std::int64_t c = 0; c < cols; ++c) out[std::size_t(c)] = float(value(r, c));
  } else if (bits_of(layout.element) >= 16) {
    decode_floats(*this, r, out);
  } else {
    decode_blocks(*this, r, out);
  }
}

}  // namespace switchyard::formats
