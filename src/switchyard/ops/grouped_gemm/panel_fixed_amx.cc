// SPDX-License-Identifier: Apache-2.0
// E2M1 panels times integer rows on AMX: a bf16 tile product of integers is exact over a block, so
// its sums are those of the byte dot products of AVX-512, bit for bit, and few rows go there.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "switchyard/ops/grouped_gemm/panel_decode_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_fixed.h"
#include "switchyard/ops/grouped_gemm/panel_fixed_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_tiles_amx.h"

namespace switchyard::ops {
namespace {

// ---- rows ----

/// The 16 integers of `pairs` in units of 2 * `unit`, split at 2^11; what is no integer gives
/// anything, and its quad is listed.
void split_integers(const std::uint16_t* pairs, float unit, std::byte* high, std::byte* low) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
  const __m512 v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  const __m512 to_integer = _mm512_set1_ps(unit == 0 ? 0.0f : 0.5f / unit);
  const __m512i i = _mm512_cvtps_epi32(_mm512_mul_ps(v, to_integer));
  const __m512i half = _mm512_set1_epi32(1 << 10);
  const __m512i h = _mm512_slli_epi32(_mm512_srai_epi32(_mm512_add_epi32(i, half), 11), 11);
  const auto store = [&](__m512i part, std::byte* to) {
    const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(part), _mm512_set1_ps(2 * unit));
    const __m512i top = _mm512_srli_epi32(_mm512_castps_si512(value), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(top));
  };
  store(h, high);
  store(_mm512_sub_epi32(i, h), low);
}

FixedHeader header_of(const std::byte* record) {
  FixedHeader header;
  std::memcpy(&header, record, sizeof(header));
  return header;
}

// ---- a piece: up to kPieceSteps steps of one panel times up to kMostRows rows ----

constexpr std::int64_t kMostRows = 64;
constexpr std::int64_t kPieceSteps = 8;
// Of one plane of a gathered row; a row is another line longer, which keeps rows out of one set.
constexpr std::int64_t kPieceRow = kPieceSteps * 64;

struct Buffers {
  alignas(64) std::byte inputs[kMostRows * (2 * kPieceRow + 64)];
  alignas(64) std::byte weights[kPieceSteps * kTileBytes];
  alignas(64) float sums[2][4][kTileRows * kPanelRows];
};

/// The rows of one call that are multiplied together, in tiles of equal height.
struct Block {
  const PanelGemmArgs& a;
  std::int64_t first, rows;
  std::int64_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  std::int64_t height() const { return (rows + tiles() - 1) / tiles(); }
  std::int64_t input(std::int64_t i) const {
    return a.index != nullptr ? a.index[first + i] : first + i;
  }
  const std::byte* fixed(std::int64_t i) const { return a.x.fixed + input(i) * a.x.fixed_stride; }
};

// Tile registers, spelled as literals because g++ 12 pastes them into the assembler text:
//   0..3 sums of four products · 4, 5 inputs · 6, 7 weights.

