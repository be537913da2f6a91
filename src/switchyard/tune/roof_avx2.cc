// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "switchyard/tune/roof.h"

namespace switchyard::tune {

std::uint64_t read_range_avx2(const std::byte* data, std::size_t bytes) {
  __m256i sum[8];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  for (std::size_t i = 0; i + 256 <= bytes; i += 256) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const std::byte* at = data + i + 32 * j;
      if (j % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(at + 4096), _MM_HINT_T0);
      sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    }
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm256_xor_si256(sum[0], sum[j]);
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sum[0]);
  return lanes[0] ^ lanes[1] ^ lanes[2] ^ lanes[3];
}

double dot_rounds_avx2(std::int64_t rounds) {
  constexpr int kChains = 12;  // enough to hide the instruction's latency
  __m256 sum[kChains];
  volatile float seed = 0.5f;
  const __m256 x = _mm256_set1_ps(seed);
  for (__m256& s : sum) s = _mm256_setzero_ps();
  for (std::int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm256_fmadd_ps(sum[i], x, x);
  }
  for (int i = 1; i < kChains; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  volatile float keep = _mm256_cvtss_f32(sum[0]);
  (void)keep;
  return double(rounds) * kChains * 16;
}

}  // namespace switchyard::tune
