// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <algorithm>
#include <cstddef>

#include "switchyard/ops/grouped_gemm/panel_ahead_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_decode_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_fold_avx512.h"
#include "switchyard/ops/grouped_gemm/panel_folded.h"
#include "switchyard/ops/grouped_gemm/panel_rows_avx512.h"

namespace switchyard::ops {
namespace {

constexpr int kPair = kKeptPanels;
constexpr std::int64_t kQuadRoom = kPair * 4 * 64;

/// The decoded panels of a pair: what their rows' sums are worth, then the weights, quad by quad,
/// panel by panel.
class Room {
 public:
  explicit Room(std::byte* memory) : memory_(memory) {}
  bool exists() const { return memory_ != nullptr; }
  float* scale(int p) const { return reinterpret_cast<float*>(memory_ + p * 64); }
  std::byte* registers(std::int64_t quad, int p) const {
    return memory_ + kPair * 64 + quad * kQuadRoom + p * 4 * 64;
  }

 private:
  std::byte* memory_;
};

/// P panels as they are packed, decoded quad by quad, and kept in `room` where there is one.
template <int P>
class PackedStream {
 public:
  PackedStream(const PanelGemmArgs& a, std::int64_t panel, Room room)
      : l_(a.w->layout), room_(room), ahead_(a, panel) {
    codes_ = a.w->codes + panel * std::int64_t(l_.panel_code_bytes());
    scales_ = a.w->scales + panel * scale_bytes();
    // The next panels begin with all of their scales at once.
    const std::int64_t ahead = std::min<std::int64_t>(P, a.panel_end - panel - P);
    for (std::int64_t i = P * scale_bytes(); i < (P + ahead) * scale_bytes(); i += 64)
      _mm_prefetch(reinterpret_cast<const char*>(scales_ + i), _MM_HINT_T0);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      folds_[p] = E8m0Fold(scales_ + p * scale_bytes(), l_.blocks());
      if (keeps()) _mm512_store_ps(room_.scale(p), folds_[p].scale());
    }
  }

  void begin_block(std::int64_t block) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) block_[p] = folds_[p].block(block);
  }

  void load(std::int64_t quad, __m512i (&w)[P][4]) {
    ahead_.ask();
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      weigh_quad(codes_ + p * std::int64_t(l_.panel_code_bytes()) + quad * E2m1Codec::kQuadBytes,
                 E8m0Fold::table(), block_[p], w[p]);
    if (!keeps()) return;
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) _mm512_store_si512(room_.registers(quad, p) + 64 * j, w[p][j]);
  }

  __m512 scale(int p) const { return folds_[p].scale(); }

 private:
  bool keeps() const { return P <= kPair && room_.exists(); }
  std::int64_t scale_bytes() const { return std::int64_t(l_.panel_scale_bytes()); }

  const PanelLayout& l_;
  Room room_;
  Ahead<P, E2m1Codec::kQuadBytes> ahead_;
  const std::byte *codes_, *scales_;
  E8m0Fold folds_[P];
  E8m0Fold::Block block_[P];
};

/// What a PackedStream kept.
template <int P>
class KeptStream {
 public:
  KeptStream(const PanelGemmArgs&, std::int64_t, Room room) : room_(room) {}
  void begin_block(std::int64_t) {}
  void load(std::int64_t quad, __m512i (&w)[P][4]) {
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) w[p][j] = _mm512_load_si512(room_.registers(quad, p) + 64 * j);
  }
  __m512 scale(int p) const { return _mm512_load_ps(room_.scale(p)); }

 private:
  Room room_;
};

/// P panels times M rows; one sum each, through all of K.
template <template <int> class Stream>
struct FoldedTile {
  using Input = PairInput;
  static constexpr int kMostRows = 8;
  Room room;

  template <int P, int M>
  void run(const PanelGemmArgs& a, std::int64_t panel, const Rows<PairInput>& rows) const {
    const PanelLayout& l = a.w->layout;
    const std::int64_t cut = l.cut() / kQuadCols, quads = l.padded_cols() / kQuadCols;
    Stream<P> stream(a, panel, room);
    __m512 sum[P][M];
    for (int p = 0; p < P; ++p)
      for (int m = 0; m < M; ++m) sum[p][m] = _mm512_setzero_ps();
    for (std::int64_t b = 0, q = 0; q < quads; ++b) {
      stream.begin_block(b);
      for (const std::int64_t end = std::min(q + cut, quads); q < end; ++q) {
        __m512i w[P][4];
        stream.load(q, w);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j)
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p)
              sum[p][m] =
                  PairInput::madd<E2m1Codec>(sum[p][m], w[p][j], rows.x[m] + q * kQuadCols + 2 * j);
      }
    }
    for (int p = 0; p < P; ++p)
      for (int m = 0; m < M; ++m)
        store_outputs(a, panel + p, _mm512_mul_ps(sum[p][m], stream.scale(p)), rows.row_scale[m],
                      rows.y[m]);
  }
};

/// The first tile of rows decodes a pair of panels, the others find it decoded.
void many_rows(const PanelGemmArgs& a, std::int64_t panel, int panels) {
  const Room room(a.scratch);
  for (int p = 0; p < panels; p += kPair)
    cut_rows(a.num_rows, FoldedTile<PackedStream>::kMostRows, [&](Cut rows) {
      constexpr int kMost = FoldedTile<PackedStream>::kMostRows;
      const int here = std::min(kPair, panels - p);
      if (rows.first == 0) {
        counted_tile<kMost>(FoldedTile<PackedStream>{room}, a, panel + p, here, rows);
      } else {
        counted_tile<kMost>(FoldedTile<KeptStream>{room}, a, panel + p, here, rows);
      }
    });
}

void fold(const PanelGemmArgs& a, std::int64_t panel, int panels) {
  const bool keeps = a.scratch != nullptr && panel_scratch_bytes(a.w->layout, CpuIsa::kZen4) > 0;
  if (keeps && a.num_rows > FoldedTile<PackedStream>::kMostRows) return many_rows(a, panel, panels);
  all_rows(FoldedTile<PackedStream>{Room(nullptr)}, a, panel, panels);
}

}  // namespace

void panel_gemm_folded_avx512(const PanelGemmArgs& a) {
  for (std::int64_t panel = a.panel_begin; panel < a.panel_end;) {
    bool folds = true;
    const int panels =
        int(alike(*a.w, panel, std::min<std::int64_t>(kNearPanels, a.panel_end - panel), folds));
    if (folds) {
      fold(a, panel, panels);
    } else {
      PanelGemmArgs part = a;
      part.panel_begin = panel;
      part.panel_end = panel + panels;
      part.y += (panel - a.panel_begin) * kPanelRows;
      panel_gemm_blocks_avx512(part);
    }
    panel += panels;
  }
}

void decode_folded_avx512(const PanelMatrix& w, std::int64_t panel, std::uint16_t* weights,
                          float* scale) {
  const auto decode = [&](const auto& folded) {
    for (std::int64_t step = 0; step < w.layout.steps(); ++step)
      folded.decode(step, reinterpret_cast<std::byte*>(weights + step * kPanelRows * kPanelStep));
    _mm512_storeu_ps(scale, folded.scale());
  };
  if (w.layout.scale == formats::ScaleType::kE8m0) return decode(FoldedPanel<E8m0Fold>(w, panel));
  decode(FoldedPanel<E4m3Fold>(w, panel));
}

}  // namespace switchyard::ops