/// Sum C = inputs at `x` times the weights at `w`, or those of the product before where `w` is
/// null.
template <int C>
inline __attribute__((always_inline)) void multiply(const std::byte* x, std::int64_t stride,
                                                    const std::byte* w) {
  if constexpr (C == 0) {
    _tile_zero(0);
    _tile_loadd(4, x, stride);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
  } else if constexpr (C == 1) {
    _tile_zero(1);
    _tile_loadd(5, x, stride);
    if (w == nullptr) {
      _tile_dpbf16ps(1, 5, 6);
    } else {
      _tile_loadd(7, w, 64);
      _tile_dpbf16ps(1, 5, 7);
    }
  } else if constexpr (C == 2) {
    _tile_zero(2);
    _tile_loadd(4, x, stride);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(2, 4, 6);
  } else {
    _tile_zero(3);
    _tile_loadd(5, x, stride);
    if (w == nullptr) {
      _tile_dpbf16ps(3, 5, 6);
    } else {
      _tile_loadd(7, w, 64);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
}

template <int Cols, int Digits>
struct Shape {
  static constexpr int kPlanes = Digits - 1;
  static constexpr std::int64_t kBlocksPerStep = kPanelStep / Cols;
  static constexpr std::int64_t kGroup = 4 / kPlanes;  // blocks whose sums are out together
  static constexpr std::int64_t kRowBytes = kPlanes * kPieceRow + 64;
  static constexpr std::int64_t kBlockBytes = 2 * Cols;                    // of a row
  static constexpr std::int64_t kWeightBytes = Cols / 2 * kPanelRows * 4;  // of a panel, decoded
};

/// Starts the products of up to four sums and stores them.
template <int Cols, int Digits>
inline __attribute__((always_inline)) void sum_group(const std::byte* x, const std::byte* w,
                                                     std::int64_t count,
                                                     float (*sums)[kTileRows * kPanelRows]) {
  using S = Shape<Cols, Digits>;
  const auto inputs = [&](std::int64_t block) { return x + block * S::kBlockBytes; };
  const auto weights = [&](std::int64_t block) { return w + block * S::kWeightBytes; };
  if constexpr (S::kPlanes == 1) {
    multiply<0>(inputs(0), S::kRowBytes, weights(0));
    if (count > 1) multiply<1>(inputs(1), S::kRowBytes, weights(1));
    if (count > 2) multiply<2>(inputs(2), S::kRowBytes, weights(2));
    if (count > 3) multiply<3>(inputs(3), S::kRowBytes, weights(3));
  } else {
    multiply<0>(inputs(0), S::kRowBytes, weights(0));
    multiply<1>(inputs(0) + kPieceRow, S::kRowBytes, nullptr);
    if (count > 1) {
      multiply<2>(inputs(1), S::kRowBytes, weights(1));
      multiply<3>(inputs(1) + kPieceRow, S::kRowBytes, nullptr);
    }
  }
  _tile_stored(0, sums[0], 64);
  if (S::kPlanes == 2 || count > 1) _tile_stored(1, sums[1], 64);
  if (count > (S::kPlanes == 2 ? 1 : 2)) _tile_stored(2, sums[2], 64);
  if (count > (S::kPlanes == 2 ? 1 : 3)) _tile_stored(3, sums[3], 64);
}

/// Counts the weights' cuts along the blocks of a piece.
struct Cuts {
  std::int64_t cut, left, per_cut;
  std::int64_t next() {
    const std::int64_t here = cut;
    if (--left == 0) ++cut, left = per_cut;
    return here;
  }
};

/// Adds the sums of `count` blocks, scaled, to the totals of 16 rows.
template <class Scale, int Digits>
inline __attribute__((always_inline)) void add_group(const float (*sums)[kTileRows * kPanelRows],
                                                     std::int64_t count, const std::byte* scales,
                                                     Cuts& cuts, __m512 (&total)[kTileRows]) {
  for (std::int64_t block = 0; block < count; ++block) {
    const __m512 scale = Scale::load(scales, cuts.next());
    const float* part = sums[block * (Digits - 1)];
#pragma GCC unroll 16
    for (int m = 0; m < kTileRows; ++m) {
      __m512 sum = _mm512_load_ps(part + m * kPanelRows);
      if constexpr (Digits == 3)  // both exact, and so rounded once
        sum = _mm512_add_ps(sum, _mm512_load_ps(part + (kTileRows + m) * kPanelRows));
      total[m] = _mm512_fmadd_ps(sum, scale, total[m]);
    }
  }
}

struct Piece {
  std::int64_t panel, step, steps;
};

/// Adds a piece to the totals of one row tile, which lie in the outputs.
template <class Scale, int Cols, int Digits>
void add_piece(const Block& b, const Piece& p, std::int64_t tile, Buffers& room) {
  using S = Shape<Cols, Digits>;
  const PanelLayout& l = b.a.w->layout;
  const std::byte* scales = b.a.w->scales + p.panel * std::int64_t(l.panel_scale_bytes());
  const std::int64_t row = tile * b.height(), rows = std::min(b.height(), b.rows - row);
  const std::byte* x = room.inputs + row * S::kRowBytes;
  float* y = b.a.y + (b.first + row) * b.a.y_stride + (p.panel - b.a.panel_begin) * kPanelRows;
  const auto mask = [&](int m) { return __mmask16(m < rows ? 0xffff : 0); };
  const auto place = [&](int m) { return y + std::min<std::int64_t>(m, rows - 1) * b.a.y_stride; };
  __m512 total[kTileRows];
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; ++m)
    total[m] = p.step == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask(m), place(m));

  const std::int64_t per_cut = l.cut() / Cols, begin = p.step * S::kBlocksPerStep;
  Cuts cuts{begin / per_cut, per_cut - begin % per_cut, per_cut};
  const std::int64_t blocks = p.steps * S::kBlocksPerStep;
  const auto count = [&](std::int64_t block) { return std::min(S::kGroup, blocks - block); };
  before_tile_load();
  sum_group<Cols, Digits>(x, room.weights, count(0), room.sums[0]);
  int now = 0;
  for (std::int64_t block = 0; block < blocks; block += S::kGroup, now = 1 - now) {
    const std::int64_t next = block + S::kGroup;
    if (next < blocks)
      sum_group<Cols, Digits>(x + next * S::kBlockBytes, room.weights + next * S::kWeightBytes,
                              count(next), room.sums[1 - now]);
    add_group<Scale, Digits>(room.sums[now], count(block), scales, cuts, total);
  }
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; ++m) _mm512_mask_storeu_ps(place(m), mask(m), total[m]);
}

