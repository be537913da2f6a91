// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/core/deployment.h"

namespace switchyard::cli {

/// Ranges that every command shares.
inline constexpr Range kTokens{0, 1 << 20}, kLayer{0, 1 << 20}, kThreads{1, 1024},
    kRanks{1, kMaxRanks}, kSeed{0, INT64_MAX};

/// How many ranks, and how they divide the work.
struct RankFlags {
  std::optional<std::int64_t> ranks, ep, tp, slots;
  std::optional<Parallel> parallel;
  std::string comm;

  /// Declares --ranks, --parallel, --ep, --tp, --slots and --comm.
  void add(Arguments& args);
  /// Several processes of a launcher are the ranks, where no flag counts them.
  void start_with(std::int64_t processes);
  /// The group sizes: --ranks alone means ep, under dtp and ttp tp.
  /// Errors: UsageError when --ranks contradicts --ep times --tp.
  Deployment deployment() const;
};

/// How the layers of `run` and `verify` are built, as far as both can say.
struct BuildFlags {
  BuildOptions build;
  std::string calibrate;  // a file with hidden_states

  /// Declares --device, --format, --activations, --calibrate, --tuning, --leaf, --prefer,
  /// --threads, --seed and --with-parallel-mlp.
  void add(Arguments& args);
  /// The options. A leaf that is pinned to a device by its name pins the device too, unless
  /// --device was given.
  BuildOptions options() const;
};

/// Adds one word of --formats to `formats`; "all" stands for every format.
/// Errors: UsageError for an unknown format, one named twice, and "all" beside others.
void take_format(const std::string& word, std::vector<std::string>& formats);

}  // namespace switchyard::cli
