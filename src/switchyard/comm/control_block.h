// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "switchyard/comm/group.h"

namespace switchyard::comm {

/// Bytes that a seat keeps to itself, and of the texts in a control block.
inline constexpr std::size_t kControlLine = 64, kMailBytes = 1024, kAbortText = 512,
                             kNameBytes = 192;
/// What a control block of this version begins with.
inline constexpr std::uint32_t kControlMagic = 0x53594752, kControlVersion = 3;
/// The abort cell: free, or being filled, or kAbortedBy + the rank that gave up.
inline constexpr std::uint32_t kAbortFree = 0, kAbortClaimed = 1, kAbortedBy = 2;

/// One bit per rank.
using RankMask = std::array<std::uint64_t, kMaxGroupRanks / 64>;

/// How far a rank has come in one attempt at the group that follows an aborted one. A seat's word
/// is kStates * attempt + state; attempts count from 1.
enum Succession : std::uint32_t {
  kNotYet = 0,
  kListGiven = 1,
  kControlMade = 2,
  kMakingFailed = 3,
  kStates = 4
};

/// What one rank tells the others between two barriers.
struct alignas(kControlLine) Seat {
  Word arrived;          // sequence number of the barrier that it has come to
  std::uint64_t length;  // of its whole all_gather text
  char mail[kMailBytes];
  // For Group::survivors(); what a reader took counts if the word's attempt is still the same:
  Word succession;  // an attempt and its Succession; the last two by the first survivor only
  std::atomic<std::uint64_t> survivors[kMaxGroupRanks / 64];  // those that this rank counts on
  std::atomic<std::uint64_t> name[kNameBytes / 8];  // of the new block, or why there is none
};

/// The head of a group's shared memory; the seats follow it.
struct alignas(kControlLine) Control {
  std::uint32_t magic, version, size;
  Word abort;  // any rank may claim it, once
  char abort_text[kAbortText];
  Seat* seats() { return reinterpret_cast<Seat*>(this + 1); }
};

}  // namespace switchyard::comm