// ---- a block: all pieces, then what the sums do not hold ----

template <int Digits>
void gather(const Block& b, std::int64_t step, std::int64_t steps, Buffers& room) {
  using S = Shape<32, Digits>;
  const std::int64_t cols = b.a.w->layout.padded_cols();
  const std::int64_t planes =
      FixedForm{int(std::min<std::int64_t>(b.a.w->layout.cut(), 32)), Digits}.planes_offset(cols);
  for (std::int64_t i = 0; i < b.rows; ++i) {
    const std::byte* from = b.fixed(i) + planes + step * 64;
    std::byte* to = room.inputs + i * S::kRowBytes;
    for (int plane = 0; plane < S::kPlanes; ++plane, from += 2 * cols, to += kPieceRow)
      for (std::int64_t s = 0; s < steps; ++s)
        _mm512_store_si512(to + s * 64, _mm512_loadu_si512(from + s * 64));
  }
}

void decode(const PanelLayout& l, const std::byte* codes, const Piece& p, Buffers& room) {
  const std::byte* from =
      codes + p.panel * std::int64_t(l.panel_code_bytes()) + p.step * std::int64_t(l.step_bytes());
  const std::int64_t quads = p.steps * kPanelStep / kQuadCols;
  for (std::int64_t q = 0; q < quads; ++q) {
    __m512i w[4];
    E2m1Codec::decode(from + q * E2m1Codec::kQuadBytes, w);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) _mm512_store_si512(room.weights + (4 * q + j) * 64, w[j]);
  }
}

void prefetch(const PanelLayout& l, const std::byte* codes, const Piece& p) {
  const std::byte* from =
      codes + p.panel * std::int64_t(l.panel_code_bytes()) + p.step * std::int64_t(l.step_bytes());
  for (std::int64_t i = 0; i < kPieceSteps * std::int64_t(l.step_bytes()); i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T0);
}

template <int Cols>
void configure(std::int64_t height) {
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    c.bytes_per_row[t] = std::uint16_t(t == 4 || t == 5 ? 2 * Cols : 64);
    c.rows[t] = std::uint8_t(t < 6 ? height : Cols / 2);
  }
  before_tile_load();
  _tile_loadconfig(&c);
}

template <class Scale, int Cols, int Digits>
void run_block(const Block& b, Buffers& room) {
  const PanelLayout& l = b.a.w->layout;
  const std::int64_t steps = l.steps();
  configure<Cols>(b.height());
  // Up to three rows more than there are, which tiles of equal height read.
  std::memset(room.inputs + b.rows * Shape<Cols, Digits>::kRowBytes, 0,
              std::size_t((b.tiles() * b.height() - b.rows) * Shape<Cols, Digits>::kRowBytes));
  for (std::int64_t step = 0; step < steps; step += kPieceSteps) {
    const std::int64_t here = std::min(kPieceSteps, steps - step);
    gather<Digits>(b, step, here, room);
    for (std::int64_t panel = b.a.panel_begin; panel < b.a.panel_end; ++panel) {
      const std::int64_t ahead = panel + 2;
      if (ahead < b.a.panel_end) {
        prefetch(l, b.a.w->codes, {ahead, step, here});
      } else if (step + kPieceSteps < steps) {
        prefetch(l, b.a.w->codes,
                 {std::max(b.a.panel_begin, ahead - (b.a.panel_end - b.a.panel_begin)),
                  step + kPieceSteps, here});
      }
      decode(l, b.a.w->codes, {panel, step, here}, room);
      for (std::int64_t tile = 0; tile < b.tiles(); ++tile)
        add_piece<Scale, Cols, Digits>(b, {panel, step, here}, tile, room);
    }
  }
  const FixedForm form{Cols, Digits};
  for (std::int64_t i = 0; i < b.rows; ++i) {
    const std::int64_t row = b.input(i);
    const RestOfRow rest{listed_quads(b.fixed(i) + form.list_offset(l.padded_cols())),
                         b.a.x.pairs + row * b.a.x.stride,
                         b.a.x.row_scales != nullptr ? b.a.x.row_scales[row] : 1.0f};
    float* y = b.a.y + (b.first + i) * b.a.y_stride;
    for (std::int64_t p = b.a.panel_begin; p < b.a.panel_end; ++p, y += kPanelRows)
      _mm512_storeu_ps(y, finish_sum<Scale>(*b.a.w, p, rest, _mm512_loadu_ps(y)));
  }
}

