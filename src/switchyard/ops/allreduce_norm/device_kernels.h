// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "switchyard/ops/allreduce_norm/device_call.h"
#include "switchyard/ops/allreduce_norm/device_norm.h"
#include "switchyard/ops/allreduce_norm/device_wait.h"
#include "switchyard/ops/grouped_gemm/sm90.h"

/// The kernels of the fused all-reduce: a row is finished by one block. No push waits for anything,
/// blocks that push come first, and rows are taken in ascending order: so the lowest row that is
/// finished nowhere yet waits for nobody. For .cu files only.
///
/// T is the element type, W that of contributions on the wire. kOnce: a block has a thread for
/// every unit of the row. Everything but gamma is read behind the wait for the previous launch.
namespace switchyard::ops::fused {

/// How many units of a row a thread pushes at a time.
template <class W, bool kOnce>
inline constexpr int kPushed = kOnce            ? 1
                               : W::kWords == 4 ? 4
                                                : 2;
/// And how many it awaits.
template <class W, bool kOnce>
inline constexpr int kAwaited = kOnce            ? 1
                                : W::kWords == 4 ? 2
                                                 : 1;

/// The words of the call go to every peer. One warp calls it.
__device__ inline void push_words(const FusedCall& c, const Bank& bank) {
  const int i = int(threadIdx.x);
  if (i >= kAllReduceCallWords) return;
  const std::uint32_t word = F32::plus_zero(c.peers.words[i]);
  for (int r = 0; r < c.peers.ranks; ++r)
    if (r != c.peers.rank) store_word_strong(bank.header(r, c.peers.rank) + i * 4, word);
}

/// Compares the peers' words with the own ones. One warp calls it.
template <bool kPolite>
__device__ inline void compare_words(const FusedCall& c, const Bank& bank,
                                     Waiter<kPolite>& waiter) {
  const int i = int(threadIdx.x);
  if (i >= kAllReduceCallWords) return;
  const std::uint32_t word = F32::plus_zero(c.peers.words[i]);
  for (int r = 0; r < c.peers.ranks; ++r) {
    if (r == c.peers.rank) continue;
    const std::uint32_t theirs =
        waiter.take_word(bank.header(c.peers.rank, r) + i * 4, {.peer = r});
    if (theirs == word || waiter.stopped()) continue;
    report(c.peers, {.trouble = AllReduceTrouble::kCallsDiffer,
                     .peer = r,
                     .call = bank.number,
                     .word = std::uint32_t(i),
                     .mine = word,
                     .theirs = theirs});
  }
}

/// Whether there was trouble, after which nothing is sent: a peer may still read what lies in its
/// banks. The same for all threads of a block, which all call it.
__device__ inline bool dead(const FusedCall& c) {
  if (c.peers.ranks == 1) return false;
  return __syncthreads_or(*reinterpret_cast<volatile const int*>(&c.peers.control->dead)) != 0;
}

/// The last block to end tells the next call that this one is over.
__device__ inline void end_call(const FusedCall& c, const Bank& bank) {
  __syncthreads();
  if (c.peers.ranks == 1 || threadIdx.x != 0) return;
  AllReduceControl* control = c.peers.control;
  if (atomicAdd(&control->arrivals, 1U) != gridDim.x - 1) return;
  control->arrivals = 0;
  control->call = bank.number + 1;
}

/// This rank's contribution to token m, whose choices are staged, as it goes over the wire; alone,
/// unrounded.
template <class T, class W, Source kSource>
__device__ inline Unit<W> wire_unit(const FusedCall& c, std::int64_t m, int u, const RowMemory& s) {
  Unit<W> out;
  if constexpr (kSource == Source::kPlain && std::is_same_v<T, W>) {
    out = load_unit<T>(c.rows(), c.input, m, u);
  } else {
    float acc[kUnit];
    contribution<T, kSource>(c, m, u, s.choices, acc);
    out = narrow<W>(acc);
  }
#pragma unroll
  for (int i = 0; i < W::kWords; ++i) out.w[i] = W::plus_zero(out.w[i]);
  return out;
}

/// Writes a unit into a peer's memory.
template <class W>
__device__ inline void push_unit(std::byte* to, const Unit<W>& unit) {
#pragma unroll
  for (int i = 0; i < W::kWords; i += 4)
    store_strong(to + i * 4, make_uint4(unit.w[i], unit.w[i + 1], unit.w[i + 2], unit.w[i + 3]));
}

/// acc += the wire's unit; the legacy form rounds to T.
template <class T, class W>
__device__ inline void add_wire(const FusedCall& c, const Unit<W>& unit, float (&acc)[kUnit]) {
  float x[kUnit];
  widen(unit, x);
#pragma unroll
  for (int e = 0; e < kUnit; ++e) {
    acc[e] = acc[e] + x[e];
    if (c.legacy) acc[e] = T::round(acc[e]);
  }
}

/// acc, the sum of all ranks at unit `u` of token m, becomes the residual row; writes both.
template <class T>
__device__ inline void add_residual(const FusedCall& c, std::int64_t m, int u,
                                    const Unit<T>& residual, float (&acc)[kUnit]) {
  if (c.output != nullptr) store_unit<T>(c.rows(), c.output, m, u, narrow<T>(acc));
  if (!c.has_norm) return;
  float x[kUnit];
  widen(residual, x);
#pragma unroll
  for (int e = 0; e < kUnit; ++e) acc[e] = acc[e] + x[e];
  const Unit<T> rounded = narrow<T>(acc);
  if (c.residual_out != nullptr) store_unit<T>(c.rows(), c.residual_out, m, u, rounded);
  widen(rounded, acc);
}

/// Pushes units [begin, end) of this rank's contribution to token m to every peer, and to this
/// rank's own place where the row is finished by another block; else the row keeps it.
template <class T, class W, Source kSource, bool kOnce, bool kKeep>
__device__ inline void push_units(const FusedCall& c, const Bank& bank, std::int64_t m, int begin,
                                  int end, const RowMemory& s) {
  constexpr int kBatch = kSource == Source::kPlain ? kPushed<W, kOnce> : 1;
  constexpr bool kToSelf = kSource == Source::kWeighted && !kKeep;
  const AllReducePeers& peers = c.peers;
  const std::int64_t row_bytes = std::int64_t(c.units) * W::kWords * 4;
  const int step = int(blockDim.x);
  if constexpr (kSource == Source::kWeighted) stage_choices<T>(c, m, s.choices);
  for (int base = begin + int(threadIdx.x); base < end; base += step * kBatch) {
    Unit<W> unit[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (base + i * step < end) unit[i] = wire_unit<T, W, kSource>(c, m, base + i * step, s);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int u = base + i * step;
      if (u >= end) break;
      for (int r = 0; r < peers.ranks; ++r)
        if (kToSelf || r != peers.rank)
          push_unit(bank.contribution(r, peers.rank, m, c.tokens, row_bytes) + u * W::kWords * 4,
                    unit[i]);
      if constexpr (kKeep) {
        float x[kUnit];
        widen(unit[i], x);
        put_row(s, u, x);
      }
    }
  }
}

/// Where a row's own contribution is when the row is summed.
enum class Own : std::uint8_t {
  kInRow,    // in shared memory
  kInInput,  // still the caller's tensor
  kInBank    // among those of the peers
};

/// Sums token m in rank order as contributions arrive, and leaves the residual row in shared
/// memory.
template <class T, class W, Own kOwn, bool kOnce>
__device__ inline void sum_row(const FusedCall& c, const Bank& bank, std::int64_t m,
                               const RowMemory& s, Waiter<!kOnce>& waiter) {
  constexpr int kBatch = kAwaited<W, kOnce>;
  const AllReducePeers& peers = c.peers;
  const std::int64_t row_bytes = std::int64_t(c.units) * W::kWords * 4;
  const int step = int(blockDim.x);
  for (int base = int(threadIdx.x); base < c.units; base += step * kBatch) {
    Unit<T> residual[kBatch];
    float acc[kBatch][kUnit];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (c.has_norm && base + i * step < c.units)
        residual[i] = load_unit<T>(c.rows(), c.residual_in, m, base + i * step);
#pragma unroll
      for (int e = 0; e < kUnit; ++e) acc[i][e] = 0;
    }
    for (int r = 0; r < peers.ranks; ++r) {
      const bool awaited = kOwn == Own::kInBank || r != peers.rank;
      std::byte* from = bank.contribution(peers.rank, r, m, c.tokens, row_bytes);
      Unit<W> unit[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int u = base + i * step;
        if (u >= c.units) break;
        if (awaited) {
          look(from + u * W::kWords * 4, unit[i].w);
        } else if constexpr (kOwn == Own::kInInput) {
          unit[i] = wire_unit<T, W, Source::kPlain>(c, m, u, s);
        } else {
          float own[kUnit];
          get_row(s, u, own);
          unit[i] = narrow<W>(own);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int u = base + i * step;
        if (u >= c.units) break;
        if (awaited) waiter.take(from + u * W::kWords * 4, unit[i].w, {r, m});
        add_wire<T>(c, unit[i], acc[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int u = base + i * step;
      if (u >= c.units) break;
      add_residual<T>(c, m, u, residual[i], acc[i]);
      put_row(s, u, acc[i]);
    }
    if (kOnce) break;
  }
}

/// Sends slices of rows, in the rows' order, and waits for nothing.
template <class T, class W, Source kSource, bool kOnce>
__device__ inline void push_slices(const FusedCall& c, const Bank& bank, const RowMemory& s) {
  const int width = (c.units + c.slices - 1) / c.slices;
  for (std::int64_t i = blockIdx.x; i < c.tokens * c.slices; i += c.pushers) {
    const std::int64_t m = i / c.slices;
    const int begin = int(i - m * c.slices) * width;
    push_units<T, W, kSource, kOnce, false>(c, bank, m, begin, min(begin + width, c.units), s);
  }
}

/// Finishes rows that this block sends itself. Of plain rows, whose contribution can be read again,
/// the next one is on its way before this one is awaited.
template <class T, class W, Source kSource, bool kOnce>
__device__ inline void send_and_finish(const FusedCall& c, const Bank& bank, const RowMemory& s,
                                       const Gamma<T, kOnce>& gamma, Waiter<!kOnce>& waiter) {
  constexpr bool kAhead = kSource == Source::kPlain && !kOnce;
  const int first = int(blockIdx.x), step = int(gridDim.x) - c.clearers;
  if (kAhead && first < c.tokens)
    push_units<T, W, kSource, kOnce, false>(c, bank, first, 0, c.units, s);
  for (std::int64_t m = first; m < c.tokens; m += step) {
    if constexpr (kAhead) {
      if (m + step < c.tokens)
        push_units<T, W, kSource, kOnce, false>(c, bank, m + step, 0, c.units, s);
    } else {
      push_units<T, W, kSource, kOnce, true>(c, bank, m, 0, c.units, s);
    }
    if (m == first && c.clearers == 0) clear_padding(c, first, step);
    pause(c.peers.pause_ns);
    sum_row<T, W, kAhead ? Own::kInInput : Own::kInRow, kOnce>(c, bank, m, s, waiter);
    if (c.wants_norm) norm_row<T, kOnce>(c, m, s, gamma);
  }
}

/// Finishes rows that blocks in front send.
template <class T, class W, Source kSource, bool kOnce>
__device__ inline void finish_rows(const FusedCall& c, const Bank& bank, const RowMemory& s,
                                   const Gamma<T, kOnce>& gamma, Waiter<!kOnce>& waiter) {
  constexpr Own kOwn = kSource == Source::kPlain ? Own::kInInput : Own::kInBank;
  const int first = int(blockIdx.x) - c.pushers, step = int(gridDim.x) - c.pushers - c.clearers;
  if (c.clearers == 0) clear_padding(c, first, step);
  pause(c.peers.pause_ns);
  for (std::int64_t m = first; m < c.tokens; m += step) {
    sum_row<T, W, kOwn, kOnce>(c, bank, m, s, waiter);
    if (c.wants_norm) norm_row<T, kOnce>(c, m, s, gamma);
  }
}

/// A block's part of a one-shot call. Blocks in front send rows, where there are such blocks; the
/// others finish them, or send and finish them; blocks behind clear padding, where there are such.
template <class T, class W, Source kSource, bool kOnce>
__device__ __forceinline__ void one_shot_part(const FusedCall& c, const Bank& bank,
                                              const RowMemory& s, const Gamma<T, kOnce>& gamma) {
  const int block = int(blockIdx.x), clearer = block - (int(gridDim.x) - c.clearers);
  Waiter<!kOnce> waiter(c.peers, bank.number);
  if (block == 0) push_words(c, bank);
  if (clearer >= 0) {
    clear_padding(c, clearer, c.clearers);
  } else if (block < c.pushers) {
    push_slices<T, W, kSource, kOnce>(c, bank, s);
  } else if (c.pushers > 0) {
    finish_rows<T, W, kSource, kOnce>(c, bank, s, gamma, waiter);
  } else {
    send_and_finish<T, W, kSource, kOnce>(c, bank, s, gamma, waiter);
  }
  if (block == int(gridDim.x) - 1) compare_words(c, bank, waiter);
}

/// One rank's one-shot call.
template <class T, class W, Source kSource, bool kOnce>
__global__ void __launch_bounds__(kOnce ? 1024 : 512, kOnce ? 1 : 2)
    one_shot(const __grid_constant__ FusedCall c) {
  extern __shared__ float4 memory[];
  const RowMemory s = row_memory(reinterpret_cast<float*>(memory), c.units);
  const int block = int(blockIdx.x);
  const Gamma<T, kOnce> gamma(c, block >= c.pushers && block < int(gridDim.x) - c.clearers);
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const Bank bank{c, c.peers.ranks == 1 ? 0 : c.peers.control->call};
  if (!dead(c)) one_shot_part<T, W, kSource, kOnce>(c, bank, s, gamma);
  end_call(c, bank);
}

/// Where the owner's row of token m lies at rank `at`, behind the contributions to owned rows.
template <class T, class W>
__device__ inline std::byte* owned_row(const FusedCall& c, const Bank& bank, int at,
                                       std::int64_t m) {
  const std::int64_t wire = std::int64_t(c.units) * W::kWords * 4;
  const std::int64_t owned = (c.tokens + c.peers.ranks - 1) / c.peers.ranks;
  return bank.begin(at) + c.peers.ranks * owned * wire +
         m * (2 * std::int64_t(c.units) * T::kWords * 4);
}

/// Sends the owner's row and its sum, as far as they are wanted.
template <class T, class W>
__device__ inline void share_unit(const FusedCall& c, const Bank& bank, std::int64_t m, int u,
                                  const float (&sum)[kUnit], const float (&residual)[kUnit]) {
  const std::int64_t row_bytes = std::int64_t(c.units) * T::kWords * 4;
  auto send = [&](const float(&x)[kUnit], std::int64_t offset) {
    Unit<T> unit = narrow<T>(x);
#pragma unroll
    for (int i = 0; i < T::kWords; ++i) unit.w[i] = T::hide_zero(unit.w[i]);
    for (int r = 0; r < c.peers.ranks; ++r)
      if (r != c.peers.rank)
        push_unit(owned_row<T, W>(c, bank, r, m) + offset + u * T::kWords * 4, unit);
  };
  if (c.output != nullptr) send(sum, row_bytes);
  if (c.has_norm) send(residual, 0);
}

/// Sums a row that this rank owns and shares it.
template <class T, class W, Source kSource>
__device__ inline void sum_owned_row(const FusedCall& c, const Bank& bank, std::int64_t m,
                                     const RowMemory& s, Waiter<true>& waiter) {
  const AllReducePeers& peers = c.peers;
  const std::int64_t row_bytes = std::int64_t(c.units) * W::kWords * 4,
                     owned = (c.tokens + peers.ranks - 1) / peers.ranks;
  if constexpr (kSource == Source::kWeighted) stage_choices<T>(c, m, s.choices);
  for (int u = int(threadIdx.x); u < c.units; u += int(blockDim.x)) {
    const Unit<T> residual = c.has_norm ? load_unit<T>(c.rows(), c.residual_in, m, u) : zeros<T>();
    const Unit<W> own = wire_unit<T, W, kSource>(c, m, u, s);
    float acc[kUnit] = {};
    bool whole = true;
    for (int r = 0; r < peers.ranks; ++r) {
      Unit<W> unit = own;
      if (r != peers.rank) {
        std::byte* from =
            bank.contribution(peers.rank, r, m / peers.ranks, owned, row_bytes) + u * W::kWords * 4;
        look(from, unit.w);
        whole = waiter.take(from, unit.w, {r, m}) && whole;
      }
      add_wire<T>(c, unit, acc);
    }
    float sum[kUnit];
#pragma unroll
    for (int e = 0; e < kUnit; ++e) sum[e] = acc[e];
    add_residual<T>(c, m, u, residual, acc);
    if (whole) share_unit<T, W>(c, bank, m, u, sum, acc);  // a late peer takes no other sum
    put_row(s, u, acc);
  }
}

/// Takes the row of token m from its owner.
template <class T, class W>
__device__ inline void take_owned_row(const FusedCall& c, const Bank& bank, std::int64_t m,
                                      const RowMemory& s, Waiter<true>& waiter) {
  const int me = c.peers.rank, owner = int(m % c.peers.ranks);
  const std::int64_t row_bytes = std::int64_t(c.units) * T::kWords * 4;
  std::byte* from = owned_row<T, W>(c, bank, me, m);
  auto take = [&](std::int64_t offset, int u) {
    Unit<T> unit;
    look(from + offset + u * T::kWords * 4, unit.w);
    waiter.take(from + offset + u * T::kWords * 4, unit.w, {owner, m, 1});
#pragma unroll
    for (int i = 0; i < T::kWords; ++i) unit.w[i] = T::show_zero(unit.w[i]);
    return unit;
  };
  for (int u = int(threadIdx.x); u < c.units; u += int(blockDim.x)) {
    if (c.output != nullptr) store_unit<T>(c.rows(), c.output, m, u, take(row_bytes, u));
    if (!c.has_norm) continue;
    const Unit<T> residual = take(0, u);
    if (c.residual_out != nullptr) store_unit<T>(c.rows(), c.residual_out, m, u, residual);
    float x[kUnit];
    widen(residual, x);
    put_row(s, u, x);
  }
}

/// A block's part of a two-shot call: rank m mod N sums row m. First all rows that others own go
/// out, so no push waits for anything.
template <class T, class W, Source kSource>
__device__ __forceinline__ void two_shot_part(const FusedCall& c, const Bank& bank,
                                              const RowMemory& s, const Gamma<T, false>& gamma) {
  const AllReducePeers& peers = c.peers;
  Waiter<true> waiter(peers, bank.number);
  if (blockIdx.x == 0) push_words(c, bank);
  const std::int64_t row_bytes = std::int64_t(c.units) * W::kWords * 4,
                     owned = (c.tokens + peers.ranks - 1) / peers.ranks;
  for (std::int64_t m = blockIdx.x; m < c.tokens; m += gridDim.x) {
    const int owner = int(m % peers.ranks);
    if (owner == peers.rank) continue;
    std::byte* to = bank.contribution(owner, peers.rank, m / peers.ranks, owned, row_bytes);
    if constexpr (kSource == Source::kWeighted) stage_choices<T>(c, m, s.choices);
    for (int u = int(threadIdx.x); u < c.units; u += int(blockDim.x))
      push_unit(to + u * W::kWords * 4, wire_unit<T, W, kSource>(c, m, u, s));
  }
  clear_padding(c, int(blockIdx.x), int(gridDim.x));
  pause(peers.pause_ns);
  for (int step = 0; step < 2; ++step)
    for (std::int64_t m = blockIdx.x; m < c.tokens; m += gridDim.x) {
      const bool mine = m % peers.ranks == peers.rank;
      if (mine == (step == 1)) continue;
      if (mine)
        sum_owned_row<T, W, kSource>(c, bank, m, s, waiter);
      else
        take_owned_row<T, W>(c, bank, m, s, waiter);
      if (c.wants_norm) norm_row<T, false>(c, m, s, gamma);
    }
  if (blockIdx.x == 0) compare_words(c, bank, waiter);
}

/// One rank's two-shot call.
template <class T, class W, Source kSource>
__global__ void __launch_bounds__(512, 2) two_shot(const __grid_constant__ FusedCall c) {
  extern __shared__ float4 memory[];
  const RowMemory s = row_memory(reinterpret_cast<float*>(memory), c.units);
  const Gamma<T, false> gamma(c, true);
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const Bank bank{c, c.peers.control->call};
  if (!dead(c)) two_shot_part<T, W, kSource>(c, bank, s, gamma);
  end_call(c, bank);
}

/// Which kernel runs a call, and how it is cut where 0 is not left to be chosen.
struct Launch {
  bool weighted = false, two_shot = false, once = false;
  int threads = 0;
  AllReduceGeometry geometry;
  std::int64_t shared_bytes = 0;
};

/// Enqueues the kernel of element type T; `wide`: contributions travel in fp32.
void launch_bf16(const FusedCall& c, bool wide, const Launch& launch, Stream stream);
/// As launch_bf16().
void launch_fp16(const FusedCall& c, bool wide, const Launch& launch, Stream stream);
/// As launch_bf16().
void launch_f32(const FusedCall& c, bool wide, const Launch& launch, Stream stream);

}  // namespace switchyard::ops::fused
