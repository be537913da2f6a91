// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_ffn/quantize_row_sm90.h"
#include "switchyard/ops/grouped_ffn/routing_launch.h"
#include "switchyard/ops/route/router_choice.h"

/// Sorting and quantising of few tokens in little code; for .cu files only. A token's experts are
/// distinct and there are at most eight tokens, so an expert that is used has one tile of eight
/// rows: a row is eight times the used experts in front of its own, and the tokens in front of it.
namespace switchyard::ops::sm90::few {

static_assert(kMostJoinedTokens == 8, "an expert's rows are one tile");

/// Words of a bit for each expert.
inline constexpr int kWords = kMostHeld;

/// Each token's experts as bits, in shared memory.
struct Chosen {
  std::uint32_t of[kMostJoinedTokens][kWords];

  /// By the whole block, in front of a barrier.
  __device__ void clear() {
#pragma unroll 1
    for (int i = threadIdx.x; i < int(kMostJoinedTokens) * kWords; i += blockDim.x)
      of[i / kWords][i % kWords] = 0;
  }
  __device__ void add(int token, int id) { atomicOr(&of[token][id / 32], 1u << id % 32); }
  __device__ int has(int token, int id) const { return int(of[token][id / 32] >> id % 32 & 1); }
};

/// Where experts stand: word w of them is with lane w.
struct Places {
  std::uint32_t used;  // by any token
  int before;          // used ones in the words in front
  int all;

  /// By a warp.
  __device__ Places(const Chosen& c, int tokens) : used(0) {
    const int lane = lane_of();
#pragma unroll 1
    for (int t = 0; t < tokens; ++t) used |= lane < kWords ? c.of[t][lane] : 0;
    int sum = __popc(used);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    before = sum - __popc(used);
    all = __shfl_sync(~0u, sum, 31);
  }
  /// Used experts in front of `id`; by a warp, each lane with an id of its own, below 32 * kWords.
  __device__ int in_front(int id) const {
    const std::uint32_t word = __shfl_sync(~0u, used, id / 32);
    return __shfl_sync(~0u, before, id / 32) + __popc(word & ((1u << id % 32) - 1));
  }
};

/// The sorted row of a lane's choice, or -1; by a warp.
__device__ inline int sorted_row(const Chosen& c, const Places& p, int token, int id,
                                 std::int64_t experts) {
  const bool exists = id >= 0 && id < experts;
  const int at = exists ? id : 0;
  int row = 8 * p.in_front(at);
#pragma unroll 1
  for (int t = 0; t < token; ++t) row += c.has(t, at);
  return exists ? row : -1;
}

/// The table of all experts, and the holes behind their rows; by a block.
__device__ inline void write_table(const DeviceSort& a, const Chosen& c, const Places& p) {
  const int experts = int(a.experts), tokens = int(a.tokens);
  if (threadIdx.x == 0) a.offsets[experts] = 8 * p.all;
#pragma unroll 1
  for (int e = threadIdx.x; e - lane_of() < experts; e += blockDim.x) {  // whole warps go round
    const int row = 8 * p.in_front(e);
    if (e >= experts) continue;
    int count = 0;
#pragma unroll 1
    for (int t = 0; t < tokens; ++t) count += c.has(t, e);
    a.offsets[e] = row;
    a.counts[e] = count;
#pragma unroll 1
    for (int hole = count; count > 0 && hole < 8; ++hole) a.source[row + hole] = -1;
  }
}

/// Eight columns of a token as they are; 0 behind the end.
__device__ inline uint4 load_columns(const DeviceGather& g, int token, std::int64_t group) {
  const std::uint16_t* x = g.x + token * g.x_stride;
  const std::int64_t col = group * 8;
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
  if (aligned && col + 8 <= g.hidden) return *reinterpret_cast<const uint4*>(x + col);
  return load_edge(g, x, col);
}

/// Eight bf16 columns as floats.
__device__ inline void widen(uint4 raw, float (&v)[8]) {
  const std::uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = formats::bits_float(pairs[i] << 16);
    v[2 * i + 1] = formats::bits_float(pairs[i] & 0xffff0000u);
  }
}

/// Eight quantised columns: 16 bytes of values, or 8 of codes in the first two words.
struct Columns {
  uint4 bits;
  float scale;
};

/// All lanes of a warp together, neighbours on neighbouring columns. `amax`: of the token, for the
/// kind with a scale of each.
template <formats::ActivationQuant kQuant>
__device__ Columns quantise(const DeviceGather& g, uint4 raw, float amax) {
  using enum formats::ActivationQuant;
  Columns out{raw, g.static_scale};
  if constexpr (kQuant != kNone) {
    float v[8];
    widen(raw, v);
    if constexpr (kQuant == kFp8Token) out.scale = formats::fp8_activation_scale(amax, false);
    if constexpr (ops::has_block_scales(kQuant))
      out.scale = formats::fp8_activation_scale(amax_of_lanes<16>(amax_of_values(v)),
                                                kQuant == kFp8Block128Ue8m0);
    if (has_e4m3_codes(kQuant) && g.out.tiles.codes) {
      out.bits.x = e4m3_codes(v, out.scale);
      out.bits.y = e4m3_codes(v + 4, out.scale);
    } else {
      std::uint16_t bits[8];
      quantize_values({kQuant, out.scale}, v, bits);
      out.bits = pack_eight(bits);
    }
  }
  return out;
}

/// Where a token goes: the sorted rows of its choices, one in each lane.
struct Targets {
  int row;
  int top_k;
  int groups;  // of eight columns in whole tiles
};

/// Writes a thread's columns to all of them.
template <formats::ActivationQuant kQuant>
__device__ void store_columns(const DeviceGather& g, std::int64_t group, const Columns& c,
                              const Targets& to) {
  const RowTiles& tiles = g.out.tiles;
  const bool codes = has_e4m3_codes(kQuant) && tiles.codes;
  const bool block = ops::has_block_scales(kQuant) && group % 16 == 0 && group * 8 < g.hidden;
  const bool token = g.out.token_scales && group == 0;
#pragma unroll 1
  for (int j = 0; j < to.top_k; ++j) {
    const int row = __shfl_sync(~0u, to.row, j);
    if (row < 0 || group >= to.groups) continue;
    std::byte* at = codes ? tiles.at(row, group / 2) + group % 2 * 8 : tiles.at(row, group);
    if (codes) {
      *reinterpret_cast<uint2*>(at) = make_uint2(c.bits.x, c.bits.y);
    } else {
      *reinterpret_cast<uint4*>(at) = c.bits;
    }
    if (block) g.out.block_scales[group / 16 * tiles.capacity + row] = c.scale;
    if (token) g.out.token_scales[row] = c.scale;
  }
}

}  // namespace switchyard::ops::sm90::few
