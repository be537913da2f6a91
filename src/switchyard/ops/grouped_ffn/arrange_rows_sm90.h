// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_ffn/quantize_row_sm90.h"

/// The threads of a block quantise a token once and write it to the sorted rows of all its choices;
/// for .cu files only.
namespace switchyard::ops::sm90 {

/// Where a token goes.
struct TokenRows {
  int top_k;
  const int* rows;       // [top_k] in shared memory: the sorted row of each choice, or -1
  const float* weights;  // [top_k]: what multiplies each choice's copy, or null
};

/// The largest magnitude of all of the block's threads, in each of them.
__device__ inline float amax_of_block(float amax) {
  __shared__ int most;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  const int warp_most = __reduce_max_sync(~0u, int(formats::float_bits(amax)));
  if (lane_of() == 0) atomicMax(&most, warp_most);
  __syncthreads();
  return formats::bits_float(std::uint32_t(most));
}

/// Eight columns of a token, and what becomes of them. The quantiser is the kernel's: where one
/// token is all, each instruction is fetched for the first time, and code that is not there delays
/// nobody.
template <formats::ActivationQuant kQuant>
class TokenColumns {
 public:
  /// Of one token.
  __device__ TokenColumns(const DeviceGather& g, std::int64_t token)
      : g_(g),
        x_(g.x + token * g.x_stride),
        aligned_(reinterpret_cast<std::uintptr_t>(x_) % 16 == 0),
        groups_((g.hidden + g.out.tiles.tile_cols() - 1) / g.out.tiles.tile_cols() *
                (g.out.tiles.tile_cols() / 8)) {}

  /// Groups of eight columns in whole tiles.
  __device__ std::int64_t groups() const { return groups_; }
  /// As they are; 0 behind the end.
  __device__ uint4 load(std::int64_t group) const {
    const std::int64_t col = group * 8;
    if (aligned_ && col + 8 <= g_.hidden) return *reinterpret_cast<const uint4*>(x_ + col);
    return load_edge(g_, x_, col);
  }
  /// All lanes of a warp together, neighbours on neighbouring groups, those past the end included.
  __device__ void write(std::int64_t group, uint4 raw, float amax, const TokenRows& to) const {
    const bool plain = kQuant == formats::ActivationQuant::kNone && g_.dtype == Dtype::kBf16;
    if (plain && !to.weights) return store(group, raw, raw, to);
    float v[8];
    widen(raw, v);
    // Each choice may have a weight of its own; a product by 1 changes nothing.
    const int copies = to.weights ? to.top_k : 1, rows_of_copy = to.weights ? 1 : to.top_k;
#pragma unroll 1
    for (int j = 0; j < copies; ++j) {
      const float weight = to.weights ? to.weights[j] : 1.0f;
      float weighed[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) weighed[i] = v[i] * weight;
      quantise(group, weighed, amax * magnitude_of(weight), {rows_of_copy, to.rows + j, nullptr});
    }
  }
  /// The largest magnitude among this thread's columns of the whole row.
  __device__ float amax() const {
    float most = 0;
    for (std::int64_t group = threadIdx.x; group < groups_; group += blockDim.x) {
      float v[8];
      widen(load(group), v);
      most = formats::bits_float(std::uint32_t(
          max(int(formats::float_bits(amax_of_values(v))), int(formats::float_bits(most)))));
    }
    return most;
  }

 private:
  __device__ static float magnitude_of(float x) {
    return formats::bits_float(formats::float_bits(x) & 0x7fffffffu);
  }
  __device__ void widen(uint4 raw, float (&v)[8]) const {
    const std::uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto bits = std::uint16_t(pairs[i / 2] >> (i % 2 * 16));
      v[i] = g_.dtype == Dtype::kFp16 ? fp16_to_float(bits) : bf16_to_float(bits);
    }
  }
  __device__ void quantise(std::int64_t group, const float (&v)[8], float amax,
                           const TokenRows& to) const {
    std::uint16_t bits[8], low[8] = {};
    float scale = g_.static_scale;
    if (kQuant == formats::ActivationQuant::kFp8Token)
      scale = formats::fp8_activation_scale(amax, false);
    scale_block(v, scale);
    store_scales(group, scale, to);
    if (has_e4m3_codes(kQuant) && g_.out.tiles.codes)
      return store_codes(group, make_uint2(e4m3_codes(v, scale), e4m3_codes(v + 4, scale)), to);
    if (kQuant == formats::ActivationQuant::kNone && g_.out.tiles.planes == 2) {
      split_fp16(v, bits, low);
    } else {
      quantize_values({kQuant, scale}, v, bits);
    }
    store(group, pack_eight(bits), pack_eight(low), to);
  }
  /// The scale of 128 columns is that of 16 lanes.
  __device__ void scale_block(const float (&v)[8], float& scale) const {
    if (has_block_scales())
      scale = formats::fp8_activation_scale(amax_of_lanes<16>(amax_of_values(v)),
                                            kQuant == formats::ActivationQuant::kFp8Block128Ue8m0);
  }
  __device__ static constexpr bool has_block_scales() { return ops::has_block_scales(kQuant); }
  __device__ void store_scales(std::int64_t group, float scale, const TokenRows& to) const {
    const bool block = has_block_scales() && group % 16 == 0 && group * 8 < g_.hidden;
    const bool token = g_.out.token_scales && group == 0;
    if (!block && !token) return;
    for (int j = 0; j < to.top_k; ++j) {
      if (to.rows[j] < 0) continue;
      if (block) g_.out.block_scales[group / 16 * g_.out.tiles.capacity + to.rows[j]] = scale;
      if (token) g_.out.token_scales[to.rows[j]] = scale;
    }
  }
  __device__ void store(std::int64_t group, uint4 high, uint4 low, const TokenRows& to) const {
    if (group >= groups_) return;
    for (int j = 0; j < to.top_k; ++j) {
      const int row = to.rows[j];
      if (row < 0) continue;
      *reinterpret_cast<uint4*>(g_.out.tiles.at(row, group)) = high;
      if (kQuant == formats::ActivationQuant::kNone && g_.out.tiles.planes == 2)
        *reinterpret_cast<uint4*>(g_.out.tiles.at(row, group, 1)) = low;
    }
  }

  __device__ void store_codes(std::int64_t group, uint2 codes, const TokenRows& to) const {
    if (group >= groups_) return;
    for (int j = 0; j < to.top_k; ++j)
      if (to.rows[j] >= 0)
        *reinterpret_cast<uint2*>(g_.out.tiles.at(to.rows[j], group / 2) + group % 2 * 8) = codes;
  }

  const DeviceGather& g_;
  const std::uint16_t* x_;
  bool aligned_;
  std::int64_t groups_;
};

}  // namespace switchyard::ops::sm90
