// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the AMX twins share; internal linkage as in panel_decode_avx512.h.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace switchyard::ops {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers)

constexpr int kTileRows = 16;
constexpr int kTileBytes = 1024;

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes_per_row[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64, "the layout that the instruction reads");

// g++ 12's tile loads do not tell the compiler that they read memory: what was just written must be
// made visible to them.
inline __attribute__((always_inline)) void before_tile_load() { asm volatile("" ::: "memory"); }

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace switchyard::ops
