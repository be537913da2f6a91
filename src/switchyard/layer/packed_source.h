// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// The routed experts that a layer built with `options` holds; all of them unless `held` says less.
Shard held_experts(const checkpoint::LayerWeights& weights, const LayerOptions& options);

/// Expert `id` by the bank's numbers: -1 for one of another rank, and for a zero expert where
/// `layer` is a part.
std::int32_t packed_id(const Layer& layer, std::int32_t id);

/// The canonical experts behind the packed ids: the held ones, fused shared ones included, each cut
/// to its TP shard.
checkpoint::ExpertSource packed_source(const checkpoint::LayerWeights& weights,
                                       const LayerOptions& options);

/// The canonical shared expert (id 0), cut to its TP shard.
checkpoint::ExpertSource packed_shared(const checkpoint::LayerWeights& weights,
                                       const LayerOptions& options);

}  // namespace switchyard::layer
