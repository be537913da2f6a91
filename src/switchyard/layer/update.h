// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/layer/expert_part.h"
#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// New weights for one expert of a bank.
struct Replacement {
  std::int64_t id = 0;                       // of the layer
  std::int64_t slot = 0;                     // of the bank
  const checkpoint::ExpertWeights& weights;  // whole
  ExpertPart part;                           // what the bank holds of it
};

/// Packs `r` for slot r.slot of `bank` beside the bank, on the device where the bank lies there.
/// Errors:  UsageError naming expert, value and limit for weights that do not fit the bank;
///          DeviceError when the device refuses.
PackedExpert pack_replacement(const ExpertBank& bank, const leaves::Leaf& leaf,
                              const Replacement& r);

}  // namespace switchyard::layer
