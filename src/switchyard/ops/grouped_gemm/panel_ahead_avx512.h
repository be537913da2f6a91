// SPDX-License-Identifier: Apache-2.0
#pragma once

// Software prefetch of panels, for the twins of AVX-512 and above; internal linkage as in
// panel_decode_avx512.h.

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers)

/// Which tile of rows, of how many, multiplies panels that lie near for all of them: `near` panels
/// from `first` on.
struct Turn {
  std::int64_t tile = 0, tiles = 1;
  std::int64_t first = 0, near = 0;
};

/// Asks for what the streams of P panels read next. The first tile of rows runs ahead of itself,
/// into the second-level cache and then the first: the processor's own prefetcher starts late and
/// stops at pages. At the end of its panel a stream goes on where the next P panels begin: the
/// call's own, or what is read after the call. So no stream starts cold. Where nothing is known to
/// be read after it, the addresses behind the call's panels are asked for in vain, which is
/// harmless: a prefetch neither faults nor changes anything. The other tiles find their panels near
/// and share the next ones among themselves, so that memory delivers while they multiply.
template <int P, std::int64_t UnitBytes>
class Ahead {
 public:
  Ahead(const PanelGemmArgs& a, std::int64_t panel, const Turn& turn = {})
      : panel_(std::int64_t(a.w->layout.panel_code_bytes())), first_(turn.tile == 0) {
    const std::byte* codes = a.w->codes + panel * panel_;
    if (first_) {
      begin_own(a, panel, codes);
      return;
    }
    const std::int64_t next = turn.first + turn.near, lines = panel_ / 64;
    near_ = nullptr;
    far_ = next >= a.panel_end && a.next != nullptr ? a.next + (panel - turn.first) * panel_
                                                    : codes + turn.near * panel_;
    const std::int64_t others = turn.tiles - 1, share = (lines + others - 1) / others;
    const std::int64_t begin = std::min(lines, (turn.tile - 1) * share);
    far_ += begin * 64;
    far_left_ = std::min(lines - begin, share);
    lines_ = (UnitBytes / 64 + others - 1) / others;
  }

  void ask() {
    if (first_) return ask_own();
    for (std::int64_t i = 0; i < lines_ && far_left_ > 0; ++i, --far_left_, far_ += 64)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        _mm_prefetch(reinterpret_cast<const char*>(far_ + p * panel_), _MM_HINT_T1);
  }

 private:
  static constexpr std::int64_t kNear = 1024, kFar = 8192;

  void begin_own(const PanelGemmArgs& a, std::int64_t panel, const std::byte* codes) {
    near_left_ = (panel_ - kNear) / UnitBytes;
    far_left_ = (panel_ - kFar) / UnitBytes;
    near_ = codes + kNear;
    far_ = codes + kFar;
    after_ = a.next != nullptr && panel + P >= a.panel_end ? a.next : codes + P * panel_;
    if (near_left_ <= 0) near_ = after_;  // the panel is shorter than the way ahead
    if (far_left_ <= 0) far_ = after_;
  }

  void ask_own() {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p)
      for (std::int64_t line = 0; line < UnitBytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(far_ + p * panel_ + line), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(near_ + p * panel_ + line), _MM_HINT_T0);
      }
    near_ += UnitBytes;
    far_ += UnitBytes;
    if (--near_left_ == 0) near_ = after_;
    if (--far_left_ == 0) far_ = after_;
  }

  std::int64_t panel_, near_left_ = 0, far_left_ = 0, lines_ = 0;
  const std::byte *near_ = nullptr, *far_ = nullptr, *after_ = nullptr;
  bool first_;
};

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace switchyard::ops
