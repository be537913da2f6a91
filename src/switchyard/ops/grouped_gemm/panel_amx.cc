// SPDX-License-Identifier: Apache-2.0
// The panel GEMM on AMX tiles: a step of a bf16 panel is a B tile as it lies in memory, 8-bit and
// 4-bit codes are decoded into one. A tile holds up to 16 input rows, so every height runs the same
// operations on a row.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/ops/grouped_gemm/panel_ahead_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_decode_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_fold_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_folded.h"
#include "switchyard/ops/grouped_gemm/panel_rows_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_tiles_amx.h"

namespace switchyard::ops {
namespace {

constexpr int kPair = 2;       // panels that are multiplied together
constexpr int kMostTiles = 3;  // of rows
static_assert(kMostTiles * kTileRows == kGatheredRows);

// ---- weights: where the B tile of a step lies, decoded ahead when it must be ----

/// A step of bf16 is a B tile as it lies there.
struct Bf16Weights {
  static constexpr bool kDecoded = false, kCuts = false;
  static constexpr std::int64_t kStepBytes = kTileBytes;
  struct Panel {
    Panel(const PanelMatrix&, std::int64_t) {}
    void decode(std::int64_t, std::byte*) const {}
  };
  static __m512 scale(const PanelMatrix&, std::int64_t) { return _mm512_set1_ps(1); }
};

/// E4M3: the scales stay outside, on the sums of a cut.
struct E4m3Weights {
  static constexpr bool kDecoded = true, kCuts = true;
  static constexpr std::int64_t kStepBytes = kTileBytes / 2;
  struct Panel {
    const std::byte* codes;
    Panel(const PanelMatrix& w, std::int64_t panel)
        : codes(w.codes + panel * std::int64_t(w.layout.panel_code_bytes())) {}
    void decode(std::int64_t step, std::byte* tile) const {
#pragma GCC unroll 4
      for (std::int64_t q = 0; q < kPanelStep / kQuadCols; ++q) {
        __m512i w[4];
        E4m3Codec::decode(codes + step * kStepBytes + q * E4m3Codec::kQuadBytes, w);
        for (int j = 0; j < 4; ++j) _mm512_store_si512(tile + (4 * q + j) * 64, w[j]);
      }
    }
  };
  static __m512 scale(const PanelMatrix&, std::int64_t) { return _mm512_set1_ps(1); }
};

/// E2M1 with the scales of its blocks folded in: one sum runs through all of K.
template <class Fold>
struct E2m1Weights {
  static constexpr bool kDecoded = true, kCuts = false;
  static constexpr std::int64_t kStepBytes = kTileBytes / 4;
  using Panel = FoldedPanel<Fold>;
  static __m512 scale(const PanelMatrix& w, std::int64_t panel) { return Panel(w, panel).scale(); }
};

// ---- rows ----

/// Rows that are multiplied together, in tiles of one height: the last one begins where it ends
/// with the last row, and repeats some rows of its neighbour where they do not fill it.
struct Block {
  const PanelGemmArgs& a;
  std::int64_t first, rows;
  const std::byte* x = nullptr;  // step 0 of the first row
  std::int64_t x_stride = 0;     // to the next row, in bytes
  std::int64_t x_step = 64;      // to the next step

