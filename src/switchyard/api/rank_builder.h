// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/api/layer_builder.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/comm/group.h"
#include "switchyard/layer/rank_layer.h"

namespace switchyard {

/// Threads of one rank: its share of the processors that the ranks may use together, itself at
/// least. Collective.
int rank_threads(comm::Group& group);
/// How one rank builds its part of what was prepared, apart from what its calls will be.
layer::RankOptions part_options(const comm::Group& group, const PreparedLayer& prepared,
                                std::shared_ptr<ThreadPool> pool);
/// A pin is kept or refused: the fused strategy is a leaf of its own, of another kernel.
/// Errors: UsageError that begins with `caller`.
void check_pinned_leaf(std::string_view caller, const PreparedLayer& prepared,
                       const BuildOptions& build);
/// Calibrates with each rank's share of the tokens, which are equal on all ranks, where the layer
/// needs any. Collective. Errors: UsageError on every rank.
void calibrate_rank(layer::RankLayer& layer, const BuildOptions& build,
                    std::vector<std::string>& notices);

}  // namespace switchyard
