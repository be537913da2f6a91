// SPDX-License-Identifier: Apache-2.0
#pragma once

// Software prefetch of panels, for the twins of AVX-512 and above; internal linkage as in
// panel_decode_avx512.h.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers)

/// Asks for what the streams of P panels read next, into the second-level cache and then the first:
/// the processor's own prefetcher starts late and stops at pages. At the end of its panel a stream
/// goes on where the next P panels begin: the call's own, or what is read after the call. So no
/// stream starts cold, and none is read beyond its end.
template <int P, std::int64_t UnitBytes>
class Ahead {
 public:
  Ahead(const PanelGemmArgs& a, std::int64_t panel)
      : panel_(std::int64_t(a.w->layout.panel_code_bytes())),
        near_left_((panel_ - kNear) / UnitBytes),
        far_left_((panel_ - kFar) / UnitBytes) {
    const std::byte* codes = a.w->codes + panel * panel_;
    near_ = codes + kNear;
    far_ = codes + kFar;
    after_ = a.next != nullptr && panel + P >= a.panel_end ? a.next : codes + P * panel_;
    if (near_left_ <= 0) near_ = after_;  // the panel is shorter than the way ahead
    if (far_left_ <= 0) far_ = after_;
  }

  void ask() {
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

 private:
  static constexpr std::int64_t kNear = 1024, kFar = 8192;
  std::int64_t panel_, near_left_, far_left_;
  const std::byte *near_, *far_, *after_;
};

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace switchyard::ops
