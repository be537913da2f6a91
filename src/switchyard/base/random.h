// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

namespace switchyard {

/// A counter-based generator: value i of stream s is a pure function, so any part of an array can
/// be made by any thread. Not for cryptography.
///
/// Source: the splitmix64 finaliser.
class Random {
 public:
  /// Streams with different keys are independent.
  explicit constexpr Random(std::uint64_t seed, std::uint64_t stream = 0)
      : key_(mix(seed * 0x9e3779b97f4a7c15u + mix(stream + 0x632be59bd9b4e019u))) {}

  /// 64 uniform bits.
  constexpr std::uint64_t bits(std::uint64_t i) const {
    return mix(key_ + i * 0x9e3779b97f4a7c15u);
  }
  /// Uniform in [0, 1).
  constexpr float uniform(std::uint64_t i) const { return float(bits(i) >> 40) * 0x1p-24f; }
  /// About N(0, 1), bounded by 3.5: the sum of four uniform bytes.
  constexpr float normal(std::uint64_t i) const {
    const std::uint64_t b = bits(i / 2) >> (i % 2 * 32);
    const int sum = int(b & 255) + int(b >> 8 & 255) + int(b >> 16 & 255) + int(b >> 24 & 255);
    return float(sum - 510) * (1.0f / 147.8f);
  }

 private:
  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  std::uint64_t key_;
};

}  // namespace switchyard