  std::int64_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  std::int64_t height() const { return (rows + tiles() - 1) / tiles(); }
  std::int64_t begin(std::int64_t tile) const { return std::min(tile * height(), rows - height()); }
  std::int64_t input(std::int64_t i) const {
    return a.index != nullptr ? a.index[first + i] : first + i;
  }
  const std::byte* pairs(std::int64_t i) const {
    return reinterpret_cast<const std::byte*>(a.x.pairs + input(i) * a.x.stride);
  }
};

/// Copies the rows of a block step by step, each step's rows together: what tiles read in order.
void gather(Block& b) {
  constexpr std::int64_t kTogether = 8;
  const std::int64_t steps = b.a.w->layout.steps(), step_bytes = b.rows * 64;
  for (std::int64_t s = 0; s < steps; s += kTogether)
    for (std::int64_t i = 0; i < b.rows; ++i) {
      const std::byte* from = b.pairs(i);
      for (std::int64_t at = s; at < std::min(s + kTogether, steps); ++at)
        _mm512_store_si512(b.a.scratch + at * step_bytes + i * 64,
                           _mm512_loadu_si512(from + at * 64));
    }
  b.x = b.a.scratch;
  b.x_stride = 64;
  b.x_step = step_bytes;
}

/// Where tiles find the rows: where they lie, if they do so evenly.
void place(Block& b) {
  b.x = b.pairs(0);
  b.x_stride = b.a.x.stride * 2;
  if (b.rows > 1 && b.a.index != nullptr) gather(b);
}

// ---- weights of a call, decoded ahead of the products ----

// A tile load does not see stores that are still on their way: what it reads was written some steps
// before.
constexpr int kSlots = 4, kAhead = 2;

struct Buffers {
  alignas(64) std::byte weights[kSlots][kPair][kTileBytes];
  alignas(64) float sums[kMostTiles][kPair][kTileRows * kPanelRows];
  alignas(64) float totals[kMostTiles][kPair][kTileRows * kPanelRows];
};

/// Walks the steps of all panels of a call, pair by pair, and decodes each of them ahead of its
/// product; what is read after it is asked for.
template <class Weights>
class DecodedAhead {
 public:
  DecodedAhead(const PanelGemmArgs& a, Buffers& room)
      : a_(a),
        room_(room),
        steps_(a.w->layout.steps()),
        panel_(a.panel_begin),
        ahead_(a, panel_),
        first_(*a.w, panel_),
        second_(*a.w, last_of(panel_)) {
    ask_scales();
    for (int i = 0; Weights::kDecoded && i < kAhead; ++i) decode();
  }

  /// The decoded tiles of the next step, one panel's behind the other's.
  const std::byte* next() {
    decode();
    const std::byte* tiles = room_.weights[read_][0];
    read_ = (read_ + 1) % kSlots;
    return tiles;
  }

 private:
  void decode() {
    if (panel_ >= a_.panel_end || steps_ == 0) return;
    ahead_.ask();
    std::byte(*to)[kTileBytes] = room_.weights[written_];
    written_ = (written_ + 1) % kSlots;
    first_.decode(step_, to[0]);
    if (panel_ + 1 < a_.panel_end) second_.decode(step_, to[1]);
    if (++step_ == steps_) begin_pair(panel_ + kPair);
  }
  std::int64_t last_of(std::int64_t panel) const { return std::min(panel + 1, a_.panel_end - 1); }
  void begin_pair(std::int64_t panel) {
    panel_ = panel;
    step_ = 0;
    if (panel_ >= a_.panel_end) return;
    ahead_ = Ahead<kPair, Weights::kStepBytes>(a_, panel_);
    first_ = typename Weights::Panel(*a_.w, panel_);
    second_ = typename Weights::Panel(*a_.w, last_of(panel_));
    ask_scales();
  }
  /// The next pair begins with all of its scales at once.
  void ask_scales() const {
    if (!Weights::kDecoded || Weights::kCuts) return;
    const std::int64_t bytes = std::int64_t(a_.w->layout.panel_scale_bytes());
    const std::int64_t ahead = std::min<std::int64_t>(kPair, a_.panel_end - panel_ - kPair);
    const std::byte* scales = a_.w->scales + (panel_ + kPair) * bytes;
    for (std::int64_t i = 0; i < ahead * bytes; i += 64)
      _mm_prefetch(reinterpret_cast<const char*>(scales + i), _MM_HINT_T0);
  }

