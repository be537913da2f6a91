// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_prefill_sm90.h"
#include "switchyard/ops/grouped_gemm/sm90_mma_wide.h"

/// How the prefill tier multiplies bf16 weights, stored or decoded. For .cu files only.
namespace switchyard::ops::sm90::prefill {

/// mma_bf16(), beyond 256 tokens in two parts: the first of 144, for registers begin at multiples
/// of 8.
template <int tokens>
__device__ __forceinline__ void mma_tokens(float* acc, std::uint64_t a, std::uint64_t b) {
  constexpr int kFirst = tokens <= 256 ? tokens : 144, kSecond = tokens - kFirst;
  mma_bf16<kFirst>(reinterpret_cast<float(&)[kFirst / 2]>(acc[0]), a, b);
  if constexpr (kSecond > 0)
    mma_bf16<kSecond>(reinterpret_cast<float(&)[kSecond / 2]>(acc[kFirst / 2]), a,
                      b + (kFirst * kTileRowBytes >> 4));
}

/// A warpgroup's part of the work: bf16 from shared memory, weights as rows.
template <class Operands, class End>
class SumsConsumer : ConsumerBase<Operands> {
  using Base = ConsumerBase<Operands>;

 public:
  using Base::consumer;

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
      if (w.tokens == 0) break;
      if (w.tiles == 2) {
        multiply_from<2, 64>(w);
      } else {
        multiply_from<1, Operands::kMostTokensTwice + 16>(w);
      }
    }
    if constexpr (Operands::kLends) wait_for_copies_out();
  }

  /// The next stage of the ring, where the fetching warp leaves it to the end.
  __device__ std::byte* borrow() {
    this->wait();
    return this->stages_ + this->ring_.stage * kStageBytes<Operands>;
  }
  /// When all multiplying warps have written there: `copy` begins this thread's copies of it to
  /// memory. The stage goes back once they have read it, which the next one, or the next tile's
  /// multiplication, waits for.
  template <class Copy>
  __device__ void copy_out(Copy&& copy) {
    fence_async_proxy();
    asm volatile("bar.sync 1, %0;" ::"n"(32 * kWarps) : "memory");
    copy();
    close_copies_out();
    wait_for_reads<1>();
    if (lent_ >= 0) this->release(lent_);
    lent_ = this->ring_.stage;
    this->ring_.advance();
  }

  /// Whose sums those of the warpgroup's row tile `t` are.
  template <int tiles>
  __device__ Sums sums_of(const Work& w, int t) const {
    return {.expert = w.expert,
            .row_tile = w.row_tile + this->consumer() * tiles + t,
            .first = w.first,
            .tokens = w.tokens};
  }
  /// Whether the weights have that row tile.
  __device__ bool exists(const Sums& sums) const {
    return sums.row_tile < this->g_.layout.row_tiles();
  }
  /// What ends use.
  __device__ typename Operands::Scratch& scratch() { return this->s_.scratch; }

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

  /// Multiplies over all of K and hands the sums to the end.
  template <int tiles, int tokens>
  __device__ __forceinline__ void multiply(const Work& w) {
    Operands::template ask<tiles>(*this, end_, w);
    float acc[tiles][tokens / 2];
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int i = 0; i < tokens / 2; ++i) acc[t][i] = 0;
    const int col_tiles = int(this->g_.layout.col_tiles());
    int previous = lent_;
    lent_ = -1;
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
          mma_tokens<tokens>(acc[t], a + t * (kTileBytes >> 4) + 2 * step, b + 2 * step);
      mma_commit();
      mma_wait<1>();
      if constexpr (Operands::kLends)
        if (k == 0) wait_for_reads<0>();
      if (previous >= 0) this->release(previous);
      previous = this->ring_.stage;
    }
    mma_wait<0>();
    this->release(previous);
    Operands::finish(*this, end_, acc, w);
  }

  const End& end_;
  int lent_ = -1;  ///< Stage that copies to memory may still read.
};

}  // namespace switchyard::ops::sm90::prefill
