// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "switchyard/base/host_buffer.h"
#include "switchyard/formats/blocks.h"
#include "switchyard/formats/matrix.h"

namespace switchyard::formats {
namespace {

constexpr std::int64_t kChunkRows = 128;

/// Whole scale blocks of rows, so that a chunk's scales are the matrix' own.
std::int64_t chunk_rows(const WeightLayout& layout, std::int64_t rows) {
  if (layout.block_rows == 0) return std::max<std::int64_t>(1, rows);
  return (kChunkRows + layout.block_rows - 1) / layout.block_rows * layout.block_rows;
}

void decode_rows(const Matrix& m, std::int64_t begin, std::int64_t count, std::vector<float>& out) {
  out.resize(std::size_t(count * m.cols));
  for (std::int64_t r = 0; r < count; ++r)
    m.decode_row(begin + r, std::span(out).subspan(std::size_t(r * m.cols), std::size_t(m.cols)));
}

}  // namespace

Matrix convert_matrix(const Matrix& source, const WeightLayout& layout) {
  const std::int64_t step = chunk_rows(layout, source.rows), cols = source.cols;
  std::vector<float> values;
  float amax = 0;
  for (std::int64_t r = 0; layout.global_scale && r < source.rows; r += step) {
    decode_rows(source, r, std::min(step, source.rows - r), values);
    amax = std::max(amax, finite_amax(values));
  }
  const std::int64_t code_bytes = source.rows * layout.row_bytes(cols);
  const std::int64_t scale_row = layout.scale_cols(cols) * bytes_of(layout.scale);
  // A mapping of its own goes back to the system at once; freed heap blocks of this size would stay
  // beside the packed layer.
  auto storage = std::make_shared<HostBuffer>(
      std::size_t(code_bytes + layout.scale_rows(source.rows) * scale_row));
  std::byte *codes = storage->data(), *scales = codes + code_bytes;
  Matrix out = quantize_matrix({}, 0, cols, layout, amax);
  for (std::int64_t r = 0; r < source.rows; r += step) {
    const std::int64_t count = std::min(step, source.rows - r);
    decode_rows(source, r, count, values);
    const Matrix part = quantize_matrix(values, count, cols, layout, amax);
    codes = std::copy(part.codes.begin(), part.codes.end(), codes);
    scales = std::copy(part.scales.begin(), part.scales.end(), scales);
  }
  out.rows = source.rows;
  out.codes = storage->bytes().first(std::size_t(code_bytes));
  out.scales = storage->bytes().subspan(std::size_t(code_bytes));
  out.storage = std::move(storage);
  return out;
}

}  // namespace switchyard::formats
