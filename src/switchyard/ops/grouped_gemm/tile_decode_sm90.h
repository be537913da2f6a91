// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/ops/grouped_gemm/tile.h"

/// How a warpgroup reads the tiles of each code; for .cu files only.
///
/// A code's bits are put where a bf16 has its sign, exponent and first mantissa bits, which is the
/// value times a constant power of two, subnormals included; one exact product by the block's scale
/// and the rest of that power gives the operand.
namespace switchyard::ops::sm90 {

/// Exact product of two pairs of bf16.
__device__ inline std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

/// Both halves get byte `n` of `word`.
template <int n>
__device__ std::uint32_t spread_byte(std::uint32_t word) {
  constexpr std::uint32_t kSelect = 0x4040u + std::uint32_t(n) * 0x0101u;
  return __byte_perm(word, 0, kSelect);
}

/// A pair of bf16.
inline constexpr std::uint32_t kTwoTo120 = 0x7b807b80u;

/// bf16 tiles: the tensor cores read them from shared memory.
struct PlainTiles {
  static constexpr TileCode kCode = TileCode::kBf16;           ///< What they hold.
  static constexpr bool kDecoded = false, kBlockSums = false;  ///< As they are.
  static constexpr int kBytes = int(tile_bytes(kCode));        ///< Of one tile.
  static constexpr int kColTiles = 1, kMostColTiles = 2;       ///< Of a stage.
};

/// What all decoded tiles share: two of them make a stage, 128 columns, or four.
template <TileCode code>
struct DecodedTiles {
  static constexpr TileCode kCode = code;  ///< What they hold.
  /// Through registers; with sums per 128 columns.
  static constexpr bool kDecoded = true, kBlockSums = code == TileCode::kE4m3Block;
  static constexpr int kBytes = int(tile_bytes(code));  ///< Of one tile.
  /// Of a stage.
  static constexpr int kColTiles = 2, kMostColTiles = kBytes < 4096 ? 4 : 2;
};

/// E2M1 codes of one thread: a word per step of 16 columns, four bits of each half per register.
/// The first three lie so that a rotation and a mask leave sign and magnitude where a bf16 has
/// them.
struct Nibbles {
  uint4 words;