  const PanelGemmArgs& a_;
  Buffers& room_;
  std::int64_t steps_, panel_, step_ = 0;
  int written_ = 0, read_ = 0;
  Ahead<kPair, Weights::kStepBytes> ahead_;
  typename Weights::Panel first_, second_;
};

// ---- products ----

// Tile registers, spelled as literals because g++ 12 pastes them into the assembler text. Sums of
// row tile t and panel p: 2t + p. Up to two row tiles: 4, 5 inputs, 6, 7 weights; three: 6, 7.

void configure(const Block& b) {
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    c.bytes_per_row[t] = 64;
    c.rows[t] = std::uint8_t(t < 6 ? b.height() : kTileRows);
  }
  if (b.tiles() == 3) c.rows[6] = std::uint8_t(b.height());
  before_tile_load();
  _tile_loadconfig(&c);
}

/// What one step multiplies.
struct Step {
  const std::byte* x[kMostTiles];
  std::int64_t x_stride;
  const std::byte* w[kPair];
};

template <int Tiles, int Panels>
inline __attribute__((always_inline)) void multiply(const Step& s) {
  before_tile_load();
  if constexpr (Tiles < 3) {
    _tile_loadd(4, s.x[0], s.x_stride);
    _tile_loadd(6, s.w[0], 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (Panels == 2) {
      _tile_loadd(7, s.w[1], 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (Tiles == 2) {
      _tile_loadd(5, s.x[1], s.x_stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (Panels == 2) _tile_dpbf16ps(3, 5, 7);
    }
  } else {
    _tile_loadd(7, s.w[0], 64);
    _tile_loadd(6, s.x[0], s.x_stride);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, s.x[1], s.x_stride);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(6, s.x[2], s.x_stride);
    _tile_dpbf16ps(4, 6, 7);
    if constexpr (Panels == 2) {
      _tile_loadd(7, s.w[1], 64);
      _tile_dpbf16ps(5, 6, 7);
      _tile_loadd(6, s.x[1], s.x_stride);
      _tile_dpbf16ps(3, 6, 7);
      _tile_loadd(6, s.x[0], s.x_stride);
      _tile_dpbf16ps(1, 6, 7);
    }
  }
}

template <int Tiles>
inline __attribute__((always_inline)) void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (Tiles > 1) {
    _tile_zero(2);
    _tile_zero(3);
  }
  if constexpr (Tiles > 2) {
    _tile_zero(4);
    _tile_zero(5);
  }
}

template <int Tiles>
inline __attribute__((always_inline)) void store_sums(float (*to)[kPair][kTileRows * kPanelRows]) {
  _tile_stored(0, to[0][0], 64);
  _tile_stored(1, to[0][1], 64);
  if constexpr (Tiles > 1) {
    _tile_stored(2, to[1][0], 64);
    _tile_stored(3, to[1][1], 64);
  }
  if constexpr (Tiles > 2) {
    _tile_stored(4, to[2][0], 64);
    _tile_stored(5, to[2][1], 64);
  }
  before_tile_load();  // nor do the stores tell that they write
}

/// A pair of panels, or the last one alone.
struct Pair {
  std::int64_t panel;
  int panels;
};

/// Adds the sums of cut `cut`, scaled, to the totals.
void close_cut(const Block& b, const Pair& pair, std::int64_t cut, Buffers& room) {
  const PanelLayout& l = b.a.w->layout;
  for (int p = 0; p < pair.panels; ++p) {
    const std::byte* scales =
        b.a.w->scales + (pair.panel + p) * std::int64_t(l.panel_scale_bytes());
    const __m512 scale = F32Scale::load(scales, cut);
    for (std::int64_t t = 0; t < b.tiles(); ++t)
      for (std::int64_t i = 0; i < b.height(); ++i) {
        __m512 s = scale;
        if (b.a.x.block_scales != nullptr)
          s = _mm512_mul_ps(
              s, _mm512_set1_ps(b.a.x.block_scales[b.input(b.begin(t) + i) * b.a.x.scale_stride +
                                                   cut * l.cut() / 128]));
        float* total = room.totals[t][p] + i * kPanelRows;
        const float* sum = room.sums[t][p] + i * kPanelRows;
        _mm512_store_ps(total, _mm512_fmadd_ps(_mm512_load_ps(sum), s, _mm512_load_ps(total)));
      }
  }
}

/// Writes the outputs of a pair from `sums`.
template <class Weights>
void finish(const Block& b, const Pair& pair, const float (*sums)[kPair][kTileRows * kPanelRows]) {
  for (int p = 0; p < pair.panels; ++p) {
    const __m512 scale = Weights::scale(*b.a.w, pair.panel + p);
    for (std::int64_t t = 0; t < b.tiles(); ++t)
      for (std::int64_t i = 0; i < b.height(); ++i) {
        const std::int64_t row = b.begin(t) + i;
        const float row_scale = b.a.x.row_scales != nullptr ? b.a.x.row_scales[b.input(row)] : 1.0f;
        const __m512 sum = _mm512_mul_ps(_mm512_load_ps(sums[t][p] + i * kPanelRows), scale);
        store_outputs(b.a, pair.panel + p, sum, row_scale, b.a.y + (b.first + row) * b.a.y_stride);
      }
  }
}

/// One pair of panels times the rows of a block, all of K.
template <class Weights, int Tiles, int Panels>
void run_pair(const Block& b, std::int64_t panel, DecodedAhead<Weights>& ahead, Buffers& room) {
  const PanelLayout& l = b.a.w->layout;
  const std::int64_t steps = l.steps(), per_cut = l.cut() / kPanelStep;
  const std::int64_t panel_bytes = std::int64_t(l.panel_code_bytes());
  const std::byte* codes = b.a.w->codes + panel * panel_bytes;
  Step step{.x = {}, .x_stride = b.x_stride, .w = {}};
  for (int t = 0; t < Tiles; ++t) step.x[t] = b.x + b.begin(t) * b.x_stride;
  clear_sums<Tiles>();
  if (Weights::kCuts) std::memset(room.totals, 0, sizeof(room.totals));
  std::int64_t cut = 0, cut_end = per_cut;
  for (std::int64_t s = 0; s < steps; ++s) {
    const std::byte* decoded = ahead.next();
    for (int p = 0; p < Panels; ++p)
      step.w[p] = Weights::kDecoded ? decoded + p * kTileBytes
                                    : codes + p * panel_bytes + s * Weights::kStepBytes;
    multiply<Tiles, Panels>(step);
    for (int t = 0; t < Tiles; ++t) step.x[t] += b.x_step;
    if (!Weights::kCuts || (s + 1 != cut_end && s + 1 != steps)) continue;
    store_sums<Tiles>(room.sums);
    close_cut(b, {panel, Panels}, cut++, room);
    clear_sums<Tiles>();
    cut_end += per_cut;
  }
  if (!Weights::kCuts) store_sums<Tiles>(room.sums);
  finish<Weights>(b, {panel, Panels}, Weights::kCuts ? room.totals : room.sums);
}

template <class Weights, int Tiles>
void run_block(const Block& b, Buffers& room) {
  DecodedAhead<Weights> ahead(b.a, room);
  std::int64_t panel = b.a.panel_begin;
  for (; panel + kPair <= b.a.panel_end; panel += kPair)
    run_pair<Weights, Tiles, kPair>(b, panel, ahead, room);
  if (panel < b.a.panel_end) run_pair<Weights, Tiles, 1>(b, panel, ahead, room);
}

template <class Weights>
void gemm(const PanelGemmArgs& a) {
  if (a.num_rows == 0 || a.panel_begin == a.panel_end) return;
  Buffers room;
  const bool scattered = a.index != nullptr && a.scratch == nullptr;
  const int most = scattered ? 1 : int(kGatheredRows);
  cut_rows(a.num_rows, most, [&](Cut rows) {
    Block b{a, rows.first, rows.count};
    place(b);
    configure(b);
    if (b.tiles() == 1) return run_block<Weights, 1>(b, room);
    if (b.tiles() == 2) return run_block<Weights, 2>(b, room);
    run_block<Weights, 3>(b, room);
  });
  _tile_release();
}

/// Panels whose scales can be folded; the others are multiplied block by block.
void fold_where_possible(const PanelGemmArgs& a) {
  for (std::int64_t panel = a.panel_begin; panel < a.panel_end;) {
    bool folds = true;
    PanelGemmArgs part = a;
    part.panel_begin = panel;
    part.panel_end = panel + alike(*a.w, panel, a.panel_end - panel, folds);
    part.y += (panel - a.panel_begin) * kPanelRows;
    if (folds) {
      gemm<E2m1Weights<E8m0Fold>>(part);
    } else {
      panel_gemm_blocks_avx512(part);
    }
    panel = part.panel_end;
  }
}

}  // namespace

void panel_gemm_amx(const PanelGemmArgs& a) {
  using formats::Element;
  const PanelLayout& l = a.w->layout;
  if (a.x.floats != nullptr) return panel_gemm_avx512(a);  // tiles multiply bf16 only
  if (l.element == Element::kBf16) return gemm<Bf16Weights>(a);
  if (l.element == Element::kE4m3) return gemm<E4m3Weights>(a);
  if (a.x.block_scales != nullptr) return panel_gemm_avx512(a);
  if (l.scale == formats::ScaleType::kE8m0) return fold_where_possible(a);
  gemm<E2m1Weights<E4m3Fold>>(a);
}

}  // namespace switchyard::ops
