// SPDX-License-Identifier: Apache-2.0
// The scheduler of ranks whose leaf exchanges tokens itself. The slots are released behind the
// whole call: the leaf reads weights until its last batch.
#include "switchyard/layer/rank_scratch.h"

namespace switchyard::layer {

void RankLayer::run_batch(const MegaBatch& b, const Scratch& s) const {
  note(RankStep::kExperts);
  Rows rows{.count = b.rows,
            .ids = b.ids,
            .weights = b.weights,
            .shares = b.shares,
            .share_stride = b.share_stride};
  rows.apart = {.rows = b.hidden,
                .scales = payload_.scale_bytes > 0 ? b.scales : nullptr,
                .quantised = payload_.quantised()};
  run_rows(rows, s);
}

void RankLayer::fuse(const ForwardArgs& a, Scratch& s) {
  if (layer_->shared() != nullptr) note(RankStep::kShared);
  if (a.tokens > 0 && layer_->shared() != nullptr) run_shared(*layer_, a, s.parts);
  if (payload_.quantised()) note(RankStep::kQuantise);
  encode_rows({.payload = &payload_,
               .rows = a.tokens,
               .x = s.x.data,
               .x_stride = s.x.stride,
               .static_scale = layer_->routed().scales.fc1,
               .codes = mega_->rows(),
               .code_stride = mega_->row_stride(),
               .scales = mega_->scales(),
               .scale_stride = mega_->scale_stride(),
               .stage = s.stage,
               .pool = layer_->options().pool.get()});
  struct Experts {
    RankLayer& layer;
    const Scratch& scratch;
  } experts{*this, s};
  const BatchRunner runner{.context = &experts,
                           .run =
                               [](void* self, const MegaBatch& batch) {
                                 const auto& e = *static_cast<Experts*>(self);
                                 e.layer.run_batch(batch, e.scratch);
                               },
                           .counted =
                               [](void* self) {
                                 RankLayer& layer = static_cast<Experts*>(self)->layer;
                                 if (layer.options_.balanced) layer.gather_fused_counts();
                               }};
  Finisher f = finisher(a, s);
  note(RankStep::kDispatch);  // and the combine: one call, of a leaf
  mega_->run({.tokens = a.tokens,
              .ids = s.placed.data(),
              .weights = s.routed.weights.data(),
              .stats = options_.balanced ? s.counts.data() : nullptr,
              .wire = wire_},
             runner, {&f, Finisher::row});
  start_set();
}

/// The counts of all ranks, each in its own memory.
void RankLayer::gather_fused_counts() {
  note(RankStep::kGather);
  for (int r = 0; r < group_.size(); ++r) {
    const std::int32_t* of_rank = mega_->stats(r);
    for (std::size_t e = 0; e < counts_.size(); ++e) counts_[e] += of_rank[e];
  }
  cycle_.gathered();
}

}  // namespace switchyard::layer
