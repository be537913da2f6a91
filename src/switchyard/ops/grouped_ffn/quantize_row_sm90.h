// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/quantize/quantize_sm90.h"

/// One warp quantises one row into the tiles of a GEMM; for .cu files only.
namespace switchyard::ops::sm90 {

/// Of this thread in its warp.
__device__ inline int lane_of() { return threadIdx.x % 32; }

/// How a row is quantised, and where to.
struct RowTarget {
  formats::ActivationQuant quant;
  std::int64_t cols;
  float static_scale;
  DeviceRows out;
};

/// 16 bytes of eight values.
__device__ inline uint4 pack_eight(const std::uint16_t (&b)[8]) {
  return {pair_of(b[0], b[1]), pair_of(b[2], b[3]), pair_of(b[4], b[5]), pair_of(b[6], b[7])};
}

/// Eight columns of each lane, where a block of 128 is those of 16 lanes. `scale` is the row's.
__device__ inline void quantize_group(const RowTarget& to, std::int64_t row, std::int64_t group,
                                      float scale, const float (&v)[8], std::uint16_t (&bits)[8]) {
  const bool power_of_two = to.quant == formats::ActivationQuant::kFp8Block128Ue8m0;
  if (power_of_two || to.quant == formats::ActivationQuant::kFp8Block128) {
    scale = formats::fp8_activation_scale(amax_of_lanes<16>(amax_of_values(v)), power_of_two);
    if (lane_of() % 16 == 0 && group * 8 < to.cols)
      to.out.block_scales[group / 16 * to.out.tiles.capacity + row] = scale;
  }
  quantize_values({to.quant, scale}, v, bits);
}

/// The scale of the whole row: static, or made from all of it.
template <class Load>
__device__ float row_scale(const RowTarget& to, std::int64_t groups, const Load& load) {
  if (to.quant != formats::ActivationQuant::kFp8Token) return to.static_scale;
  float amax = 0;
  for (std::int64_t group = lane_of(); group < groups; group += 32) {
    float v[8];
    load(group * 8, v);
    const int bits = int(formats::float_bits(amax_of_values(v)));
    amax = formats::bits_float(std::uint32_t(max(bits, int(formats::float_bits(amax)))));
  }
  return formats::fp8_activation_scale(amax_of_lanes<32>(amax), false);
}

/// The same as E4M3 codes, 16 columns of each lane. `scale` is the row's.
template <class Load>
__device__ void quantize_to_codes(const RowTarget& to, std::int64_t row, float scale,
                                  const Load& load) {
  const std::int64_t cols = to.out.tiles.tile_cols(), groups = (to.cols + cols - 1) / cols * 8;
  const bool power_of_two = to.quant == formats::ActivationQuant::kFp8Block128Ue8m0;
  for (std::int64_t from = 0; from < groups; from += 32) {  // all lanes go round together
    const std::int64_t group = from + lane_of();
    float v[2][8];
    load(group * 16, v[0]);
    load(group * 16 + 8, v[1]);
    if (has_block_scales(to.quant)) {
      const int amax = max(int(formats::float_bits(amax_of_values(v[0]))),
                           int(formats::float_bits(amax_of_values(v[1]))));
      scale = formats::fp8_activation_scale(
          amax_of_lanes<8>(formats::bits_float(std::uint32_t(amax))), power_of_two);
      if (lane_of() % 8 == 0 && group < groups)
        to.out.block_scales[group / 8 * to.out.tiles.capacity + row] = scale;
    }
    if (group >= groups) continue;
    *reinterpret_cast<uint4*>(to.out.tiles.at(row, group)) =
        make_uint4(e4m3_codes(v[0], scale), e4m3_codes(v[0] + 4, scale), e4m3_codes(v[1], scale),
                   e4m3_codes(v[1] + 4, scale));
  }
}

/// Quantises the row that `load(col, v)` gives eight columns of, 0 behind the last.
template <class Load>
__device__ void quantize_row(const RowTarget& to, std::int64_t row, const Load& load) {
  const std::int64_t groups = (to.cols + kTileCols - 1) / kTileCols * 8;
  const float scale = row_scale(to, groups, load);
  if (lane_of() == 0 && to.out.token_scales) to.out.token_scales[row] = scale;
  if (to.out.tiles.codes) return quantize_to_codes(to, row, scale, load);
  for (std::int64_t from = 0; from < groups; from += 32) {  // all lanes go round together
    const std::int64_t group = from + lane_of();
    float v[8];
    load(group * 8, v);
    std::uint16_t bits[8], low[8];
    if (to.out.tiles.planes == 2) {
      split_fp16(v, bits, low);
    } else {
      quantize_group(to, row, group, scale, v, bits);
    }
    if (group >= groups) continue;
    *reinterpret_cast<uint4*>(to.out.tiles.at(row, group)) = pack_eight(bits);
    if (to.out.tiles.planes == 2)
      *reinterpret_cast<uint4*>(to.out.tiles.at(row, group, 1)) = pack_eight(low);
  }
}

/// Eight columns of a row of 16-bit elements that does not begin on 16 bytes or ends within them; 0
/// behind its end. Out of line, for it is rare.
__device__ __noinline__ inline uint4 load_edge(const DeviceGather& g, const std::uint16_t* x,
                                               std::int64_t col) {
  std::uint32_t v[4];
  for (int i = 0; i < 4; ++i) {
    const std::int64_t c = col + 2 * i;
    v[i] = (c < g.hidden ? x[c] : 0u) | (c + 1 < g.hidden ? x[c + 1] : 0u) << 16;
  }
  return {v[0], v[1], v[2], v[3]};
}

}  // namespace switchyard::ops::sm90
