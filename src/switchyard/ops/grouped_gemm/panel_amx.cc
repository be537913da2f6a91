// SPDX-License-Identifier: Apache-2.0
// The panel GEMM on AMX tiles: a step of a bf16 panel is a B tile as it lies in memory, E4M3 is
// decoded into one. A tile holds up to 16 input rows, so every height runs the same instructions.
// E2M1 in front of integer rows has a twin of its own, which may mix (panel_fixed_amx.cc).
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/ops/grouped_gemm/panel_ahead_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_decode_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_fixed.h"
#include "switchyard/ops/grouped_gemm/panel_tiles_amx.h"

namespace switchyard::ops {
namespace {

// Tile registers, spelled as literals because g++ 12 pastes them into the assembler text:
//   0..3 sums [row tile][panel] · 4, 5 inputs of the two row tiles · 6, 7 weights of the two
//   panels.

/// Sums and inputs of up to 32 rows in two tiles; weights are always 16 pairs of 16 columns.
void configure(int rows) {
  const int first = std::min(rows, kTileRows), second = std::max(rows - kTileRows, 1);
  TileConfig c;
  for (int t = 0; t < 8; ++t) c.bytes_per_row[t] = 64;
  for (int t : {0, 1, 4}) c.rows[t] = std::uint8_t(first);
  for (int t : {2, 3, 5}) c.rows[t] = std::uint8_t(second);
  for (int t : {6, 7}) c.rows[t] = kTileRows;
  before_tile_load();
  _tile_loadconfig(&c);
}

// ---- weights: where the B tile of a step lies, decoded into `room` ahead when it must be ----

constexpr std::int64_t kQuads = kPanelStep / kQuadCols;

/// A step of bf16 is a B tile as it lies there.
struct Bf16Weights {
  static constexpr bool kDecoded = false;
  static constexpr std::int64_t kStepBytes = kTileBytes;
  static void decode(const std::byte*, std::byte*) {}
};

/// E4M3: the scales stay outside, on the sums of a cut.
struct E4m3Weights {
  static constexpr bool kDecoded = true;
  static constexpr std::int64_t kStepBytes = kTileBytes / 2;
  static void decode(const std::byte* codes, std::byte* room) {
#pragma GCC unroll 4
    for (std::int64_t q = 0; q < kQuads; ++q) {
      __m512i w[4];
      E4m3Codec::decode(codes + q * E4m3Codec::kQuadBytes, w);
      for (int j = 0; j < 4; ++j) _mm512_store_si512(room + (4 * q + j) * 64, w[j]);
    }
  }
};

// ---- one block: up to 32 rows times up to 2 panels ----

struct Block {
  const PanelGemmArgs& a;
  std::int64_t first;  // row
  int rows;
  std::int64_t panel;
  int panels;
};

const std::uint16_t* input_row(const PanelGemmArgs& a, std::int64_t i) {
  return a.x.pairs + (a.index != nullptr ? a.index[i] : i) * a.x.stride;
}

// What a tile load reads was written by a step before: the stores of the same step would still be
// on their way.
constexpr int kSlots = 2;

struct Buffers {
  alignas(64) std::byte inputs[kSlots][2 * kTileBytes];  // of two row tiles
  alignas(64) std::byte weights[kSlots][2][kTileBytes];  // [panel]
  alignas(64) float sums[2][2][kTileRows * kPanelRows];  // [row tile][panel]
  alignas(64) float totals[2][2][kTileRows * kPanelRows];
};

/// Whether a tile load can read the rows where they lie.
bool lies_evenly(const Block& b) { return b.a.index == nullptr || b.rows == 1; }

template <class Weights>
const std::byte* codes_of(const Block& b, int p, std::int64_t step) {
  return b.a.w->codes + (b.panel + p) * std::int64_t(b.a.w->layout.panel_code_bytes()) +
         step * Weights::kStepBytes;
}

/// Gathers the inputs and decodes the weights of step `step`, as far as they do not lie ready.
template <class Weights>
void prepare(const Block& b, std::int64_t step, Buffers& room) {
  const std::int64_t slot = step % kSlots;
  if (!lies_evenly(b))
    for (int i = 0; i < b.rows; ++i)
      _mm512_store_si512(room.inputs[slot] + i * 64,
                         _mm512_loadu_si512(input_row(b.a, b.first + i) + step * kPanelStep));
  for (int p = 0; p < b.panels; ++p)
    Weights::decode(codes_of<Weights>(b, p, step), room.weights[slot][p]);
}

template <class Weights>
void add_step(const Block& b, std::int64_t step, Buffers& room) {
  const std::int64_t slot = step % kSlots;
  const bool evenly = lies_evenly(b);
  const std::int64_t stride = evenly ? b.a.x.stride * 2 : 64;
  const auto inputs = [&](int t) {
    return evenly ? static_cast<const void*>(input_row(b.a, b.first + t * kTileRows) +
                                             step * kPanelStep)
                  : room.inputs[slot] + t * kTileBytes;
  };
  const auto weights = [&](int p) {
    return Weights::kDecoded ? room.weights[slot][p] : codes_of<Weights>(b, p, step);
  };
  before_tile_load();
  _tile_loadd(4, inputs(0), stride);
  _tile_loadd(6, weights(0), 64);
  _tile_dpbf16ps(0, 4, 6);
  if (b.panels > 1) {
    _tile_loadd(7, weights(1), 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  if (b.rows <= kTileRows) return;
  _tile_loadd(5, inputs(1), stride);
  _tile_dpbf16ps(2, 5, 6);
  if (b.panels > 1) _tile_dpbf16ps(3, 5, 7);
}

void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

void store_sums(float (*to)[2][kTileRows * kPanelRows]) {
  _tile_stored(0, to[0][0], 64);
  _tile_stored(1, to[0][1], 64);
  _tile_stored(2, to[1][0], 64);
  _tile_stored(3, to[1][1], 64);
}

/// Adds the sums of cut `cut`, scaled, to the totals.
void close_cut(const Block& b, std::int64_t cut, Buffers& room) {
  const PanelLayout& l = b.a.w->layout;
  store_sums(room.sums);
  for (int p = 0; p < b.panels; ++p) {
    const __m512 scale =
        F32Scale::load(b.a.w->scales + (b.panel + p) * std::int64_t(l.panel_scale_bytes()), cut);
    for (int i = 0; i < b.rows; ++i) {
      __m512 s = scale;
      if (b.a.x.block_scales != nullptr) {
        const std::int64_t row = b.a.index != nullptr ? b.a.index[b.first + i] : b.first + i;
        s = _mm512_mul_ps(
            s, _mm512_set1_ps(b.a.x.block_scales[row * b.a.x.scale_stride + cut * l.cut() / 128]));
      }
      float* total = room.totals[i / kTileRows][p] + i % kTileRows * kPanelRows;
      const float* sum = room.sums[i / kTileRows][p] + i % kTileRows * kPanelRows;
      _mm512_store_ps(total, _mm512_fmadd_ps(_mm512_load_ps(sum), s, _mm512_load_ps(total)));
    }
  }
}

void store_block(const Block& b, const Buffers& room) {
  for (int p = 0; p < b.panels; ++p)
    for (int i = 0; i < b.rows; ++i) {
      const std::int64_t row = b.a.index != nullptr ? b.a.index[b.first + i] : b.first + i;
      const float row_scale = b.a.x.row_scales != nullptr ? b.a.x.row_scales[row] : 1.0f;
      const float* total = room.totals[i / kTileRows][p] + i % kTileRows * kPanelRows;
      __m512 y = _mm512_mul_ps(_mm512_mul_ps(_mm512_load_ps(total), _mm512_set1_ps(row_scale)),
                               _mm512_set1_ps(b.a.w->alpha));
      if (b.a.w->bias != nullptr)
        y = _mm512_add_ps(y, _mm512_loadu_ps(b.a.w->bias + (b.panel + p) * kPanelRows));
      _mm512_storeu_ps(
          b.a.y + (b.first + i) * b.a.y_stride + (b.panel + p - b.a.panel_begin) * kPanelRows, y);
    }
}

template <class Weights>
void run_block(const Block& b, Buffers& room) {
  const PanelLayout& l = b.a.w->layout;
  const std::int64_t steps = l.steps(), per_cut = l.cut() / kPanelStep;
  Ahead<2, Weights::kStepBytes> ahead(b.a, b.panel);
  clear_sums();
  if (Weights::kDecoded) std::memset(room.totals, 0, sizeof(room.totals));
  if (steps > 0) prepare<Weights>(b, 0, room);
  std::int64_t cut = 0, cut_end = per_cut;
  for (std::int64_t s = 0; s < steps; ++s) {
    ahead.ask();
    if (s + 1 < steps) prepare<Weights>(b, s + 1, room);
    add_step<Weights>(b, s, room);
    if (!Weights::kDecoded || (s + 1 != cut_end && s + 1 != steps)) continue;
    close_cut(b, cut++, room);
    clear_sums();
    cut_end += per_cut;
  }
  if (!Weights::kDecoded) store_sums(room.totals);
  store_block(b, room);
}

template <class Weights>
void gemm(const PanelGemmArgs& a) {
  constexpr std::int64_t kRows = 2 * kTileRows, kPanels = 2;
  Buffers room;
  int configured = 0;
  // Panels outermost: those of a pair are still near for its other rows.
  for (std::int64_t p = a.panel_begin; p < a.panel_end; p += kPanels)
    for (std::int64_t i = 0; i < a.num_rows; i += kRows) {
      const int rows = int(std::min(kRows, a.num_rows - i));
      if (rows != configured) configure(rows);
      configured = rows;
      run_block<Weights>({a, i, rows, p, int(std::min(kPanels, a.panel_end - p))}, room);
    }
  if (configured > 0) _tile_release();
}

}  // namespace

void panel_gemm_amx(const PanelGemmArgs& a) {
  using formats::Element;
  const PanelLayout& l = a.w->layout;
  if (a.x.floats != nullptr) return panel_gemm_avx512(a);  // tiles multiply bf16 only
  if (l.element == Element::kBf16) return gemm<Bf16Weights>(a);
  if (l.element == Element::kE4m3) return gemm<E4m3Weights>(a);
  if (a.x.fixed != nullptr) return panel_gemm_fixed_amx(a);
  panel_gemm_avx512(a);
}

}  // namespace switchyard::ops
