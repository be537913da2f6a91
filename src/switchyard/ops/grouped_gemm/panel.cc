// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/panel.h"

#include <algorithm>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/ops/grouped_gemm/panel_fixed.h"

namespace switchyard::ops {
namespace {

using formats::Element;
using formats::Matrix;
using formats::ScaleType;

bool is_decodable(const formats::WeightLayout& l) {
  switch (l.element) {
    case Element::kBf16:
    case Element::kFp16:
      return l.scale == ScaleType::kNone;
    case Element::kE4m3:
      return l.scale == ScaleType::kF32;
    case Element::kE2m1:
      return l.scale == ScaleType::kE8m0 || l.scale == ScaleType::kE4m3;
    case Element::kF32:
      return false;
  }
  return false;
}

/// Copies one row of 16-bit codes: pair kp of step s goes to dword kp * 16 + r.
void pack_row_16(const std::byte* src, std::int64_t cols, std::int64_t r, std::byte* panel) {
  for (std::int64_t pair = 0; pair < cols / 2; ++pair)
    std::memcpy(panel + (pair * kPanelRows + r) * 4, src + pair * 4, 4);
  if (cols % 2 != 0) std::memcpy(panel + (cols / 2 * kPanelRows + r) * 4, src + (cols - 1) * 2, 2);
}

/// Copies one row of bytes: pair kp lies in 64-byte group kp / 2, in the half that one unpack
/// yields.
void pack_row_8(const std::byte* src, std::int64_t cols, std::int64_t r, std::byte* panel) {
  std::byte* lane = panel + r / 4 * 16 + r % 4 * 2;
  for (std::int64_t k = 0; k < cols; ++k) {
    std::int64_t pair = k / 2;
    lane[pair / 2 * 64 + pair % 2 * 8 + k % 2] = src[k];
  }
}

/// Copies one row of nibbles: four pairs share a dword, even columns in its low half.
void pack_row_4(const std::byte* src, std::int64_t cols, std::int64_t r, std::byte* panel) {
  for (std::int64_t k = 0; k < cols; k += 8) {
    std::uint32_t pairs = 0, dword = 0;
    std::memcpy(&pairs, src + k / 2, std::size_t(std::min<std::int64_t>(4, (cols - k + 1) / 2)));
    for (int j = 0; j < 4; ++j) {
      dword |= (pairs >> (8 * j) & 0xf) << (4 * j);
      dword |= (pairs >> (8 * j + 4) & 0xf) << (4 * j + 16);
    }
    std::memcpy(panel + k / 8 * 64 + r * 4, &dword, 4);
  }
}

void pack_row(Element e, const std::byte* src, std::int64_t cols, std::int64_t r,
              std::byte* panel) {
  int bits = formats::bits_of(e);
  if (bits == 16) return pack_row_16(src, cols, r, panel);
  if (bits == 8) return pack_row_8(src, cols, r, panel);
  pack_row_4(src, cols, r, panel);
}

void pack_scales(const Matrix& m, const PanelLayout& p, std::byte* out) {
  const std::int64_t bytes = formats::bytes_of(p.scale);
  const std::int64_t scale_cols = m.layout.scale_cols(m.cols);
  const std::int64_t block_rows = m.layout.block_rows > 0 ? m.layout.block_rows : m.rows;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::byte* src = m.scales.data() + row / block_rows * scale_cols * bytes;
    std::byte* panel = out + row / kPanelRows * std::int64_t(p.panel_scale_bytes());
    for (std::int64_t b = 0; b < scale_cols; ++b)
      std::memcpy(panel + (b * kPanelRows + row % kPanelRows) * bytes, src + b * bytes,
                  std::size_t(bytes));
  }
}

}  // namespace

PanelLayout make_panel_layout(const formats::WeightLayout& layout, std::int64_t rows,
                              std::int64_t cols) {
  std::int64_t block = layout.block_cols;
  bool fits = block == 0 || block == 16 || (block > 0 && block % kPanelStep == 0);
  require(is_decodable(layout) && fits, "no panel codec decodes ", to_string(layout.element),
          " codes with ", to_string(layout.scale), " scales per ", block,
          " columns; blocks of 16 or a multiple of 32 are served");
  if (layout.scale == ScaleType::kNone || block >= cols) block = 0;
  return {
      .element = layout.element, .scale = layout.scale, .rows = rows, .cols = cols, .block = block};
}

PanelTwin panel_twin(CpuIsa isa) {
  if (isa >= CpuIsa::kAmx) return {panel_gemm_amx, CpuIsa::kAmx};
  if (isa >= CpuIsa::kZen4) return {panel_gemm_avx512, CpuIsa::kZen4};
  if (isa >= CpuIsa::kAvx512) return {panel_gemm_avx512, CpuIsa::kAvx512, fix_row_avx512};
  if (isa >= CpuIsa::kAvx2) return {panel_gemm_avx2, CpuIsa::kAvx2};
  return {panel_gemm_portable, CpuIsa::kPortable};
}

std::size_t panel_scratch_bytes(const PanelLayout& l, CpuIsa isa) {
  const CpuIsa tier = panel_twin(isa).tier;
  if (tier == CpuIsa::kAmx) return std::size_t(kGatheredRows * 2 * l.padded_cols());
  if (tier != CpuIsa::kZen4) return 0;
  // A pair of decoded panels stays in the second-level cache beside the rows that it meets.
  constexpr std::int64_t kMostCols = 8192;
  const bool folds = l.element == Element::kE2m1 && l.scale == ScaleType::kE8m0 && l.block > 0;
  if (!folds || l.padded_cols() > kMostCols) return 0;
  return std::size_t(kKeptPanels * (64 + kPanelRows * 2 * l.padded_cols()));
}

CodePosition code_position(Element element, std::int64_t r, std::int64_t k) {
  const std::int64_t pair = k / 2, odd = k % 2;
  switch (formats::bits_of(element)) {
    case 16:
      return {std::size_t(pair * 64 + r * 4 + odd * 2), 0};
    case 8:
      return {std::size_t(pair / 2 * 64 + r / 4 * 16 + pair % 2 * 8 + r % 4 * 2 + odd), 0};
    default:
      return {std::size_t(pair / 4 * 64 + r * 4 + odd * 2 + pair % 4 / 2), int(pair % 2)};
  }
}

void pack_panels(const Matrix& m, const PanelLayout& p, std::span<std::byte> codes,
                 std::span<std::byte> scales) {
  ensure(m.rows == p.rows && m.cols == p.cols && m.layout.element == p.element &&
             m.layout.scale == p.scale && codes.size() == p.code_bytes() &&
             scales.size() == p.scale_bytes(),
         "pack_panels: the layout was made for another matrix");
  std::memset(codes.data(), 0, codes.size());
  if (!scales.empty()) std::memset(scales.data(), 0, scales.size());
  const std::int64_t row_bytes = (m.cols * formats::bits_of(p.element) + 7) / 8;
  for (std::int64_t row = 0; row < m.rows; ++row) {
    std::byte* panel = codes.data() + row / kPanelRows * std::int64_t(p.panel_code_bytes());
    pack_row(p.element, m.codes.data() + row * row_bytes, m.cols, row % kPanelRows, panel);
  }
  if (p.scale != ScaleType::kNone) pack_scales(m, p, scales.data());
}

}  // namespace switchyard::ops
