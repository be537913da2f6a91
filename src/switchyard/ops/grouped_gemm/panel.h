// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "switchyard/core/environment.h"
#include "switchyard/formats/matrix.h"

namespace switchyard::ops {

/// Rows of a panel; one row per 32-bit lane of a 512-bit register.
inline constexpr std::int64_t kPanelRows = 16;
/// K is stored in steps of 32 columns: one AMX tile of bf16 pairs, one MX block.
inline constexpr std::int64_t kPanelStep = 32;

/// A packed weight matrix: panels of 16 rows, in each all steps of 32 columns in order.
///
/// Within a step, 16-bit lane 2r + (k & 1) of column pair k / 2 belongs to row r, which is what a
/// bf16 pair dot product wants. E4M3 codes of two pairs, and E2M1 codes of four pairs, share 64
/// bytes so that one load decodes in place (see code_position()). Scales lie apart:
/// [panel][block][16 rows]. Shapes:  rows and cols are the valid extents; padded ones follow from
/// them. Source:  docs/decisions/0002-packed-panels.md.
struct PanelLayout {
  formats::Element element = formats::Element::kBf16;  // not kF32: packing rounds nothing
  formats::ScaleType scale = formats::ScaleType::kNone;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t block = 0;  // columns per scale, 16 or a multiple of 32; 0: one scale for the row

  std::int64_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  std::int64_t steps() const { return (cols + kPanelStep - 1) / kPanelStep; }
  std::int64_t padded_cols() const { return steps() * kPanelStep; }
  /// Columns per accumulation: the scale block, or all padded columns when there is none (a step
  /// when there are no columns).
  std::int64_t cut() const { return block > 0 ? block : std::max(padded_cols(), kPanelStep); }
  std::int64_t blocks() const { return block > 0 ? (padded_cols() + block - 1) / block : 1; }
  std::size_t step_bytes() const {
    return std::size_t(kPanelRows * kPanelStep * formats::bits_of(element) / 8);
  }
  std::size_t panel_code_bytes() const { return std::size_t(steps()) * step_bytes(); }
  std::size_t panel_scale_bytes() const {
    return std::size_t(blocks() * kPanelRows * formats::bytes_of(scale));
  }
  /// Bytes of all codes and of all scales.
  std::size_t code_bytes() const { return std::size_t(panels()) * panel_code_bytes(); }
  std::size_t scale_bytes() const { return std::size_t(panels()) * panel_scale_bytes(); }
};

/// The packed geometry of a [rows, cols] matrix stored as `layout`.
/// Errors: UsageError for a layout that no panel codec decodes.
PanelLayout make_panel_layout(const formats::WeightLayout& layout, std::int64_t rows,
                              std::int64_t cols);

/// Where the code of (row r, column k) of a step lies: byte in the step, and nibble for E2M1.
struct CodePosition {
  std::size_t byte;
  int nibble;
};
/// Position of row r in [0, 16), column k in [0, 32) within a step's bytes.
CodePosition code_position(formats::Element element, std::int64_t r, std::int64_t k);

/// Packs canonical `m` into `codes` and `scales`; repeatable, never in place. Padding is zero.
///
/// Shapes:  codes [layout.code_bytes()], scales [layout.scale_bytes()].
/// Errors:  InternalError when `layout` does not fit `m`.
void pack_panels(const formats::Matrix& m, const PanelLayout& layout, std::span<std::byte> codes,
                 std::span<std::byte> scales);

/// A packed matrix as the kernels see it.
struct PanelMatrix {
  PanelLayout layout;
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  float alpha = 1;              // the matrix' global scale
  const float* bias = nullptr;  // [rows] or null
};

/// The quantised rows that a GEMM reads: bf16 values (pairs) or floats, plus their scales.
///
/// Shapes:  values [rows, padded cols] with `stride` elements a row, zero beyond the valid columns;
///          block_scales [rows, blocks of 128] with `scale_stride`, or null; row_scales [rows];
///          fixed [rows] of `fixed_stride` bytes: the pairs as integers of `digits` bytes
///          (panel_fixed.h), for the twins that ask for them, or null.
struct PanelInput {
  const std::uint16_t* pairs = nullptr;
  const float* floats = nullptr;
  std::int64_t stride = 0;
  const float* block_scales = nullptr;
  std::int64_t scale_stride = 0;
  const float* row_scales = nullptr;
  const std::byte* fixed = nullptr;
  std::int64_t fixed_stride = 0;
  int digits = 0;

