// SPDX-License-Identifier: Apache-2.0
// The panel GEMM on AMX tiles: a step of a bf16 panel is a B tile as it lies in memory, other
// formats are decoded into one. A tile holds up to 16 input rows, so every height runs the same
// instructions.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/ops/grouped_gemm/panel_decode_avx512.h"

namespace switchyard::ops {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 1024;
constexpr std::int64_t kQuads = kPanelStep / kQuadCols;

// Tile registers, spelled as literals because g++ 12 pastes them into the assembler text:
//   0..3 sums [row tile][panel] · 4, 5 inputs of the two row tiles · 6, 7 weights of the two
//   panels.

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64, "the layout that the instruction reads");

// g++ 12's tile loads do not tell the compiler that they read memory: what was just written must be
// made visible to them.
inline __attribute__((always_inline)) void before_tile_load() { asm volatile("" ::: "memory"); }

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

// ---- weights: where the B tile of a step lies, decoded into `room` when it must be ----

struct Bf16Weights {
  static constexpr bool kCut = false;
  static const std::byte* tile(const PanelLayout& l, const std::byte* codes, const std::byte*,
                               std::int64_t step, std::byte*) {
    return codes + step * std::int64_t(l.step_bytes());
  }
};

/// E4M3: the scales stay outside, on the sums of a cut.
struct E4m3Weights {
  static constexpr bool kCut = true;
  static const std::byte* tile(const PanelLayout& l, const std::byte* codes, const std::byte*,
                               std::int64_t step, std::byte* room) {
    const std::byte* here = codes + step * std::int64_t(l.step_bytes());
    for (std::int64_t q = 0; q < kQuads; ++q) {
      __m512i w[4];
      E4m3Codec::decode(here + q * E4m3Codec::kQuadBytes, w);
      for (int j = 0; j < 4; ++j) _mm512_store_si512(room + (4 * q + j) * 64, w[j]);
    }
    return room;
  }
};

/// E2M1 times its block scale, which is exact in bf16: no cut is needed.
template <class Scale>
struct E2m1Weights {
  static constexpr bool kCut = false;
  static const std::byte* tile(const PanelLayout& l, const std::byte* codes,
                               const std::byte* scales, std::int64_t step, std::byte* room) {
    const std::byte* here = codes + step * std::int64_t(l.step_bytes());
    for (std::int64_t q = 0; q < kQuads; ++q) {
      const __m512 scale = Scale::load(scales, (step * kPanelStep + q * kQuadCols) / l.cut());
      __m512i w[4];
      E2m1Codec::decode(here + q * E2m1Codec::kQuadBytes, w);
      for (int j = 0; j < 4; ++j) {
        const __m512i even = _mm512_castps_si512(_mm512_mul_ps(Bf16Codec::even(w[j]), scale));
        const __m512i odd = _mm512_castps_si512(_mm512_mul_ps(Bf16Codec::odd(w[j]), scale));
        const __m512i high = _mm512_set1_epi32(int(0xffff0000u));
        const __m512i pair =  // (odd & high) | (even >> 16)
            _mm512_ternarylogic_epi32(odd, high, _mm512_srli_epi32(even, 16), 0xea);
        _mm512_store_si512(room + (4 * q + j) * 64, pair);
      }
    }
    return room;
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

/// Step `step` of the rows of one input tile, gathered into `room` when they do not lie evenly.
const void* input_tile(const Block& b, int begin, int rows, std::int64_t step, std::byte* room,
                       std::int64_t& stride) {
  if (b.a.index == nullptr) {
    stride = b.a.x.stride * 2;
    return input_row(b.a, b.first + begin) + step * kPanelStep;
  }
  stride = 64;
  for (int i = 0; i < rows; ++i)
    _mm512_store_si512(room + i * 64,
                       _mm512_loadu_si512(input_row(b.a, b.first + begin + i) + step * kPanelStep));
  return room;
}

struct Buffers {
  alignas(64) std::byte inputs[2][kTileBytes];
  alignas(64) std::byte weights[2][kTileBytes];
  alignas(64) float sums[2][2][kTileRows * kPanelRows];  // [row tile][panel]
  alignas(64) float totals[2][2][kTileRows * kPanelRows];
};

template <class Weights>
void add_step(const Block& b, std::int64_t step, Buffers& room) {
  const PanelLayout& l = b.a.w->layout;
  const auto weights = [&](int p) {
    return Weights::tile(l, b.a.w->codes + (b.panel + p) * std::int64_t(l.panel_code_bytes()),
                         b.a.w->scales + (b.panel + p) * std::int64_t(l.panel_scale_bytes()), step,
                         room.weights[p]);
  };
  std::int64_t stride = 0;
  const void* x = input_tile(b, 0, std::min(b.rows, kTileRows), step, room.inputs[0], stride);
  before_tile_load();
  _tile_loadd(4, x, stride);
  const std::byte* w = weights(0);
  before_tile_load();
  _tile_loadd(6, w, 64);
  _tile_dpbf16ps(0, 4, 6);
  if (b.panels > 1) {
    w = weights(1);
    before_tile_load();
    _tile_loadd(7, w, 64);
    _tile_dpbf16ps(1, 4, 7);
  }
  if (b.rows <= kTileRows) return;
  x = input_tile(b, kTileRows, b.rows - kTileRows, step, room.inputs[1], stride);
  before_tile_load();
  _tile_loadd(5, x, stride);
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
  const std::int64_t steps = l.steps();
  clear_sums();
  if constexpr (!Weights::kCut) {
    for (std::int64_t s = 0; s < steps; ++s) add_step<Weights>(b, s, room);
    store_sums(room.totals);
  } else {
    std::memset(room.totals, 0, sizeof(room.totals));
    const std::int64_t per_cut = l.cut() / kPanelStep;
    for (std::int64_t s = 0; s < steps; ++s) {
      add_step<Weights>(b, s, room);
      if ((s + 1) % per_cut != 0 && s + 1 != steps) continue;
      close_cut(b, s / per_cut, room);
      clear_sums();
    }
  }
  store_block(b, room);
}

template <class Weights>
void gemm(const PanelGemmArgs& a) {
  constexpr std::int64_t kRows = 2 * kTileRows, kPanels = 2;
  Buffers room;
  for (std::int64_t i = 0; i < a.num_rows; i += kRows) {
    const int rows = int(std::min(kRows, a.num_rows - i));
    configure(rows);
    for (std::int64_t p = a.panel_begin; p < a.panel_end; p += kPanels)
      run_block<Weights>({a, i, rows, p, int(std::min(kPanels, a.panel_end - p))}, room);
  }
  _tile_release();
}

}  // namespace

void panel_gemm_amx(const PanelGemmArgs& a) {
  using formats::Element;
  using formats::ScaleType;
  const PanelLayout& l = a.w->layout;
  if (a.x.floats != nullptr) return panel_gemm_avx512(a);  // tiles multiply bf16 only
  if (l.element == Element::kBf16) return gemm<Bf16Weights>(a);
  if (l.element == Element::kE4m3) return gemm<E4m3Weights>(a);
  if (l.scale == ScaleType::kE8m0) return gemm<E2m1Weights<E8m0Scale>>(a);
  gemm<E2m1Weights<E4m3Scale>>(a);
}

}  // namespace switchyard::ops
