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

/// Pairs of bf16.
inline constexpr std::uint32_t kTwoTo119 = 0x7b007b00u, kTwoTo120 = 0x7b807b80u;

/// bf16 tiles: the tensor cores read them from shared memory.
struct PlainTiles {
  static constexpr TileCode kCode = TileCode::kBf16;              ///< What they hold.
  static constexpr bool kDecoded = false, kBlockSums = false;     ///< As they are.
  static constexpr int kBytes = int(tile_bytes(kCode));           ///< Of one tile.
  static constexpr int kColTiles = 1, kMostColTiles = kColTiles;  ///< Of a stage.
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
/// The first three lie so that one mask leaves sign and magnitude where a bf16 has them.
struct Nibbles {
  uint4 words;

  __device__ static Nibbles load(const std::byte* tile) {
    return {*reinterpret_cast<const uint4*>(tile + threadIdx.x % 128 * 16)};
  }
  /// Register `j` of `word`, times 2^-126.
  template <int j>
  __device__ static std::uint32_t pair(std::uint32_t word) {
    if constexpr (j < 3) return (word << (3 * j)) & 0x81c081c0u;
    return ((word << 1) & 0x80008000u) | ((word >> 5) & 0x01000100u) | ((word >> 4) & 0x00c000c0u);
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
  __device__ static void decode(const std::byte* tile, std::uint32_t (&a)[4][4]) {
    const Nibbles codes = Nibbles::load(tile);
    const std::uint32_t scales =
        *reinterpret_cast<const std::uint32_t*>(tile + 2048 + pair_row() * 4);
    const std::uint32_t row = spread_byte<0>(scales) << 7, row_8 = spread_byte<1>(scales) << 7;
    Nibbles::decode(codes.words.x, row, row_8, a[0]);
    Nibbles::decode(codes.words.y, row, row_8, a[1]);
    const std::uint32_t next = spread_byte<2>(scales) << 7, next_8 = spread_byte<3>(scales) << 7;
    Nibbles::decode(codes.words.z, next, next_8, a[2]);
    Nibbles::decode(codes.words.w, next, next_8, a[3]);
  }
};

/// E4M3 scale in byte `n`, times 2^118: with a code's 2^-126 that leaves 2^-8, which the row's
/// factor takes back. bf16 holds it for every scale.
template <int n>
__device__ std::uint32_t nvfp4_factor(std::uint32_t word) {
  return multiply_pairs(multiply_pairs(spread_byte<n>(word) << 4, kTwoTo119), kTwoTo119);
}

/// NVFP4 with scales per 16 columns.
struct Nvfp4Tiles : DecodedTiles<TileCode::kNvfp4> {
  __device__ static void decode(const std::byte* tile, std::uint32_t (&a)[4][4]) {
    const Nibbles codes = Nibbles::load(tile);
    const uint2 scales = *reinterpret_cast<const uint2*>(tile + 2048 + pair_row() * 8);
    Nibbles::decode(codes.words.x, nvfp4_factor<0>(scales.x), nvfp4_factor<0>(scales.y), a[0]);
    Nibbles::decode(codes.words.y, nvfp4_factor<1>(scales.x), nvfp4_factor<1>(scales.y), a[1]);
    Nibbles::decode(codes.words.z, nvfp4_factor<2>(scales.x), nvfp4_factor<2>(scales.y), a[2]);
    Nibbles::decode(codes.words.w, nvfp4_factor<3>(scales.x), nvfp4_factor<3>(scales.y), a[3]);
  }
};

/// NVFP4 with scales per 32 columns.
struct Nvfp4WideTiles : DecodedTiles<TileCode::kNvfp4Wide> {
  __device__ static void decode(const std::byte* tile, std::uint32_t (&a)[4][4]) {
    const Nibbles codes = Nibbles::load(tile);
    const std::uint32_t scales =
        *reinterpret_cast<const std::uint32_t*>(tile + 2048 + pair_row() * 4);
    const std::uint32_t row = nvfp4_factor<0>(scales), row_8 = nvfp4_factor<1>(scales);
    Nibbles::decode(codes.words.x, row, row_8, a[0]);
    Nibbles::decode(codes.words.y, row, row_8, a[1]);
    const std::uint32_t next = nvfp4_factor<2>(scales), next_8 = nvfp4_factor<3>(scales);
    Nibbles::decode(codes.words.z, next, next_8, a[2]);
    Nibbles::decode(codes.words.w, next, next_8, a[3]);
  }
};

/// E4M3: two words per step, a byte of each half per register.
template <TileCode code>
struct E4m3Tiles : DecodedTiles<code> {
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
  /// All registers of a tile, per step.
  __device__ static void decode(const std::byte* tile, std::uint32_t (&a)[4][4]) {
    const uint4* codes = reinterpret_cast<const uint4*>(tile) + threadIdx.x % 128;
    const uint4 first = codes[0], second = codes[128];
    decode_step(first.x, first.y, a[0]);
    decode_step(first.z, first.w, a[1]);
    decode_step(second.x, second.y, a[2]);
    decode_step(second.z, second.w, a[3]);
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
