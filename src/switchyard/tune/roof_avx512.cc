// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "switchyard/tune/roof.h"

namespace switchyard::tune {

std::uint64_t read_range_avx512(const std::byte* data, std::size_t bytes) {
  __m512i sum[8];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  for (std::size_t i = 0; i + 512 <= bytes; i += 512) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(data + i + 4096 + 64 * j), _MM_HINT_T0);
      sum[j] = _mm512_add_epi64(sum[j], _mm512_loadu_si512(data + i + 64 * j));
    }
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm512_xor_si512(sum[0], sum[j]);
  return std::uint64_t(_mm512_reduce_add_epi64(sum[0]));
}

double dot_rounds_avx512(std::int64_t rounds) {
  constexpr int kChains = 16;  // enough to hide the instruction's latency
  __m512 sum[kChains];
  volatile int seed = 0x3f003f00;
  const __m512bh x = __m512bh(_mm512_set1_epi32(seed));
  for (__m512& s : sum) s = _mm512_setzero_ps();
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], x, x);
  }
  for (int i = 1; i < kChains; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  volatile float keep = _mm512_reduce_add_ps(sum[0]);
  (void)keep;
  return double(rounds) * kChains * 64;
}

}  // namespace switchyard::tune
