// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/slot_mover.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "switchyard/base/check.h"
#include "switchyard/comm/gathered.h"

namespace switchyard::layer {
namespace {

constexpr std::string_view kPhase = "migration of experts";

/// Ranks that hold other columns of their experts may hold fewer of them; windows are alike.
std::size_t largest(comm::Group& group, std::size_t mine) {
  return std::ranges::max(comm::gathered(group, mine, kPhase));
}

}  // namespace

SlotMover::SlotMover(comm::Group& group, std::int64_t tp, const ExpertBank& bank)
    : group_(group),
      tp_(tp),
      expert_bytes_(bank.layout.bytes),
      window_(group, std::size_t(kBytesAt) + largest(group, bank.layout.bytes)) {}

void SlotMover::show(const ExpertBank& bank, const eplb::Move& move, std::int64_t slots_per_rank) {
  const auto local = std::size_t(move.from % slots_per_rank);
  *window_.at<Header>(group_.rank(), 0) = {move.from, move.expert, bank.scales.fc2[local]};
  std::memcpy(window_.slice(group_.rank()) + kBytesAt, bank.packed.data() + local * expert_bytes_,
              expert_bytes_);
}

void SlotMover::take(const eplb::Move& move, int source, PackedExpert& out) const {
  const Header& header = *window_.at<Header>(source, 0);
  ensure(header.slot == move.from && header.expert == move.expert, "migration: rank ", source,
         " shows expert ", header.expert, " of slot ", header.slot, ", expected ", move.expert,
         " of slot ", move.from);
  out.fc2_scale = header.fc2_scale;
  std::memcpy(out.bytes.data(), window_.slice(source) + kBytesAt, expert_bytes_);
}

std::vector<PackedExpert> SlotMover::fetch(const ExpertBank& bank,
                                           std::span<const eplb::Move> moves,
                                           std::int64_t slots_per_rank) {
  const std::int64_t ep_rank = group_.rank() / tp_, tp_rank = group_.rank() % tp_;
  std::vector<PackedExpert> out;
  comm::guarded(group_, kPhase, [&] {
    for (const eplb::Move& move : moves)
      if (move.slot / slots_per_rank == ep_rank)
        out.push_back({move.slot % slots_per_rank, 1, HostBuffer(expert_bytes_)});
  });
  for (const std::vector<eplb::Move>& round : eplb::in_rounds(moves, slots_per_rank)) {
    for (const eplb::Move& move : round)
      if (move.from / slots_per_rank == ep_rank) {
        show(bank, move, slots_per_rank);  // the same slot in every move of the round
        break;
      }
    group_.barrier(kPhase);
    comm::guarded(group_, kPhase, [&] {  // after it everybody has read: the windows may change
      for (const eplb::Move& move : round)
        for (PackedExpert& mine : out)
          if (move.slot == ep_rank * slots_per_rank + mine.slot)
            take(move, int(move.from / slots_per_rank * tp_ + tp_rank), mine);
    });
  }
  return out;
}

}  // namespace switchyard::layer
