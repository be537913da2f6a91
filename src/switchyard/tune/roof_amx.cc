// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "switchyard/tune/roof.h"

namespace switchyard::tune {
namespace {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64, "the layout that the instruction reads");

constexpr int kTileValues = 512;

}  // namespace

double dot_rounds_amx(std::int64_t rounds) {
  constexpr double kFlops = 4.0 * 2 * 16 * 16 * 32;  // four tiles of 16 x 16 sums over 32 products
  TileConfig config;
  // Of values that differ, as a layer's do: products of zeros take less power, which limits tiles.
  alignas(64) std::uint16_t values[2][kTileValues];
  for (int i = 0; i < 2 * kTileValues; ++i)
    values[i / kTileValues][i % kTileValues] = std::uint16_t(0x3f00 | (i * 0x9e35 >> 4 & 0x80ff));
  asm volatile("" ::: "memory");  // g++ 12's tile intrinsics do not say that they read memory
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, values[0], 64);
  _tile_loadd(5, values[1], 64);
  for (std::int64_t r = 0; r < rounds; ++r) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
  return double(rounds) * kFlops;
}

}  // namespace switchyard::tune
