// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/api/judge.h"

namespace switchyard {

/// The MoE layers that a command works on: the asked one, or every present one that is no
/// multi-token-prediction layer.
/// Errors:  UsageError for an index that is no MoE layer or is declared without tensors.
std::vector<LayerEntry> chosen_layers(const Checkpoint& checkpoint,
                                      std::optional<std::int64_t> layer);

/// What a failed judgement that overflows is told as: no fault of the implementation.
std::string overflow_text();

/// Seeded N(0, 1) tokens, exact in bf16. Errors: UsageError for more than the host's memory holds.
///
/// Shapes:  [tokens, hidden].
std::vector<float> random_tokens(std::int64_t tokens, std::int64_t hidden, std::uint64_t seed);

}  // namespace switchyard
