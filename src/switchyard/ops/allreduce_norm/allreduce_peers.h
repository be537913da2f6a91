// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/base/device.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

namespace switchyard::ops {

/// Most GPUs that one fused all-reduce joins, and the widest row, which lies in shared memory.
inline constexpr std::int64_t kMaxDeviceRanks = 8, kMaxDeviceHidden = 49152;

/// Banks of a GPU's exchange memory, used in turn. A peer is at most one call ahead, and every bank
/// is empty again when the call that used it has ended.
inline constexpr int kAllReduceGenerations = 3;

/// What a word of exchange memory holds while nothing has arrived: -0 in its upper half. Rows hold
/// none: a contribution has +0 for it, and an owner's row the negative NaN, which no sum is.
inline constexpr std::uint32_t kNothingArrived = 0x80000000U;

/// Words of a call that all ranks must pass alike; they travel with it.
inline constexpr int kAllReduceCallWords = 10;

/// What a kernel has run into.
enum class AllReduceTrouble : std::uint32_t { kNone, kPeerLate, kCallsDiffer, kBadRow };

/// The first trouble of a workspace, which kernels write into host memory, and the host's word
/// back.
struct AllReduceStatus {
  AllReduceTrouble trouble = AllReduceTrouble::kNone;
  std::int32_t peer = -1;
  std::int64_t token = 0;  // kBadRow: token * top_k + choice
  std::uint32_t call = 0;  // counted from 0
  std::uint32_t word = 0;  // kCallsDiffer: which; kPeerLate: 1 when an owner's row was awaited
  std::uint32_t mine = 0, theirs = 0;
  std::uint64_t budget_ns = 0;  // kPeerLate: how long it was waited for
  std::uint32_t abandoned = 0;  // by the host: whoever waits on the GPU stops
};

/// Words of a GPU's own that its calls keep between them. Budgets lie here and not in a launch, so
/// that a captured graph waits as long as the call that it replays may.
struct AllReduceControl {
  std::uint32_t call = 0;      // how many have ended
  std::uint32_t arrivals = 0;  // blocks of the running one that have
  std::uint32_t dead = 0;      // there was trouble: no call sends or waits any more
  std::uint32_t claimed = 0;   // and somebody tells of it
  std::uint64_t warm_up_ns = 0, serving_ns = 0;  // of one wait in the first call, and later
};

/// One GPU's view of all ranks' exchange memory.
struct AllReducePeers {
  int rank = 0, ranks = 1;
  std::byte* slices[kMaxDeviceRanks] = {};  // as this GPU addresses them
  std::int64_t bank_bytes = 0;              // of one generation
  AllReduceControl* control = nullptr;      // in this GPU's memory
  AllReduceStatus* status = nullptr;        // in host memory, as this GPU addresses it
  std::uint32_t words[kAllReduceCallWords] = {};
  std::uint64_t pause_ns = 0;  // a test's: between this rank's sending and its first look
};

/// How a one-shot call is cut; bits do not depend on it. 0: chosen from tokens and width.
struct AllReduceGeometry {
  int threads = 0;    // of a block
  int finishers = 0;  // blocks that finish rows
  int pushers = 0;    // blocks in front that only send; -1: none
  int slices = 0;     // of a row, among the pushers
  int sharers = 1;    // ranks on this GPU: each takes its part of the processors, so that all run
};

/// Elements that a thread handles at a time; rows in exchange memory are whole units.
inline constexpr std::int64_t kAllReduceUnit = 8;
/// Bytes of a row of `hidden` elements of `bytes` bytes in exchange memory.
constexpr std::int64_t exchange_row_bytes(std::int64_t hidden, std::int64_t bytes) {
  return (hidden + kAllReduceUnit - 1) / kAllReduceUnit * kAllReduceUnit * bytes;
}
/// Bytes before the first bank: a line per generation and rank for the words of the call.
inline constexpr std::int64_t kExchangeHeaderBytes = 2048, kExchangeLineBytes = 64;
static_assert(kAllReduceGenerations * kMaxDeviceRanks * kExchangeLineBytes <= kExchangeHeaderBytes);
static_assert(kAllReduceCallWords * 4 <= kExchangeLineBytes);

/// Bytes that a call needs of one bank, for either strategy: contributions of all ranks to all
/// tokens, or to the rows that this rank owns, and then the owners' rows with their sums.
constexpr std::int64_t exchange_bank_bytes(const CallShape& s, std::int64_t ranks) {
  const std::int64_t wire =
      exchange_row_bytes(s.hidden, s.fp32_wire ? 4 : std::int64_t(size_of(s.dtype)));
  const std::int64_t reduced = 2 * exchange_row_bytes(s.hidden, std::int64_t(size_of(s.dtype)));
  const std::int64_t one = ranks * s.tokens * wire;
  const std::int64_t two = (s.tokens + ranks - 1) / ranks * ranks * wire + s.tokens * reduced;
  return ranks == 1 ? 0 : one > two ? one : two;
}

/// Enqueues one rank's part of a fused all-reduce between GPUs; allocates nothing, waits for
/// nothing on the host and can be captured. `strategy` is not kAuto. The call's pointers, those of
/// the scales too, lie in this GPU's memory.
///
/// Bits are those of the CPU twin, but for the sign and the payload of a NaN.
/// Errors:  UsageError as AllReduceCall::check(), or beyond the limits of a GPU; DeviceError when
///          the launch is refused or the build has no CUDA; UsageError for more sharers than the
///          GPU has room for. What happens on the device is told by peers.status; from then on
///          calls send nothing, wait for nothing and write nothing.
void allreduce_norm_cuda(const AllReduceCall& call, AllReduceStrategy strategy,
                         const AllReducePeers& peers, const AllReduceGeometry& geometry,
                         Stream stream);

/// Enqueues the emptying of exchange memory. Shapes: words [count].
void empty_exchange_cuda(std::uint32_t* words, std::int64_t count, Stream stream);

}  // namespace switchyard::ops