  __device__ static Nibbles load(const std::byte* tile) {
    return {*reinterpret_cast<const uint4*>(tile + threadIdx.x % 128 * 16)};
  }
  /// Of step `n`.
  template <int n>
  __device__ std::uint32_t word() const {
    return n == 0 ? words.x : n == 1 ? words.y : n == 2 ? words.z : words.w;
  }
  /// Register `j` of `word`, times 2^-126.
  template <int j>
  __device__ static std::uint32_t pair(std::uint32_t word) {
    if constexpr (j == 0) return word & 0x81c081c0u;
    if constexpr (j == 1) return (word << 6) & 0x81c081c0u;
    if constexpr (j == 2) return __funnelshift_r(word, word, 4) & 0x81c081c0u;
    return ((word << 2) & 0x80c080c0u) | ((word >> 6) & 0x01000100u);
  }
  /// All registers of a step; the two rows have scales of their own.
  __device__ static void decode(std::uint32_t word, std::uint32_t row, std::uint32_t row_8,
                                std::uint32_t (&a)[4]) {
    a[0] = multiply_pairs(pair<0>(word), row);
    a[1] = multiply_pairs(pair<1>(word), row_8);
    a[2] = multiply_pairs(pair<2>(word), row);
    a[3] = multiply_pairs(pair<3>(word), row_8);
  }
};

/// The pair of rows of this thread among those of its tile.
__device__ inline int pair_row() { return threadIdx.x % 128 / 32 * 8 + threadIdx.x % 32 / 4; }

/// MXFP4: the scale is the exponent of a bf16.
struct Mxfp4Tiles : DecodedTiles<TileCode::kMxfp4> {
  /// What a thread reads of a tile.
  struct Raw {
    Nibbles codes;
    std::uint32_t scales;
  };
  /// From shared memory.
  __device__ static Raw load(const std::byte* tile) {
    return {Nibbles::load(tile),
            *reinterpret_cast<const std::uint32_t*>(tile + 2048 + pair_row() * 4)};
  }
  /// The registers of 32 of its columns, per step of 16.
  template <int half>
  __device__ static void decode(const Raw& raw, std::uint32_t (&a)[2][4]) {
    const std::uint32_t row = spread_byte<2 * half>(raw.scales) << 7;
    const std::uint32_t row_8 = spread_byte<2 * half + 1>(raw.scales) << 7;
    Nibbles::decode(raw.codes.word<2 * half>(), row, row_8, a[0]);
    Nibbles::decode(raw.codes.word<2 * half + 1>(), row, row_8, a[1]);
  }
};

/// E4M3 scale in byte `n`, times 2^118: with a code's 2^-126 that leaves 2^-8, which the row's
/// factor takes back. Packing made exponents of five bits, so that one sum is the bf16.
template <int n>
__device__ std::uint32_t nvfp4_factor(std::uint32_t word) {
  return spread_byte<n>(word) * 16 + 0x75807580u;  // 2^(118 - 10) as a bf16, in both halves
}

/// NVFP4 with scales per 16 columns.
struct Nvfp4Tiles : DecodedTiles<TileCode::kNvfp4> {
  /// What a thread reads of a tile.
  struct Raw {
    Nibbles codes;
    uint2 scales;
  };
  /// From shared memory.
  __device__ static Raw load(const std::byte* tile) {
    return {Nibbles::load(tile), *reinterpret_cast<const uint2*>(tile + 2048 + pair_row() * 8)};
  }
  /// As Mxfp4Tiles.
  template <int half>
  __device__ static void decode(const Raw& raw, std::uint32_t (&a)[2][4]) {
    const auto [row, row_8] = raw.scales;
    Nibbles::decode(raw.codes.word<2 * half>(), nvfp4_factor<2 * half>(row),
                    nvfp4_factor<2 * half>(row_8), a[0]);
    Nibbles::decode(raw.codes.word<2 * half + 1>(), nvfp4_factor<2 * half + 1>(row),
                    nvfp4_factor<2 * half + 1>(row_8), a[1]);
  }
};

/// NVFP4 with scales per 32 columns.
struct Nvfp4WideTiles : DecodedTiles<TileCode::kNvfp4Wide> {
  using Raw = Mxfp4Tiles::Raw;  ///< What a thread reads of a tile.
  /// From shared memory.
  __device__ static Raw load(const std::byte* tile) { return Mxfp4Tiles::load(tile); }
  /// As Mxfp4Tiles.
  template <int half>
  __device__ static void decode(const Raw& raw, std::uint32_t (&a)[2][4]) {
    const std::uint32_t row = nvfp4_factor<2 * half>(raw.scales);
    const std::uint32_t row_8 = nvfp4_factor<2 * half + 1>(raw.scales);
    Nibbles::decode(raw.codes.word<2 * half>(), row, row_8, a[0]);
    Nibbles::decode(raw.codes.word<2 * half + 1>(), row, row_8, a[1]);
  }
};

/// E4M3: two words per step, a byte of each half per register.
template <TileCode code>
struct E4m3Tiles : DecodedTiles<code> {
  /// What a thread reads of a tile.
  struct Raw {
    uint4 halves[2];
  };
  /// From shared memory.
  __device__ static Raw load(const std::byte* tile) {
    const uint4* codes = reinterpret_cast<const uint4*>(tile) + threadIdx.x % 128;
    return {{codes[0], codes[128]}};
  }
  /// The upper byte of each half.
  __device__ static std::uint32_t pair(std::uint32_t word) {
    const std::uint32_t bits = (word & 0x80008000u) | ((word >> 4) & 0x07f007f0u);
    return multiply_pairs(bits, kTwoTo120);
  }
  /// All registers of a step.
  __device__ static void decode_step(std::uint32_t lower, std::uint32_t upper,
                                     std::uint32_t (&a)[4]) {
    a[0] = pair(lower);
    a[1] = pair(lower << 8);
    a[2] = pair(upper);
    a[3] = pair(upper << 8);
  }
  /// As Mxfp4Tiles.
  template <int half>
  __device__ static void decode(const Raw& raw, std::uint32_t (&a)[2][4]) {
    const uint4 words = raw.halves[half];
    decode_step(words.x, words.y, a[0]);
    decode_step(words.z, words.w, a[1]);
  }
  /// Block scales of gate's and of up's rows.
  __device__ static float2 scales(const std::byte* tile) {
    return *reinterpret_cast<const float2*>(tile + 4096);
  }
};

/// The type that reads tiles of `code`.
template <TileCode code>
struct TilesOfCode {
  /// What reads them.
  using Type = E4m3Tiles<code>;
};
template <>
struct TilesOfCode<TileCode::kBf16> {
  using Type = PlainTiles;
};
template <>
struct TilesOfCode<TileCode::kMxfp4> {
  using Type = Mxfp4Tiles;
};
template <>
struct TilesOfCode<TileCode::kNvfp4> {
  using Type = Nvfp4Tiles;
};
template <>
struct TilesOfCode<TileCode::kNvfp4Wide> {
  using Type = Nvfp4WideTiles;
};
/// The same in short.
template <TileCode code>
using TilesOf = typename TilesOfCode<code>::Type;

}  // namespace switchyard::ops::sm90
