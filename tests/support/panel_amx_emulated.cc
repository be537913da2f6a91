// SPDX-License-Identifier: Apache-2.0
#include "tests/support/panel_amx_emulated.h"

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "switchyard/base/check.h"

namespace switchyard::test {
namespace {

constexpr int kRegisters = 8, kMostRows = 16, kColumns = 16;

/// The tile registers of a thread, and what each of the instructions does with them.
/// Source:  Intel SDM, volume 2, LDTILECFG, TILELOADD, TILESTORED, TDPBF16PS.
class Tiles {
 public:
  void configure(const void* config) {
    const auto* bytes = static_cast<const std::uint8_t*>(config);
    ensure(bytes[0] == 1 && bytes[1] == 0, "tiles: palette ", int(bytes[0]));
    for (int t = 0; t < kRegisters; ++t) {
      std::uint16_t width;
      std::memcpy(&width, bytes + 16 + 2 * t, sizeof(width));
      rows_[t] = bytes[48 + t];
      ensure(rows_[t] <= kMostRows && width == 4 * kColumns, "tiles: shape of tile ", t);
    }
    std::memset(values_, 0, sizeof(values_));
    configured_ = true;
  }
  void release() { configured_ = false; }
  void zero(int t) { std::memset(at(t), 0, sizeof(values_[t])); }
  void load(int t, const void* from, std::int64_t stride) {
    zero(t);
    for (int r = 0; r < rows_[t]; ++r)
      std::memcpy(values_[t][r], static_cast<const std::byte*>(from) + r * stride, 4 * kColumns);
  }
  void store(int t, void* to, std::int64_t stride) {
    at(t);
    for (int r = 0; r < rows_[t]; ++r)
      std::memcpy(static_cast<std::byte*>(to) + r * stride, values_[t][r], 4 * kColumns);
  }
  /// Even and odd columns have a sum each; the two are added to what was there.
  void multiply(int sums, int x, int w) {
    at(sums), at(x), at(w);
    ensure(sums != x && sums != w && x != w, "tiles: one tile twice");
    ensure(rows_[sums] == rows_[x] && rows_[w] == kColumns, "tiles: heights that do not meet");
    for (int m = 0; m < rows_[sums]; ++m) {
      float even[kColumns] = {}, odd[kColumns] = {};
      for (int k = 0; k < kColumns; ++k)
        for (int n = 0; n < kColumns; ++n) {
          const std::uint32_t a = values_[x][m][k], b = values_[w][k][n];
          even[n] = flushed(std::fma(low(a), low(b), even[n]));
          odd[n] = flushed(std::fma(high(a), high(b), odd[n]));
        }
      for (int n = 0; n < kColumns; ++n) {
        const float before = flushed(std::bit_cast<float>(values_[sums][m][n]));
        const float sum = flushed(before + flushed(even[n] + odd[n]));
        values_[sums][m][n] = std::bit_cast<std::uint32_t>(sum);
      }
    }
  }

 private:
  std::uint32_t (*at(int t))[kColumns] {
    ensure(configured_ && rows_[t] > 0, "tiles: tile ", t, " is not configured");
    return values_[t];
  }
  /// Subnormals are zero, as inputs and as results.
  static float flushed(float v) { return std::fabs(v) < 0x1p-126F ? std::copysign(0.0F, v) : v; }
  static float low(std::uint32_t pair) { return flushed(std::bit_cast<float>(pair << 16)); }
  static float high(std::uint32_t pair) { return flushed(std::bit_cast<float>(pair & 0xffff0000)); }

  bool configured_ = false;
  int rows_[kRegisters] = {};
  std::uint32_t values_[kRegisters][kMostRows][kColumns] = {};
};

thread_local Tiles tiles;

}  // namespace
}  // namespace switchyard::test

// The twin's own source on these.
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) switchyard::test::tiles.configure(config)
#define _tile_release() switchyard::test::tiles.release()
#define _tile_zero(t) switchyard::test::tiles.zero(t)
#define _tile_loadd(t, from, stride) switchyard::test::tiles.load(t, from, stride)
#define _tile_stored(t, to, stride) switchyard::test::tiles.store(t, to, stride)
#define _tile_dpbf16ps(sums, x, w) switchyard::test::tiles.multiply(sums, x, w)
#define panel_gemm_amx panel_gemm_amx_on_emulated_tiles
#include "switchyard/ops/grouped_gemm/panel_amx.cc"
#undef panel_gemm_amx

namespace switchyard::test {

void panel_gemm_amx_emulated(const ops::PanelGemmArgs& args) {
  ops::panel_gemm_amx_on_emulated_tiles(args);
}

}  // namespace switchyard::test
