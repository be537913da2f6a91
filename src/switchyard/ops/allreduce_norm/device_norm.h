// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/nvfp4.h"
#include "switchyard/formats/scale_layout.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm_math.h"
#include "switchyard/ops/allreduce_norm/device_call.h"

/// Norm and quantisation of one row by one block, as the CPU twin has them. For .cu files only.
namespace switchyard::ops::fused {

/// A block's shared memory: the row, then the lanes of its sum, one word per warp and choices.
struct RowMemory {
  float* row;    // [units * kUnit]
  float* lanes;  // [kRmsLanes]
  std::uint32_t* warps;
  Choice* choices;  // [kStagedChoices] where a call stages them
};
/// Its size for `units` units. Units: bytes.
constexpr std::int64_t row_memory_bytes(std::int64_t units, bool staged) {
  return (units * kAllReduceUnit + kRmsLanes + 32) * 4 +
         (staged ? kStagedChoices * std::int64_t(sizeof(Choice)) : 0);
}
/// The parts of a block's memory.
__device__ inline RowMemory row_memory(float* memory, int units) {
  float* lanes = memory + units * kUnit;
  auto* warps = reinterpret_cast<std::uint32_t*>(lanes + kRmsLanes);
  return {memory, lanes, warps, reinterpret_cast<Choice*>(warps + 32)};
}

/// Reads unit `u` of the row in shared memory.
__device__ inline void get_row(const RowMemory& s, int u, float (&x)[kUnit]) {
  const auto* from = reinterpret_cast<const float4*>(s.row) + u * 2;
  const float4 a = from[0], b = from[1];
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
  x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
/// Writes unit `u` of the row in shared memory.
__device__ inline void put_row(const RowMemory& s, int u, const float (&x)[kUnit]) {
  auto* to = reinterpret_cast<float4*>(s.row) + u * 2;
  to[0] = make_float4(x[0], x[1], x[2], x[3]);
  to[1] = make_float4(x[4], x[5], x[6], x[7]);
}

/// The sum of squares of the row in the tree of kRmsLanes, for every thread. All threads of the
/// block call it; the row may be overwritten behind it.
__device__ inline float sum_squares(const RowMemory& s, int hidden) {
  static_assert(kRmsLanes == 256);
  __syncthreads();
  for (int j = int(threadIdx.x); j < kRmsLanes; j += int(blockDim.x)) {
    float lane = 0;
#pragma unroll 8
    for (int i = j; i < hidden; i += kRmsLanes) lane = lane + s.row[i] * s.row[i];
    s.lanes[j] = lane;
  }
  __syncthreads();
  const int l = int(threadIdx.x) % 32;
  float v[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k] = s.lanes[l + 32 * k];
#pragma unroll
  for (int half = 4; half > 0; half /= 2)
#pragma unroll
    for (int k = 0; k < half; ++k) v[k] = v[k] + v[k + half];
#pragma unroll
  for (int half = 16; half > 0; half /= 2) v[0] = v[0] + __shfl_down_sync(~0U, v[0], half);
  return __shfl_sync(~0U, v[0], 0);
}

/// Four E4M3 codes; those of encode_e4m3() but for the sign of a NaN.
__device__ inline std::uint32_t encode_four(float a, float b, float c, float d) {
  const auto low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  const auto high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
  return std::uint32_t(low) | std::uint32_t(high) << 16;
}

/// Writes the codes of unit `u` of row `m`, one byte to an element.
__device__ inline void store_codes(const FusedCall& c, std::int64_t m, int u,
                                   const float (&x)[kUnit]) {
  std::uint8_t* to = c.quant.codes + m * c.hidden + std::int64_t(u) * kUnit;
  const std::uint32_t low = encode_four(x[0], x[1], x[2], x[3]),
                      high = encode_four(x[4], x[5], x[6], x[7]);
  if (c.vectors) {
    *reinterpret_cast<uint2*>(to) = make_uint2(low, high);
    return;
  }
  for (int e = 0; e < kUnit && std::int64_t(u) * kUnit + e < c.hidden; ++e)
    to[e] = std::uint8_t((e < 4 ? low : high) >> (e % 4 * 8));
}

/// The largest magnitude of a unit as bits, which are in the magnitudes' order with NaN on top.
__device__ inline std::uint32_t amax_bits(const float (&x)[kUnit]) {
  std::uint32_t most = 0;
#pragma unroll
  for (int e = 0; e < kUnit; ++e) most = max(most, __float_as_uint(x[e]) & 0x7fffffffU);
  return most;
}

/// Quantises unit `u` as half of an NVFP4 block. All lanes of a warp call it; the neighbour has the
/// block's other half.
__device__ inline void store_nvfp4(const FusedCall& c, std::int64_t m, int u, bool valid,
                                   const float (&x)[kUnit]) {
  std::uint32_t most = valid ? amax_bits(x) : 0;
  most = max(most, __shfl_xor_sync(~0U, most, 1));
  if (!valid) return;
  const float g = *c.quant.scale;
  const std::uint8_t scale = nvfp4_norm_scale(__uint_as_float(most), g);
  const float decoded = formats::decode_e4m3(scale);
  const float up = decoded == 0.0F ? 0.0F : g / decoded;
  std::uint32_t codes = 0;
#pragma unroll
  for (int e = 0; e < kUnit; ++e)
    codes |= std::uint32_t(formats::encode_e2m1(x[e] * up)) << (4 * e);
  std::uint8_t* to = c.quant.codes + m * (c.hidden / 2) + std::int64_t(u) * (kUnit / 2);
  if (c.vectors) {
    *reinterpret_cast<std::uint32_t*>(to) = codes;
  } else {
    for (int e = 0; e < kUnit / 2 && std::int64_t(u) * kUnit + 2 * e < c.hidden; ++e)
      to[e] = std::uint8_t(codes >> (8 * e));
  }
  if (u % 2 != 0) return;
  const formats::ScaleGrid grid{c.tokens,
                                (c.hidden + formats::kNvfp4Block - 1) / formats::kNvfp4Block};
  c.quant.scales[formats::scale_offset(c.quant.layout, grid, m, u / 2)] = scale;
}

/// Quantises the norms in shared memory with one scale per token. All threads call it.
__device__ inline void store_fp8_token(const FusedCall& c, std::int64_t m, const RowMemory& s,
                                       std::uint32_t most) {
  most = __reduce_max_sync(~0U, most);
  if (threadIdx.x % 32 == 0) s.warps[threadIdx.x / 32] = most;
  __syncthreads();
  most = __reduce_max_sync(~0U, threadIdx.x % 32 < blockDim.x / 32 ? s.warps[threadIdx.x % 32] : 0);
  const float scale = fp8_token_scale(__uint_as_float(most));
  if (threadIdx.x == 0) reinterpret_cast<float*>(c.quant.scales)[m] = scale;
  for (int u = int(threadIdx.x); u < c.units; u += int(blockDim.x)) {
    float x[kUnit];
    get_row(s, u, x);
#pragma unroll
    for (int e = 0; e < kUnit; ++e) x[e] = x[e] / scale;
    store_codes(c, m, u, x);
  }
}

/// Whether a group of columns is units of neighbouring lanes.
__device__ inline bool groups_of_lanes(const FusedCall& c) {
  const std::int64_t lanes = c.quant.group / kUnit;
  return c.quant.group % kUnit == 0 && lanes <= 32 && (lanes & (lanes - 1)) == 0;
}

/// Quantises unit `u` as a part of its group. All lanes of a warp call it.
__device__ inline void store_fp8_group(const FusedCall& c, std::int64_t m, int u, bool valid,
                                       const float (&x)[kUnit]) {
  const int lanes = int(c.quant.group) / kUnit;
  std::uint32_t most = valid ? amax_bits(x) : 0;
  for (int step = 1; step < lanes; step *= 2) most = max(most, __shfl_xor_sync(~0U, most, step));
  if (!valid) return;
  const std::uint8_t scale = fp8_group_scale(__uint_as_float(most));
  const float up = formats::reciprocal_e8m0(scale);
  float scaled[kUnit];
#pragma unroll
  for (int e = 0; e < kUnit; ++e) scaled[e] = x[e] * up;
  store_codes(c, m, u, scaled);
  if (u % lanes != 0) return;
  const int g = u / lanes;
  const std::int64_t rows = (c.tokens + 3) / 4 * 4;
  c.quant.scales[(g / 4 * rows + m) * 4 + g % 4] = scale;
}

/// Quantises the norms in shared memory with one scale per group of columns: a warp to a group.
__device__ inline void store_fp8_groups(const FusedCall& c, std::int64_t m, const RowMemory& s) {
  __syncthreads();
  const std::int64_t groups = (c.hidden + c.quant.group - 1) / c.quant.group,
                     rows = (c.tokens + 3) / 4 * 4;
  std::uint8_t* codes = c.quant.codes + m * c.hidden;
  for (std::int64_t g = threadIdx.x / 32; g < groups; g += blockDim.x / 32) {
    const std::int64_t begin = g * c.quant.group, end = min(begin + c.quant.group, c.hidden);
    std::uint32_t most = 0;
    for (std::int64_t i = begin + threadIdx.x % 32; i < end; i += 32)
      most = max(most, __float_as_uint(s.row[i]) & 0x7fffffffU);
    most = __reduce_max_sync(~0U, most);
    const std::uint8_t scale = fp8_group_scale(__uint_as_float(most));
    if (threadIdx.x % 32 == 0) c.quant.scales[(g / 4 * rows + m) * 4 + g % 4] = scale;
    const float up = formats::reciprocal_e8m0(scale);
    for (std::int64_t i = begin + threadIdx.x % 32; i < end; i += 32)
      codes[i] = std::uint8_t(encode_four(s.row[i] * up, 0, 0, 0));
  }
  __syncthreads();  // the row is read by others than its writers
}

/// What a thread holds of gamma before the row is there.
template <class T, bool kOnce>
struct Gamma {
  Unit<T> first;
  __device__ Gamma(const FusedCall& c, bool finishes) {
    if (kOnce && finishes && c.wants_norm && int(threadIdx.x) < c.units)
      first = load_unit<T>(c.rows(), c.gamma, 0, int(threadIdx.x));
  }
  __device__ Unit<T> at(const FusedCall& c, int u) const {
    return kOnce ? first : load_unit<T>(c.rows(), c.gamma, 0, u);
  }
};

/// Writes what is wanted behind the residual row of token m, which lies in shared memory, each unit
/// written by the thread that reads it here. All threads of the block call it.
template <class T, bool kOnce>
__device__ inline void norm_row(const FusedCall& c, std::int64_t m, const RowMemory& s,
                                const Gamma<T, kOnce>& gamma) {
  const AllReduceQuant kind = c.quant.kind;
  const float rstd = rms_rstd(sum_squares(s, int(c.hidden)), c.hidden, c.eps);
  const float inverse = kind == AllReduceQuant::kFp8Static ? 1.0F / *c.quant.scale : 0.0F;
  const bool by_lanes = kind == AllReduceQuant::kFp8Group && groups_of_lanes(c);
  std::uint32_t most = 0;
  for (int base = 0; base < c.units; base += int(blockDim.x)) {
    const int u = base + int(threadIdx.x);
    const bool valid = u < c.units;
    float x[kUnit] = {};
    if (valid) {
      float g[kUnit];
      get_row(s, u, x);
      widen(gamma.at(c, u), g);
#pragma unroll
      for (int e = 0; e < kUnit; ++e) x[e] = T::round(norm_value(x[e], rstd, g[e], c.weight_bias));
      if (!c.vectors) {
#pragma unroll
        for (int e = 0; e < kUnit; ++e)
          if (std::int64_t(u) * kUnit + e >= c.hidden) x[e] = 0;
      }
      if (c.norm_out != nullptr) store_unit<T>(c.rows(), c.norm_out, m, u, narrow<T>(x));
    }
    if (kind == AllReduceQuant::kNvfp4) store_nvfp4(c, m, u, valid, x);
    if (kind == AllReduceQuant::kFp8Static && valid) {
#pragma unroll
      for (int e = 0; e < kUnit; ++e) x[e] = x[e] * inverse;
      store_codes(c, m, u, x);
    }
    if (by_lanes) store_fp8_group(c, m, u, valid, x);
    if (kind >= AllReduceQuant::kFp8Group && !by_lanes && valid) {
      put_row(s, u, x);
      most = max(most, amax_bits(x));
    }
    if (kOnce) break;
  }
  if (kind == AllReduceQuant::kFp8Token) store_fp8_token(c, m, s, most);
  if (kind == AllReduceQuant::kFp8Group && !by_lanes) store_fp8_groups(c, m, s);
}

/// Writes 0 into the padding of the scales; the `count` blocks that call it share the work. Padding
/// rows are those of the last tile, in whose memory order the words are visited.
__device__ inline void clear_padding(const FusedCall& c, int block, int count) {
  const DeviceQuant& q = c.quant;
  const bool blocks = q.kind == AllReduceQuant::kNvfp4;
  if (c.tokens == 0 || (!blocks && q.kind != AllReduceQuant::kFp8Group)) return;
  if (blocks && q.layout == formats::ScaleLayout::kLinear) return;
  const std::int64_t width = blocks ? formats::kNvfp4Block : q.group;
  const std::int64_t n = (c.hidden + width - 1) / width;
  const int quads = int((n + 3) / 4), tokens = int(c.tokens);
  const int log_tile = !blocks ? 2 : q.layout == formats::ScaleLayout::k128x4 ? 7 : 3;
  const int tile = 1 << log_tile, tiles = (tokens + tile - 1) >> log_tile;
  const int base = (tiles - 1) << log_tile;
  const int first = block * int(blockDim.x) + int(threadIdx.x), step = count * int(blockDim.x);
  // The group form's last column ends with the last token.
  const int whole = blocks ? quads : quads - 1;
  std::uint8_t* last =
      q.scales + (blocks ? std::int64_t(base) * quads * 4 : std::int64_t(base) * 4);
  const std::int64_t quad_bytes = std::int64_t(blocks ? tile : tiles * tile) * 4;
  for (int i = first; i < whole << log_tile; i += step) {
    const int word = i & (tile - 1);
    const int row = log_tile == 7 ? (word & 3) * 32 + (word >> 2) : word;
    if (base + row < tokens) continue;
    std::uint8_t* to = last + (i >> log_tile) * quad_bytes + word * 4;
    if (c.word_scales) {
      *reinterpret_cast<std::uint32_t*>(to) = 0;
    } else {
      for (int b = 0; b < 4; ++b) to[b] = 0;
    }
  }
  if (n % 4 == 0) return;
  for (int m = first; m < tokens; m += step) {
    std::uint8_t* to = q.scales + (blocks ? formats::scale_offset(q.layout, {c.tokens, n}, m,
                                                                  std::int64_t(quads - 1) * 4)
                                          : ((quads - 1) * std::int64_t(tiles * tile) + m) * 4);
    for (std::int64_t b = n % 4; b < 4; ++b) to[b] = 0;
  }
}

}  // namespace switchyard::ops::fused
