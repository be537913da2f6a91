// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/packed_source.h"

#include "switchyard/base/check.h"
#include "switchyard/layer/expert_part.h"
#include "switchyard/layer/fused_shared.h"

namespace switchyard::layer {

Shard held_experts(const checkpoint::LayerWeights& w, const LayerOptions& o) {
  return o.held.size > 0 ? o.held : Shard{0, w.problem.num_experts()};
}

std::int32_t packed_id(const Layer& layer, std::int32_t id) {
  const LayerOptions& o = layer.options();
  if (!o.is_part() || o.fuse_shared || id < 0) return id;
  const Shard held = held_experts(layer.weights(), o);
  return id >= held.begin && id < held.begin + held.size ? std::int32_t(id - held.begin) : -1;
}

checkpoint::ExpertSource packed_source(const checkpoint::LayerWeights& w, const LayerOptions& o) {
  ensure(o.held.size == 0 || !o.fuse_shared, "fused shared experts beside some of the experts");
  checkpoint::ExpertSource source = o.fuse_shared ? with_fused_shared(w) : w.expert;
  if (const std::int64_t first = o.held.begin; first > 0)
    source = [all = std::move(source), first](std::int64_t e) { return all(first + e); };
  return with_part(std::move(source), ExpertPart::of(w.problem.inter, o.tp));
}

checkpoint::ExpertSource packed_shared(const checkpoint::LayerWeights& w, const LayerOptions& o) {
  ensure(w.shared.has_value(), "a shard of a shared expert: the layer has none");
  const checkpoint::ExpertWeights& whole = w.shared->weights;
  return with_part([whole](std::int64_t) { return whole; },
                   ExpertPart::of(whole.up.rows, o.shared_tp));
}

}  // namespace switchyard::layer
