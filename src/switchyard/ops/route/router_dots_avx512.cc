// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "switchyard/ops/route/router_dots.h"

namespace switchyard::ops {
namespace {

/// N experts at once: each load of x serves N products, and N chains hide an addition's latency.
template <int N>
void dots(const RouterDots& d) {
  __m512 sum[N];
  for (int n = 0; n < N; ++n) sum[n] = _mm512_setzero_ps();
  const std::int64_t whole = d.count / kRouterLanes * kRouterLanes;
  for (std::int64_t h = 0; h < whole; h += kRouterLanes) {
    const __m512 x = _mm512_loadu_ps(d.x + h);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
      sum[n] = _mm512_add_ps(sum[n], _mm512_mul_ps(x, _mm512_loadu_ps(d.w + n * d.w_stride + h)));
  }
  if (whole < d.count) {
    const __mmask16 last = __mmask16((1u << (d.count - whole)) - 1);
    const __m512 x = _mm512_maskz_loadu_ps(last, d.x + whole);
    for (int n = 0; n < N; ++n) {
      const __m512 w = _mm512_maskz_loadu_ps(last, d.w + n * d.w_stride + whole);
      sum[n] = _mm512_mask_add_ps(sum[n], last, sum[n], _mm512_mul_ps(x, w));
    }
  }
  for (int n = 0; n < N; ++n) {
    alignas(64) float lanes[kRouterLanes];
    _mm512_store_ps(lanes, sum[n]);
    d.sums[n] += fold_router_lanes(lanes);
  }
}

template <int N>
void dispatch(const RouterDots& d) {
  if (d.experts == N) return dots<N>(d);
  if constexpr (N > 1) dispatch<N - 1>(d);
}

}  // namespace

void router_dots_avx512(const RouterDots& d) { dispatch<kRouterExperts>(d); }

}  // namespace switchyard::ops
