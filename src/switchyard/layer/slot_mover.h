// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/base/host_buffer.h"
#include "switchyard/comm/symmetric_memory.h"
#include "switchyard/eplb/migration.h"
#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// Carries packed experts from the slots of some ranks to those of others, through a window of one
/// expert per rank. Weights, scales and constants of an expert travel together, as one record.
class SlotMover {
 public:
  /// Where a rank stands: rank = ep_rank * tp + tp_rank, and ranks of one tp_rank hold the same
  /// columns of their experts.
  ///
  /// Collective. Errors: UsageError on every rank when memory is refused; PeerError.
  SlotMover(comm::Group& group, std::int64_t tp, const ExpertBank& bank);

  /// What this rank's slots shall hold after `moves`, as it stands in front of them. The bank is
  /// only read. Collective: all ranks give the same moves.
  ///
  /// Errors: UsageError on every rank when memory is refused; or a peer shows another
  ///         expert than the move names; PeerError.
  std::vector<PackedExpert> fetch(const ExpertBank& bank, std::span<const eplb::Move> moves,
                                  std::int64_t slots_per_rank);

 private:
  struct Header {
    std::int64_t slot = -1;
    std::int32_t expert = -1;
    float fc2_scale = 1;
  };
  static constexpr std::int64_t kBytesAt = 64;  // of a slice, behind the header

  void show(const ExpertBank& bank, const eplb::Move& move, std::int64_t slots_per_rank);
  void take(const eplb::Move& move, int source, PackedExpert& out) const;

  comm::Group& group_;
  std::int64_t tp_;
  std::size_t expert_bytes_;
  comm::SymmetricMemory window_;
};

}  // namespace switchyard::layer
