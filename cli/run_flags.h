// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/layer_flags.h"
#include "switchyard/api/judge.h"
#include "switchyard/core/deployment.h"

namespace switchyard::cli {

/// "uniform", "zipf" or "one". Errors: UsageError on any other word.
RoutingSkew to_skew(const std::string& word);
/// Inverse of to_skew().
std::string to_string(RoutingSkew skew);

/// How a layer is spread over ranks, and what happens between them.
struct SpreadFlags {
  RankFlags ranks;
  std::string placement, finalize = "plain";
  std::optional<CombinePrecision> combine;
  std::optional<std::int64_t> chunk_tokens;

  /// Declares the rank flags, --placement, --combine, --finalize and --chunk-tokens.
  void add(Arguments& args);
  /// Errors: UsageError for what contradicts itself.
  void check() const;
};

/// Which layers are run and how they are built: what `run` and `bench layer` have in common.
struct SourceFlags {
  BuildFlags build;
  SpreadFlags spread;
  std::string preset, checkpoint;
  std::optional<std::int64_t> layer;
  bool without_shared = false;

  /// Declares --preset, --checkpoint, --layer, --top-k, --factor, --without-shared and the flags of
  /// BuildFlags and SpreadFlags.
  void add(Arguments& args);
  /// Checks what contradicts itself, after parsing. Errors: UsageError.
  void finish();
  /// Writes the layers' source and build into `options`; its tokens and routing stay.
  void fill(RunOptions& options) const;
};

}  // namespace switchyard::cli
