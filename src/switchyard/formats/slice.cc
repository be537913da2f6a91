// SPDX-License-Identifier: Apache-2.0
#include "switchyard/formats/slice.h"

#include <cstring>
#include <numeric>

#include "switchyard/base/check.h"

namespace switchyard::formats {
namespace {

void check_cut(const char* axis, std::int64_t begin, std::int64_t size, std::int64_t extent) {
  ensure(begin >= 0 && size >= 0 && begin + size <= extent, "slice of ", axis, " [", begin, ", ",
         begin + size, ") outside ", extent);
}

/// Blocks with a boundary at `begin` that each lie inside one of `block`; 0 stays the whole extent.
std::int64_t refined(std::int64_t block, std::int64_t begin) { return std::gcd(block, begin); }

std::int64_t scale_row_bytes(const WeightLayout& layout, std::int64_t cols) {
  return layout.scale_cols(cols) * bytes_of(layout.scale);
}

/// The scales of columns [begin, begin + size) of one row of scales.
void copy_scales(const Matrix& m, const Matrix& slice, std::int64_t begin, const std::byte* from,
                 std::byte* to) {
  const std::int64_t fine = slice.layout.block_cols, coarse = m.layout.block_cols;
  const std::int64_t bytes = bytes_of(m.layout.scale), count = slice.layout.scale_cols(slice.cols);
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t at = coarse == 0 ? 0 : (begin + b * fine) / coarse;
    std::memcpy(to + b * bytes, from + at * bytes, std::size_t(bytes));
  }
}

}  // namespace

WeightLayout layout_from_row(WeightLayout layout, std::int64_t begin) {
  if (layout.block_rows > 0) layout.block_rows = refined(layout.block_rows, begin);
  return layout;
}

WeightLayout layout_from_col(WeightLayout layout, std::int64_t begin) {
  if (layout.block_cols > 0) layout.block_cols = refined(layout.block_cols, begin);
  return layout;
}

Matrix slice_rows(const Matrix& m, std::int64_t begin, std::int64_t size) {
  check_cut("rows", begin, size, m.rows);
  Matrix out = m;
  out.rows = size;
  out.layout = layout_from_row(m.layout, begin);
  const std::size_t row_bytes = std::size_t(m.layout.row_bytes(m.cols));
  out.codes = m.codes.subspan(std::size_t(begin) * row_bytes, std::size_t(size) * row_bytes);
  if (m.layout.scale == ScaleType::kNone || m.layout.block_rows == 0) return out;
  const std::int64_t fine = out.layout.block_rows, coarse = m.layout.block_rows;
  const std::int64_t count = out.layout.scale_rows(size);
  const std::size_t bytes = std::size_t(scale_row_bytes(m.layout, m.cols));
  if (fine == coarse) {
    out.scales = m.scales.subspan(std::size_t(begin / coarse) * bytes, std::size_t(count) * bytes);
    return out;
  }
  struct Owned {
    std::shared_ptr<const void> codes;
    std::vector<std::byte> scales;
  };
  auto owned = std::make_shared<Owned>();
  owned->codes = m.storage;
  for (std::int64_t b = 0; b < count; ++b) {
    const std::byte* from = m.scales.data() + std::size_t((begin + b * fine) / coarse) * bytes;
    owned->scales.insert(owned->scales.end(), from, from + bytes);
  }
  out.scales = owned->scales;
  out.storage = std::move(owned);
  return out;
}

Matrix slice_cols(const Matrix& m, std::int64_t begin, std::int64_t size) {
  check_cut("columns", begin, size, m.cols);
  const int bits = bits_of(m.layout.element);
  require(begin * bits % 8 == 0 && size * bits % 8 == 0, "a slice of columns [", begin, ", ",
          begin + size, ") cuts a byte of ", bits, "-bit codes; use even columns");
  Matrix out = m;
  out.cols = size;
  out.layout = layout_from_col(m.layout, begin);
  const std::int64_t row_bytes = m.layout.row_bytes(m.cols), new_bytes = size * bits / 8;
  const std::int64_t scale_rows = m.layout.scale_rows(m.rows);
  const std::int64_t old_scales = scale_row_bytes(m.layout, m.cols);
  const std::int64_t new_scales = scale_row_bytes(out.layout, size);
  auto storage = std::make_shared<std::vector<std::byte>>(
      std::size_t(m.rows * new_bytes + scale_rows * new_scales));
  std::byte* at = storage->data();
  for (std::int64_t r = 0; r < m.rows && new_bytes > 0; ++r, at += new_bytes)
    std::memcpy(at, m.codes.data() + r * row_bytes + begin * bits / 8, std::size_t(new_bytes));
  for (std::int64_t r = 0; r < scale_rows; ++r, at += new_scales)
    copy_scales(m, out, begin, m.scales.data() + r * old_scales, at);
  const std::size_t code_bytes = std::size_t(m.rows * new_bytes);
  out.codes = std::span(*storage).first(code_bytes);
  out.scales = std::span(*storage).subspan(code_bytes);
  out.storage = std::move(storage);
  return out;
}

}  // namespace switchyard::formats
