// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/sm90.h"

/// Wrappers of what two blocks of one cluster share, and of moves between lanes; for .cu files
/// only. Source:  PTX ISA 9.0: setmaxnreg, mapa, mbarrier, barrier.cluster, cp.async.bulk,
/// movmatrix.
namespace switchyard::ops::sm90 {

/// Gives registers back until the thread has `count`; by all warps of a warpgroup.
template <int count>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
/// Takes registers until the thread has `count`, once others gave them; by all of a warpgroup.
template <int count>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

/// This block's number within its cluster.
__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Waits for all threads of the cluster; what they wrote before is visible after.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// Arrives once at the barrier that lies where `bar` does, in block `rank` of the cluster. Orders
/// no writes between the blocks, which would cost a fence of all memory: it says that the tensor
/// cores have read what a copy may now replace.
__device__ inline void barrier_arrive_at(std::uint64_t* bar, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(bar)),
      "r"(rank)
      : "memory");
}

/// Waits for a phase that other blocks complete. A cluster that lost its way traps after 2e10
/// cycles, seconds, and does not hold the device for ever. One statement, because a trap that is a
/// block of its own keeps the compiler from giving a warpgroup more than its equal share of
/// registers.
__device__ inline void barrier_wait_bounded(std::uint64_t* bar, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done, late;\n"
      ".reg .u64 start, now;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "mov.u64 start, %%clock64;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "mov.u64 now, %%clock64;\n"
      "sub.u64 now, now, start;\n"
      "setp.gt.u64 late, now, 20000000000;\n"
      "@late trap;\n"
      "bra.uni again;\n"
      "over:\n"
      "}\n" ::"r"(shared_address(bar)),
      "r"(parity)
      : "memory");
}

/// copy_bulk() to the same place in both blocks of a pair; completes on the same barrier in each.
__device__ inline void copy_bulk_to_pair(void* to, const void* from, std::uint32_t bytes,
                                         std::uint64_t* bar) {
  constexpr std::uint16_t kBoth = 3;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(bar)), "h"(kBoth)
      : "memory");
}

/// Bulk copy from shared to global memory, in this thread's open group. Addresses and size in units
/// of 16.
__device__ inline void copy_bulk_out(void* to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
/// Closes this thread's group of copies out, which may be empty.
__device__ inline void close_copies_out() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until all but the last `pending` groups have read what they copy.
template <int pending>
__device__ void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
/// Waits until all of this thread's copies out are done.
__device__ inline void wait_for_copies_out() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// Transposes a matrix of 8 x 8 halves: a lane gives row lane / 4, columns 2 (lane % 4) and + 1.
__device__ inline std::uint32_t transpose_halves(std::uint32_t pair) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

}  // namespace switchyard::ops::sm90
