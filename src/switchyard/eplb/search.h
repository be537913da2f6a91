// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "switchyard/eplb/pack.h"

namespace switchyard::eplb {

/// Replicates experts and deals the replicas to ranks, no two of one expert to the same, so that
/// the heaviest rank is light: replicate() and pack() first, then other shares of the replicas,
/// then single steps, each only while the balance is not yet good.
///
/// Shapes:  loads [experts]; result [ranks][slots / ranks] of expert ids; experts <= slots, ranks
///          divide slots, slots / ranks <= experts: the caller's care.
Bins place_replicas(std::span<const double> loads, std::int64_t slots, std::int64_t ranks);

}  // namespace switchyard::eplb
