// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/base/dtype.h"
#include "switchyard/formats/blocks.h"
#include "switchyard/formats/encode.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/matrix.h"
#include "switchyard/formats/mxfp4.h"
#include "switchyard/formats/mxfp8.h"
#include "switchyard/formats/nvfp4.h"

namespace switchyard::formats {
namespace {

/// What encodes one block: its scale's code, and the operand of the elements' rounding.
struct BlockScale {
  std::uint8_t code = 0;  // E8M0 and E4M3
  float value = 0;        // fp32 scales: what the elements are divided by
  float factor = 0;       // the others: what the elements are multiplied by
};

bool is_served(const WeightLayout& l) {
  switch (l.element) {
    case Element::kF32:
    case Element::kBf16:
    case Element::kFp16:
      return l.scale == ScaleType::kNone && !l.global_scale;
    case Element::kE4m3:
      return (l.scale == ScaleType::kF32 || l.scale == ScaleType::kE8m0) && !l.global_scale;
    case Element::kE2m1:
      return l.block_cols % 2 == 0 && ((l.scale == ScaleType::kE8m0 && !l.global_scale) ||
                                       (l.scale == ScaleType::kE4m3 && l.global_scale));
  }
  return false;
}

BlockScale choose_scale(const WeightLayout& layout, float amax, float g) {
  if (layout.scale == ScaleType::kF32)
    return {.value = fp8_weight_scale(amax, layout.power_of_two)};
  if (layout.scale == ScaleType::kE4m3) {
    std::uint8_t code = nvfp4_scale(amax, g);
    return {.code = code, .factor = nvfp4_multiplier(decode_e4m3(code), g)};
  }
  std::uint8_t code = layout.element == Element::kE2m1 ? mxfp4_scale(amax) : mxfp8_scale(amax);
  return {.code = code, .factor = amax == 0.0f ? 0.0f : reciprocal_e8m0(code)};
}

/// The matrix being written: a source, a layout and the two parts of the storage.
struct Target {
  const WeightLayout& layout;
  const float* values;
  std::int64_t rows, cols;
  float g;
  std::uint8_t* codes;
  std::uint8_t* scales;

  std::int64_t block_rows() const { return layout.block_rows == 0 ? rows : layout.block_rows; }
  std::int64_t block_cols() const { return layout.block_cols == 0 ? cols : layout.block_cols; }

  float amax(std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t count) const {
    std::uint32_t largest = 0;  // compared as bits, so that NaN wins
    for (std::int64_t r = r0; r < r1; ++r)
      largest = std::max(largest, float_bits(amax_of(values + r * cols + c0, count)));
    return bits_float(largest);
  }

  void encode(std::int64_t r, std::int64_t c0, std::int64_t count, const BlockScale& s) const {
    const float* x = values + r * cols + c0;
    std::uint8_t* row = codes + r * layout.row_bytes(cols);
    if (layout.element == Element::kE2m1) {
      encode_e2m1_times(x, count, s.factor, row + c0 / 2);
    } else if (layout.scale == ScaleType::kF32) {
      encode_e4m3_over(x, count, s.value, row + c0);
    } else {
      encode_e4m3_times(x, count, s.factor, row + c0);
    }
  }

