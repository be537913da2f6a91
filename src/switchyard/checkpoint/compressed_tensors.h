// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/checkpoint/config.h"
#include "switchyard/checkpoint/quantization.h"

namespace switchyard::checkpoint {

/// Reads a compressed-tensors block: groups of targets with one scheme each, and an ignore list
/// that goes first.
class CompressedTensorsParser {
 public:
  /// Over the block; `config` must outlive the parser.
  explicit CompressedTensorsParser(const Config& config) : c_(config) {}

  /// Fills method, algorithm, exclusions and groups.
  /// Errors: UsageError naming group, field, value and what is served.
  Quantization run();

 private:
  const Config& c_;
};

}  // namespace switchyard::checkpoint
