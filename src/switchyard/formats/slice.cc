// SPDX-License-Identifier: Apache-2.0
#include "switchyard/formats/slice.h"

#include <cstring>

#include "switchyard/base/check.h"

namespace switchyard::formats {
namespace {

void check_cut(const char* axis, std::int64_t begin, std::int64_t size, std::int64_t extent,
               std::int64_t block) {
  ensure(begin >= 0 && size >= 0 && begin + size <= extent, "slice of ", axis, " [", begin, ", ",
         begin + size, ") outside ", extent);
  require(block <= 1 || (begin % block == 0 && (size % block == 0 || begin + size == extent)),
          "a slice of ", axis, " [", begin, ", ", begin + size, ") cuts a scale block of ", block,
          "; choose a cut on a multiple of it");
}

}  // namespace

Matrix slice_rows(const Matrix& m, std::int64_t begin, std::int64_t size) {
  const bool scaled = m.layout.scale != ScaleType::kNone;
  check_cut("rows", begin, size, m.rows, scaled ? m.layout.block_rows : 1);
  Matrix out = m;
  out.rows = size;
  const std::size_t row_bytes = std::size_t(m.cols * bits_of(m.layout.element) / 8);
  out.codes = m.codes.subspan(std::size_t(begin) * row_bytes, std::size_t(size) * row_bytes);
  if (!scaled || m.layout.block_rows == 0) return out;
  const std::size_t scale_bytes =
      std::size_t(m.layout.scale_cols(m.cols)) * std::size_t(bytes_of(m.layout.scale));
  out.scales = m.scales.subspan(std::size_t(begin / m.layout.block_rows) * scale_bytes,
                                std::size_t(m.layout.scale_rows(size)) * scale_bytes);
  return out;
}

Matrix slice_cols(const Matrix& m, std::int64_t begin, std::int64_t size) {
  const bool scaled = m.layout.scale != ScaleType::kNone;
  check_cut("columns", begin, size, m.cols, scaled ? m.layout.block_cols : 1);
  const int bits = bits_of(m.layout.element);
  require(begin * bits % 8 == 0 && size * bits % 8 == 0, "a slice of columns [", begin, ", ",
          begin + size, ") cuts a byte of ", bits, "-bit codes; use even columns");
  const std::int64_t block = scaled ? m.layout.block_cols : 0, s = bytes_of(m.layout.scale);
  const std::int64_t scale_rows = scaled ? m.layout.scale_rows(m.rows) : 0;
  const std::int64_t old_cols = scaled ? m.layout.scale_cols(m.cols) : 0;
  const std::int64_t new_cols = scaled ? m.layout.scale_cols(size) : 0;
  const std::int64_t row_bytes = m.cols * bits / 8, new_bytes = size * bits / 8;
  auto storage = std::make_shared<std::vector<std::byte>>(
      std::size_t(m.rows * new_bytes + scale_rows * new_cols * s));
  std::byte* at = storage->data();
  for (std::int64_t r = 0; r < m.rows; ++r, at += new_bytes)
    std::memcpy(at, m.codes.data() + r * row_bytes + begin * bits / 8, std::size_t(new_bytes));
  for (std::int64_t r = 0; r < scale_rows; ++r, at += new_cols * s)
    std::memcpy(at, m.scales.data() + (r * old_cols + (block > 0 ? begin / block : 0)) * s,
                std::size_t(new_cols * s));
  Matrix out = m;
  out.cols = size;
  const std::size_t code_bytes = std::size_t(m.rows * new_bytes);
  out.codes = std::span(*storage).first(code_bytes);
  out.scales = std::span(*storage).subspan(code_bytes);
  out.storage = std::move(storage);
  return out;
}

}  // namespace switchyard::formats