/// Whether tiles may multiply all rows of the block.
bool tileable(const Block& b, const FixedForm& form) {
  const std::int64_t at = form.tileable_offset(b.a.w->layout.padded_cols());
  for (std::int64_t i = 0; i < b.rows; ++i) {
    std::int32_t word = 0;
    std::memcpy(&word, b.fixed(i) + at, sizeof(word));
    if (word == 0) return false;
  }
  return true;
}

/// The block in byte dot products.
void run_bytes(const Block& b) {
  PanelGemmArgs part = b.a;
  if (part.index != nullptr) {
    part.index += b.first;
  } else {
    part.x = part.x.from_row(b.first);
  }
  part.num_rows = b.rows;
  part.y += b.first * part.y_stride;
  panel_gemm_fixed_avx512(part);
}

template <class Scale, int Cols, int Digits>
void gemm(const PanelGemmArgs& a) {
  Buffers room;
  std::memset(room.sums, 0, sizeof(room.sums));  // lower tiles leave rows, which are added unread
  const std::int64_t from = a.tiles_from > 0 ? a.tiles_from : kTilesFrom;
  bool tiles = false;
  for (std::int64_t i = 0; i < a.num_rows; i += kMostRows) {
    const Block b{a, i, std::min(kMostRows, a.num_rows - i)};
    if (b.rows < from || !tileable(b, {Cols, Digits})) {
      run_bytes(b);
      continue;
    }
    tiles = true;
    run_block<Scale, Cols, Digits>(b, room);
  }
  if (tiles) _tile_release();
}

template <class Scale>
void gemm(const PanelGemmArgs& a) {
  const bool narrow = a.w->layout.cut() == 16;
  if (a.x.digits == 2) return narrow ? gemm<Scale, 16, 2>(a) : gemm<Scale, 32, 2>(a);
  return narrow ? gemm<Scale, 16, 3>(a) : gemm<Scale, 32, 3>(a);
}

}  // namespace

void fix_row_amx(const FixedForm& form, const std::uint16_t* pairs, std::int64_t padded_cols,
                 std::byte* row) {
  // The units of blocks up to 2^101: their sums are far from overflow, in any order.
  const float largest_unit = form.digits == 2 ? 0x1p86f : 0x1p78f;
  fix_row_avx512(form, pairs, padded_cols, row);
  std::byte* const planes = row + form.planes_offset(padded_cols);
  const std::int64_t plane_bytes = 2 * padded_cols;
  if (form.digits == 2) std::memcpy(planes, pairs, std::size_t(plane_bytes));
  std::int32_t tileable = 1;
  for (std::int64_t k = 0; k < padded_cols; k += form.cols) {
    const float unit = header_of(row + k / form.cols * form.record_bytes()).unit;
    if (unit > largest_unit) tileable = 0;
    for (std::int64_t c = k; form.digits == 3 && c < k + form.cols; c += 16)
      split_integers(pairs + c, unit, planes + 2 * c, planes + plane_bytes + 2 * c);
  }
  for (const std::int32_t q : listed_quads(row + form.list_offset(padded_cols)))
    for (int plane = 0; plane < form.digits - 1; ++plane)
      std::memset(planes + plane * plane_bytes + q * 2 * kQuadCols, 0, 2 * kQuadCols);
  std::memcpy(row + form.tileable_offset(padded_cols), &tileable, sizeof(tileable));
}

void panel_gemm_fixed_amx(const PanelGemmArgs& a) {
  if (a.w->layout.scale == formats::ScaleType::kE8m0) return gemm<E8m0Scale>(a);
  gemm<E4m3Scale>(a);
}

}  // namespace switchyard::ops
