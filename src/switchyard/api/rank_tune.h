// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "switchyard/api/rank_run.h"
#include "switchyard/api/tune.h"
#include "switchyard/tune/table.h"

namespace switchyard {

/// Tunes the calls of one bucket of a layer on the ranks of a group, each of them whether `table`
/// has it or not, and without tune_layers()'s question at the bucket's fewest tokens. A time is the
/// slowest rank's, a candidate is one that every rank's call can run, and all ranks see the same
/// numbers: so they choose the same. `table` gets the entries of every rank's shapes, on every
/// rank. Collective. Errors: UsageError, PeerError.
std::vector<TunedCall> tune_rank(comm::Group& group, const PreparedLayer& prepared,
                                 const TuneOptions& options, std::int64_t bucket,
                                 tune::TuningTable& table);

}  // namespace switchyard