  /// The same rows without the first `r`.
  PanelInput from_row(std::int64_t r) const {
    PanelInput x = *this;
    if (pairs != nullptr) x.pairs += r * stride;
    if (floats != nullptr) x.floats += r * stride;
    if (block_scales != nullptr) x.block_scales += r * scale_stride;
    if (row_scales != nullptr) x.row_scales += r;
    if (fixed != nullptr) x.fixed += r * fixed_stride;
    return x;
  }
};

/// One tile: y[i, n] = (sum_k x[index[i], k] w[n, k]) * row scale * alpha + bias[n], in fp32.
///
/// Shapes:  index [num_rows] selects input rows (null: i); y [num_rows, 16 * (panel_end -
/// panel_begin)]
///          with `y_stride`.
/// Units:   accumulation fp32 in column order within a cut, cuts added in order, or through all of
///          K where scales are part of the weights (panel_folded.h); the order depends on the
///          layer's shape and weights only, never on num_rows or on the panel range.
struct PanelGemmArgs {
  const PanelMatrix* w = nullptr;
  std::int64_t panel_begin = 0;
  std::int64_t panel_end = 0;
  PanelInput x;
  const std::int32_t* index = nullptr;
  std::int64_t num_rows = 0;
  float* y = nullptr;
  std::int64_t y_stride = 0;
  const std::byte* next = nullptr;  // codes of this layout that are read after these, if known
  std::byte* scratch = nullptr;  // panel_scratch_bytes(), 64-byte aligned, of this thread; or null
};

/// How many panels the twin of Zen 4 may keep decoded for further rows.
inline constexpr int kKeptPanels = 2;
/// How many rows that of AMX gathers and multiplies together.
inline constexpr std::int64_t kGatheredRows = 48;
/// The bytes that this takes a thread; none where the twin of tier `isa` keeps nothing.
std::size_t panel_scratch_bytes(const PanelLayout& layout, CpuIsa isa);

/// A twin of the panel GEMM for one instruction tier.
using PanelGemm = void (*)(const PanelGemmArgs&);

struct FixedForm;
/// Writes the fixed form (panel_fixed.h) of one row of bf16 values.
///
/// Shapes:  pairs [padded_cols], row [form.row_bytes(padded_cols)].
using FixRow = void (*)(const FixedForm& form, const std::uint16_t* pairs, std::int64_t padded_cols,
                        std::byte* row);

/// The twin that serves a machine of tier `isa`, and the tier that this twin really needs.
struct PanelTwin {
  PanelGemm gemm;
  CpuIsa tier;
  FixRow fix_row = nullptr;  // where E2M1 weights want their inputs in the fixed form
};
/// The best twin up to `isa`.
PanelTwin panel_twin(CpuIsa isa);

/// Plain C++ on the packed form; runs everywhere.
void panel_gemm_portable(const PanelGemmArgs& args);
/// AVX2 with FMA and F16C; call it only where the environment has that tier.
void panel_gemm_avx2(const PanelGemmArgs& args);
/// AVX-512 with BF16, VBMI and VNNI; call it only where the environment has that tier.
void panel_gemm_avx512(const PanelGemmArgs& args);
/// AMX tiles with AVX-512 around them; call it only where the environment has that tier. fp32
/// inputs run the AVX-512 twin, and so do E2M1 weights in front of rows with scales of their own
/// and panels whose scales are too far apart to be folded in. Rows that are selected by an index
/// want the scratch: without it each of them is multiplied alone.
void panel_gemm_amx(const PanelGemmArgs& args);

}  // namespace switchyard::ops
