// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "switchyard/checkpoint/block_reader.h"
#include "switchyard/checkpoint/families.h"
#include "switchyard/checkpoint/quantization.h"
#include "switchyard/checkpoint/weight_source.h"

namespace switchyard::checkpoint {

/// What finding a block's experts depends on.
struct BlockContext {
  const Family& family;
  const Quantization& quantization;
  const Problem& problem;
  BlockReader& reader;
};

/// How the block spells its routed experts: one tensor per expert, or one for all.
struct ExpertSpelling {
  bool stacked = false;
  std::size_t alternative = 0;  // of gate, up and down
};

/// What is there decides; the family's own spelling when nothing is.
ExpertSpelling find_spelling(const Family& family, const BlockReader& reader,
                             std::int64_t num_experts);

/// The final scheme of the block's routed experts, from the declaration alone.
/// Errors: UsageError when its algorithm is not served.
Scheme routed_scheme(const Family& family, const Quantization& quantization,
                     const std::string& block, const ExpertSpelling& spelling);

/// All routed experts of the block, found and checked; empty after faults.
std::vector<ExpertSources> find_experts(const BlockContext& context, const ExpertSpelling& spelling,
                                        const Scheme& scheme);

/// The shared expert and its own scheme.
struct SharedSources {
  ExpertSources weights;
  Scheme scheme;
};

/// The block's shared expert; nothing after faults.
std::optional<SharedSources> find_shared(const BlockContext& context);

}  // namespace switchyard::checkpoint
