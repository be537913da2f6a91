// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "switchyard/formats/bits.h"

namespace switchyard::formats {

/// Calls body(block, begin, count) for each run of N values; `block` always points at N readable
/// floats (the last one is padded with zeros) of which `count` are the row's.
///
/// A trip count known to the compiler is what makes the bodies vectorise at -O2.
template <std::int64_t N, class Body>
inline void for_blocks(const float* x, std::int64_t count, Body body) {
  std::int64_t begin = 0;
  for (; begin + N <= count; begin += N) body(x + begin, begin, N);
  if (begin == count) return;
  float padded[N] = {};
  memcpy(padded, x + begin, std::size_t(count - begin) * sizeof(float));
  body(static_cast<const float*>(padded), begin, count - begin);
}

/// Largest magnitude of N values; NaN when one of them is (its bits exceed infinity's).
template <std::int64_t N>
inline float block_amax(const float* x) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < N; ++i) {
    std::int32_t m = std::int32_t(float_bits(x[i]) & 0x7fffffffu);
    largest = m > largest ? m : largest;
  }
  return bits_float(std::uint32_t(largest));
}

/// Largest magnitude of `count` values; NaN when one of them is, 0 for none.
inline float amax_of(const float* x, std::int64_t count) {
  std::int32_t largest = 0;
  for_blocks<64>(x, count, [&](const float* block, std::int64_t, std::int64_t) {
    std::int32_t m = std::int32_t(float_bits(block_amax<64>(block)));
    largest = m > largest ? m : largest;
  });
  return bits_float(std::uint32_t(largest));
}

/// Largest finite magnitude: an infinity saturates and a NaN stays in its own block.
float finite_amax(std::span<const float> values);

}  // namespace switchyard::formats
