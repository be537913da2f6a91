// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace switchyard::layer {

/// What a rank does in a forward, in the order of a balanced layer under an exchange. kQuantise to
/// kCombine come once for each chunk, but kGather with the first alone, and kStartSet with the
/// last. Ranks without tokens take the same steps. A leaf that exchanges tokens itself combines
/// inside kDispatch, runs experts once for each of its batches, and is followed by kStartSet.
enum class RankStep : std::uint8_t {
  kStartWait,  // the slots are to stand still
  kRoute,      // experts and weights of the own tokens
  kDoneWait,   // the slots do
  kCount,      // the own choices by expert
  kPlace,      // choices become slots
  kShared,     // the shared expert
  kQuantise,   // rows as their sender's quantiser leaves them
  kDispatch,   // tokens go to their experts (dtp: to all ranks)
  kGather,     // all ranks' counts are in
  kExperts,    // with the quantisation of rows that travelled as they are
  kStartSet,   // no slot is read any more
  kCombine,    // shares come back and are summed; each sum is finished as it comes
  kDoneSet     // slots may change
};

/// "start_wait", "route" and so on.
std::string_view to_string(RankStep step);

/// Who is told of each step before it is taken, on the rank's own thread; for tests and traces.
struct StepListener {
  void* context = nullptr;
  void (*step)(void* context, RankStep step) = nullptr;
};

}  // namespace switchyard::layer
