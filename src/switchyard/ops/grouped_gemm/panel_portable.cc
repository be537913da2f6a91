// SPDX-License-Identifier: Apache-2.0
// The panel GEMM in plain C++: decodes a step once, then serves a group of rows from it.
#include <algorithm>
#include <array>
#include <cstring>

#include "switchyard/base/dtype.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/e8m0.h"
#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {
namespace {

using formats::Element;
using formats::ScaleType;

constexpr int kRowGroup = 16;
using Lanes = std::array<float, kPanelRows>;

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code)
    table[std::size_t(code)] = formats::decode_e4m3(std::uint8_t(code));
  return table;
}

const std::array<float, 256> kE4m3Table = make_e4m3_table();

float decode_code(Element e, const std::byte* step, CodePosition at) {
  std::uint16_t bits16;
  std::uint8_t byte = std::uint8_t(step[at.byte]);
  switch (e) {
    case Element::kE4m3:
      return kE4m3Table[byte];
    case Element::kE2m1:
      return formats::decode_e2m1(std::uint8_t(byte >> (4 * at.nibble) & 0xf));
    default:
      break;
  }
  std::memcpy(&bits16, step + at.byte, 2);
  return e == Element::kBf16 ? bf16_to_float(bits16) : fp16_to_float(bits16);
}

void decode_step(Element e, const std::byte* step, Lanes (&w)[kPanelStep]) {
  for (std::int64_t k = 0; k < kPanelStep; ++k)
    for (std::int64_t r = 0; r < kPanelRows; ++r)
      w[k][std::size_t(r)] = decode_code(e, step, code_position(e, r, k));
}

Lanes load_scales(const PanelLayout& l, const std::byte* scales, std::int64_t b) {
  Lanes out;
  for (std::size_t r = 0; r < kPanelRows; ++r) {
    const std::byte* at = scales + (b * kPanelRows + std::int64_t(r)) * formats::bytes_of(l.scale);
    switch (l.scale) {
      case ScaleType::kNone:
        out[r] = 1;
        break;
      case ScaleType::kF32:
        std::memcpy(&out[r], at, 4);
        break;
      case ScaleType::kE8m0:
        out[r] = formats::decode_e8m0(std::uint8_t(*at));
        break;
      case ScaleType::kE4m3:
        out[r] = formats::decode_e4m3(std::uint8_t(*at));
        break;
    }
  }
  return out;
}

float input_value(const PanelInput& x, std::int64_t row, std::int64_t k) {
  std::int64_t at = row * x.stride + k;
  return x.floats != nullptr ? x.floats[at] : bf16_to_float(x.pairs[at]);
}

std::int64_t input_row(const PanelGemmArgs& a, std::int64_t i) {
  return a.index != nullptr ? a.index[i] : i;
}

/// Up to kRowGroup input rows against one panel.
struct RowGroup {
  const PanelGemmArgs& a;
  std::int64_t panel;
  std::int64_t first;
  int rows;
  Lanes part[kRowGroup]{};
  Lanes total[kRowGroup]{};

  /// Adds columns [k0, k1) of one decoded step to the partial sums.
  void add_columns(std::int64_t step, std::int64_t k0, std::int64_t k1, const Lanes* w) {
    for (int m = 0; m < rows; ++m) {
      const std::int64_t row = input_row(a, first + m);
      for (std::int64_t k = k0; k < k1; ++k) {
        const float x = input_value(a.x, row, step * kPanelStep + k);
        for (std::size_t r = 0; r < kPanelRows; ++r) part[m][r] += w[k][r] * x;
      }
    }
  }

  /// Scales the partial sums of cut b and adds them to the totals.
  void close_cut(const std::byte* scales, std::int64_t b) {
    const PanelLayout& l = a.w->layout;
    const Lanes scale = load_scales(l, scales, b);
    for (int m = 0; m < rows; ++m) {
      float x_scale = 1;
      if (a.x.block_scales != nullptr)
        x_scale = a.x.block_scales[input_row(a, first + m) * a.x.scale_stride + b * l.cut() / 128];
      for (std::size_t r = 0; r < kPanelRows; ++r) {
        total[m][r] += part[m][r] * (scale[r] * x_scale);
        part[m][r] = 0;
      }
    }
  }

  void store() const {
    for (int m = 0; m < rows; ++m) {
      const float row_scale =
          a.x.row_scales != nullptr ? a.x.row_scales[input_row(a, first + m)] : 1.0f;
      float* y = a.y + (first + m) * a.y_stride + (panel - a.panel_begin) * kPanelRows;
      for (std::size_t r = 0; r < kPanelRows; ++r) {
        float bias = a.w->bias != nullptr ? a.w->bias[panel * kPanelRows + std::int64_t(r)] : 0.0f;
        y[r] = total[m][r] * row_scale * a.w->alpha + bias;
      }
    }
  }
};

void panel_rows(RowGroup group) {
  const PanelLayout& l = group.a.w->layout;
  const std::byte* codes = group.a.w->codes + group.panel * std::int64_t(l.panel_code_bytes());
  const std::byte* scales = group.a.w->scales + group.panel * std::int64_t(l.panel_scale_bytes());
  const std::int64_t cut = l.cut(), span = std::min(cut, kPanelStep);
  Lanes w[kPanelStep];
  for (std::int64_t s = 0; s < l.steps(); ++s) {
    decode_step(l.element, codes + s * std::int64_t(l.step_bytes()), w);
    for (std::int64_t k = 0; k < kPanelStep; k += span) {
      group.add_columns(s, k, k + span, w);
      const std::int64_t end = s * kPanelStep + k + span;
      if (end % cut == 0 || end == l.padded_cols()) group.close_cut(scales, (end - 1) / cut);
    }
  }
  group.store();
}

}  // namespace

void panel_gemm_portable(const PanelGemmArgs& a) {
  for (std::int64_t panel = a.panel_begin; panel < a.panel_end; ++panel)
    for (std::int64_t first = 0; first < a.num_rows; first += kRowGroup)
      panel_rows({a, panel, first, int(std::min<std::int64_t>(kRowGroup, a.num_rows - first))});
}

}  // namespace switchyard::ops
