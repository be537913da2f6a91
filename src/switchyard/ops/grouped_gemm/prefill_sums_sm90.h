// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_prefill_sm90.h"
#include "switchyard/ops/grouped_gemm/sm90_mma_wide.h"

/// How the prefill tier multiplies bf16 weights, stored or decoded. For .cu files only.
namespace switchyard::ops::sm90::prefill {

/// A warpgroup's part of the work: bf16 from shared memory, weights as rows.
template <class Operands, class End>
class SumsConsumer : ConsumerBase<Operands> {
  using Base = ConsumerBase<Operands>;

 public:
  /// Of one warpgroup.
  __device__ SumsConsumer(const DeviceGemm& g, std::byte* stages, Shared<Operands>& s,
                          const End& end)
      : Base(g, stages, s), end_(end) {}

  /// Multiplies what comes until there is no more. Inline: with a call around them the compiler has
  /// every multiplication wait for its own end.
  __device__ __forceinline__ void run() {
    while (true) {
      this->wait();
      const Work w = this->s_.work[this->ring_.stage];
      if (w.tokens == 0) return;
      if (w.tiles == 2) {
        multiply_from<2, 64>(w);
      } else {
        multiply_from<1, Operands::kMostTokensTwice + 16>(w);
      }
    }
  }

 private:
  /// The next wider multiplication: in steps of 16 where tiles usually are.
  SWITCHYARD_HD static constexpr int next(int tokens) {
    return tokens < 128 ? tokens + 32 : tokens + 16;
  }

  /// The smallest multiplication that takes the tile's tokens, from `tokens` on.
  template <int tiles, int tokens>
  __device__ __forceinline__ void multiply_from(const Work& w) {
    constexpr int kMost = tiles == 2 ? Operands::kMostTokensTwice : Operands::kMostTokens;
    if constexpr (next(tokens) <= kMost) {
      if (w.tokens > tokens) return multiply_from<tiles, next(tokens)>(w);
    }
    multiply<tiles, tokens>(w);
  }

  /// Whose sums those of the warpgroup's row tile `t` are.
  template <int tiles>
  __device__ Sums sums_of(const Work& w, int t) const {
    return {.expert = w.expert,
            .row_tile = w.row_tile + this->consumer() * tiles + t,
            .first = w.first,
            .tokens = w.tokens};
  }
  __device__ bool exists(const Sums& sums) const {
    return sums.row_tile < this->g_.layout.row_tiles();
  }

  /// Multiplies over all of K and hands the sums to the end.
  template <int tiles, int tokens>
  __device__ __forceinline__ void multiply(const Work& w) {
#pragma unroll
    for (int t = 0; t < tiles; ++t)
      if (const Sums sums = sums_of<tiles>(w, t); exists(sums))
        Operands::ask(end_, this->s_.scratch, sums, t);
    float acc[tiles][tokens / 2];
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int i = 0; i < tokens / 2; ++i) acc[t][i] = 0;
    const int col_tiles = int(this->g_.layout.col_tiles());
    int previous = -1;
    for (int k = 0; k < col_tiles; ++k, this->ring_.advance()) {
      this->wait();
      const std::uint32_t at = this->stage_address();
      const std::uint64_t a = operand(at + this->consumer() * tiles * int(kTileBytes));
      const std::uint64_t b = operand(at + weight_bytes(tiles));
      mma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step)  // 16 columns are 32 bytes further: 2 units of 16
#pragma unroll
        for (int t = 0; t < tiles; ++t)
          mma_bf16<tokens>(acc[t], a + t * (kTileBytes >> 4) + 2 * step, b + 2 * step);
      mma_commit();
      mma_wait<1>();
      if (previous >= 0) this->release(previous);
      previous = this->ring_.stage;
    }
    mma_wait<0>();
    this->release(previous);
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      const Sums sums = sums_of<tiles>(w, t);
      if (exists(sums)) Operands::store(acc[t], end_, this->s_.scratch, sums, t);
    }
  }

  const End& end_;
};

}  // namespace switchyard::ops::sm90::prefill
