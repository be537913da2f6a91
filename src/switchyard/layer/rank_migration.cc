// SPDX-License-Identifier: Apache-2.0
// What a balanced layer of ranks does between its forwards.
#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/layer/rank_layer.h"

namespace switchyard::layer {
namespace {

constexpr std::string_view kPhase = "migration of experts";

}  // namespace

void RankLayer::migrate(std::span<const std::int32_t> slot_experts) {
  const std::int64_t ep = group_.size() / options_.tp;
  std::vector<eplb::Move> moves;
  comm::guarded(group_, kPhase, [&] {
    require(options_.balanced,
            "migrate: the layer was not built to be balanced, and counts no choices");
    cycle_.check_idle("migrate");
    moves = eplb::plan_moves(slots_.experts(), slot_experts, ep);
    [[maybe_unused]] const eplb::SlotMap whole(slot_experts, num_experts_);  // or it throws
    const Shard mine = held_by(group_.rank());
    const auto coming = std::ranges::count_if(moves, [&](const eplb::Move& m) {
      return m.slot >= mine.begin && m.slot < mine.begin + mine.size;
    });
    layer_->check_room("migrate",  // one more is shown to the others meanwhile
                       (coming + 1) * std::int64_t(layer_->routed().layout.bytes),
                       "copies of those that come here");
  });
  std::string mine;
  for (std::int32_t e : slot_experts) mine += cat(e, " ");
  const comm::Agreed wanted[] = {{"the slots to come", mine}};
  comm::agree(group_, wanted, kPhase);
  if (moves.empty()) return;
  if (!mover_) mover_ = std::make_unique<SlotMover>(group_, options_.tp, layer_->routed());
  // Every rank has all that it needs in memory of its own before the first slot changes.
  const std::vector<PackedExpert> incoming =
      mover_->fetch(layer_->routed(), moves, slots_.num_slots() / ep);
  layer_->place_packed(incoming);
  std::copy(slot_experts.begin(), slot_experts.end(), table_->begin());
  slots_ = eplb::SlotMap(slot_experts, num_experts_);
}

std::vector<std::int64_t> RankLayer::take_counts() {
  require(options_.balanced, "take_counts: the layer was not built to be balanced");
  cycle_.check_idle("take_counts");
  std::vector<std::int64_t> out(counts_.size(), 0);
  std::swap(out, counts_);
  return out;
}

}  // namespace switchyard::layer
