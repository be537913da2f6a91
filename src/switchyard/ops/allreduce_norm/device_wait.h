// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/ops/allreduce_norm/allreduce_peers.h"
#include "switchyard/ops/allreduce_norm/device_units.h"

/// Words that travel between GPUs: a word has arrived when it is no longer kNothingArrived, so a
/// reader polls its own memory only and needs no flag. For .cu files only.
/// Source:  PTX ISA 9.0, memory consistency model: each word of a vector access is a strong access
///          of its own.
namespace switchyard::ops::fused {

/// Reads 16 bytes past all caches that a peer does not write through.
__device__ inline uint4 load_strong(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
/// Writes 16 bytes that a peer may poll for.
__device__ inline void store_strong(void* to, const uint4& v) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w));
}
/// As load_strong(), of one word.
__device__ inline std::uint32_t load_word_strong(const void* from) {
  std::uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
/// As store_strong(), of one word.
__device__ inline void store_word_strong(void* to, std::uint32_t v) {
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(to), "r"(v));
}
/// The GPU's clock. Units: ns.
__device__ inline std::uint64_t now_ns() {
  std::uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

/// Does nothing for a time.
__device__ inline void pause(std::uint64_t ns) {
  if (ns == 0) return;
  for (const std::uint64_t start = now_ns(); now_ns() - start < ns;) __nanosleep(1000);
}

/// For whom and what a thread waits.
struct Awaited {
  std::int32_t peer = 0;
  std::int64_t token = 0;
  std::uint32_t owned = 0;  // an owner's row
};

/// Tells the host of the first trouble, every block to stop waiting, and later calls to do nothing.
__device__ inline void report(const AllReducePeers& peers, const AllReduceStatus& status) {
  atomicExch(&peers.control->dead, 1U);
  if (atomicCAS(&peers.control->claimed, 0U, 1U) != 0U) return;
  AllReduceStatus* to = peers.status;
  to->peer = status.peer;
  to->token = status.token;
  to->call = status.call;
  to->word = status.word;
  to->mine = status.mine;
  to->theirs = status.theirs;
  to->budget_ns = status.budget_ns;
  __threadfence_system();
  *reinterpret_cast<volatile std::uint32_t*>(&to->trouble) = std::uint32_t(status.trouble);
  __threadfence_system();
}

/// What lies at `from` now.
template <int kWords>
__device__ inline void look(const std::byte* from, std::uint32_t (&w)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; i += 4) {
    const uint4 v = load_strong(from + i * 4);
    w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
  }
}

/// A thread's patience: every wait ends, by arrival or by the deadline. Where many rows wait at a
/// time (kPolite) it pauses between looks, which would slow down what it waits for.
template <bool kPolite>
class Waiter {
 public:
  /// Of a thread in call number `call`.
  __device__ Waiter(const AllReducePeers& peers, std::uint32_t call) : peers_(peers), call_(call) {}

  /// The unit at `from`, as soon as all of it has arrived, and empties its place; false and 0 after
  /// the deadline. `w` is what look() saw there.
  template <int kWords>
  __device__ bool take(std::byte* from, std::uint32_t (&w)[kWords], const Awaited& what) {
    std::uint32_t spins = 0;
    std::uint64_t since = 0;
    while (!arrived(w)) {
      if ((++spins & 1023U) == 0 && expired(what, spins, since)) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) w[i] = 0;
        return false;
      }
      if (kPolite) __nanosleep(100);
      look(from, w);
    }
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      store_strong(from + i * 4,
                   make_uint4(kNothingArrived, kNothingArrived, kNothingArrived, kNothingArrived));
    return true;
  }
  /// One word; 0 after the deadline.
  __device__ std::uint32_t take_word(std::byte* from, const Awaited& what) {
    std::uint32_t spins = 0, w = load_word_strong(from);
    std::uint64_t since = 0;
    while (w == kNothingArrived) {
      if ((++spins & 1023U) == 0 && expired(what, spins, since)) return 0;
      w = load_word_strong(from);
    }
    store_word_strong(from, kNothingArrived);
    return w;
  }
  /// Whether some thread has met trouble.
  __device__ bool stopped() const {
    return *reinterpret_cast<volatile std::uint32_t*>(&peers_.control->dead) != 0;
  }

 private:
  template <int kWords>
  __device__ static bool arrived(const std::uint32_t (&w)[kWords]) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kWords; ++i) all = all && w[i] != kNothingArrived;
    return all;
  }
  /// Whether the host has given up. It is asked seldom: its word lies behind the bus.
  __device__ bool abandoned(std::uint32_t spins) const {
    constexpr std::uint32_t kSeldom = 0xffffU;
    if ((spins & kSeldom) != 0) return false;
    if (*reinterpret_cast<volatile std::uint32_t*>(&peers_.status->abandoned) == 0) return false;
    atomicExch(&peers_.control->dead, 1U);
    return true;
  }
  __device__ bool expired(const Awaited& what, std::uint32_t spins, std::uint64_t& since) {
    if (stopped() || abandoned(spins)) return true;
    const std::uint64_t now = now_ns();
    if (since == 0) since = now;
    const AllReduceControl& control = *peers_.control;
    const std::uint64_t budget = call_ == 0 ? control.warm_up_ns : control.serving_ns;
    if (now - since < budget) return false;
    if (differs(what.peer)) return true;
    report(peers_, {.trouble = AllReduceTrouble::kPeerLate,
                    .peer = what.peer,
                    .token = what.token,
                    .call = call_,
                    .word = what.owned,
                    .budget_ns = budget});
    return true;
  }

  /// A peer whose call differs may never send what is awaited: its words say so.
  __device__ bool differs(int peer) {
    const std::int64_t line = std::int64_t(call_ % kAllReduceGenerations) * kMaxDeviceRanks + peer;
    const std::byte* words = peers_.slices[peers_.rank] + line * kExchangeLineBytes;
    for (int i = 0; i < kAllReduceCallWords; ++i) {
      const std::uint32_t mine = F32::plus_zero(peers_.words[i]),
                          theirs = load_word_strong(words + i * 4);
      if (theirs == kNothingArrived || theirs == mine) continue;
      report(peers_, {.trouble = AllReduceTrouble::kCallsDiffer,
                      .peer = peer,
                      .call = call_,
                      .word = std::uint32_t(i),
                      .mine = mine,
                      .theirs = theirs});
      return true;
    }
    return false;
  }

  const AllReducePeers& peers_;
  std::uint32_t call_;
};

}  // namespace switchyard::ops::fused