  void store(std::int64_t index, const BlockScale& s) const {
    if (layout.scale == ScaleType::kF32) {
      memcpy(scales + index * 4, &s.value, 4);
    } else {
      scales[index] = s.code;
    }
  }
};

void quantize_blocks(const Target& t) {
  std::int64_t scale_cols = t.layout.scale_cols(t.cols), width = t.block_cols();
  std::int64_t index = 0;
  for (std::int64_t r0 = 0; r0 < t.rows; r0 += t.block_rows()) {
    std::int64_t r1 = std::min(r0 + t.block_rows(), t.rows);
    for (std::int64_t b = 0; b < scale_cols; ++b, ++index) {
      std::int64_t c0 = b * width, count = std::min(width, t.cols - c0);
      BlockScale scale = choose_scale(t.layout, t.amax(r0, r1, c0, count), t.g);
      t.store(index, scale);
      for (std::int64_t r = r0; r < r1; ++r) t.encode(r, c0, count, scale);
    }
  }
}

/// The two registered row formats go through their own quantisers, whose blocks are constants.
bool quantize_rows(const Target& t) {
  if (t.layout != kMxfp4Layout && t.layout != kNvfp4Layout && t.layout != kNvfp4WideLayout)
    return false;
  std::int64_t row_bytes = t.layout.row_bytes(t.cols), scale_cols = t.layout.scale_cols(t.cols);
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const float* x = t.values + r * t.cols;
    std::uint8_t *codes = t.codes + r * row_bytes, *scales = t.scales + r * scale_cols;
    if (t.layout.scale == ScaleType::kE8m0) {
      quantize_row_mxfp4(x, t.cols, codes, scales);
    } else {
      quantize_row_nvfp4({x, t.cols, t.layout.block_cols, t.g, codes, scales});
    }
  }
  return true;
}

void round_values(std::span<const float> values, Element element, std::byte* out) {
  Dtype type = element == Element::kF32    ? Dtype::kF32
               : element == Element::kBf16 ? Dtype::kBf16
                                           : Dtype::kFp16;
  for (std::size_t i = 0; i < values.size(); ++i)
    store_element(type, out, std::int64_t(i), values[i]);
}

void check_request(std::span<const float> values, std::int64_t rows, std::int64_t cols,
                   const WeightLayout& layout) {
  require(is_served(layout), "layout ", to_string(layout.element), " with ",
          to_string(layout.scale), " scales per ", layout.block_rows, " x ", layout.block_cols,
          layout.global_scale ? " and a global scale" : "",
          " has no quantiser; use one of the formats' layouts");
  require(rows >= 0 && cols >= 0 && std::int64_t(values.size()) == rows * cols, values.size(),
          " values for a matrix of ", rows, " x ", cols, "; pass rows x cols of them");
  require(layout.element != Element::kE2m1 || cols % 2 == 0, "a matrix of ", cols,
          " columns in 4 bits: two codes share a byte, so the width must be even; pad it");
}

}  // namespace

float finite_amax(std::span<const float> values) {
  float amax = amax_of(values.data(), std::int64_t(values.size()));
  if (float_bits(amax) < kInfinityBits) return amax;
  std::uint32_t largest = 0;
  for (float v : values) {
    std::uint32_t m = float_bits(v) & 0x7fffffffu;
    if (m < kInfinityBits) largest = std::max(largest, m);
  }
  return bits_float(largest);
}

Matrix quantize_matrix(std::span<const float> values, std::int64_t rows, std::int64_t cols,
                       const WeightLayout& layout) {
  return quantize_matrix(values, rows, cols, layout,
                         layout.global_scale ? finite_amax(values) : 0.0f);
}

Matrix quantize_matrix(std::span<const float> values, std::int64_t rows, std::int64_t cols,
                       const WeightLayout& layout, float global_amax) {
  check_request(values, rows, cols, layout);
  std::int64_t code_bytes = rows * layout.row_bytes(cols);
  std::int64_t scale_bytes =
      layout.scale_rows(rows) * layout.scale_cols(cols) * bytes_of(layout.scale);
  std::int64_t scale_begin = (code_bytes + 63) / 64 * 64;
  auto storage = std::make_shared<std::vector<std::byte>>(std::size_t(scale_begin + scale_bytes));
  std::byte* base = storage->data();
  Matrix m;
  m.layout = layout;
  m.rows = rows;
  m.cols = cols;
  m.codes = {base, std::size_t(code_bytes)};
  m.scales = {base + scale_begin, std::size_t(scale_bytes)};
  if (layout.global_scale) m.global_scale = nvfp4_global_scale(global_amax);
  if (layout.scale == ScaleType::kNone) {
    round_values(values, layout.element, base);
  } else {
    Target target{layout,
                  values.data(),
                  rows,
                  cols,
                  nvfp4_encode_scale(m.global_scale),
                  reinterpret_cast<std::uint8_t*>(base),
                  reinterpret_cast<std::uint8_t*>(base + scale_begin)};
    if (!quantize_rows(target)) quantize_blocks(target);
  }
  m.storage = std::move(storage);
  return m;
}

}  // namespace switchyard::formats
