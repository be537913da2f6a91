// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace switchyard::fuzz {

/// One reader of files that may come from anywhere.
struct Target {
  std::string_view name;  // its folder below tests/fuzz/corpus
  /// Reads `input` as the reader's file and uses all that it returns. Errors: UsageError only.
  void (*run)(std::string_view input) = nullptr;
};

/// All targets. One more is a file here, a line in targets.cc and one in CMakeLists.txt.
std::span<const Target* const> targets();
/// The target `name`; throws std::invalid_argument for an unknown one.
const Target& find_target(std::string_view name);

/// What a target did with an input; `fault` is empty when that was in order.
struct Outcome {
  bool accepted = false;
  std::string message;  // of the UsageError
  std::string fault;
};

/// Runs `target`: only a UsageError of one short line may leave it, and it may hold no more heap
/// than a constant plus a multiple of the input. A crash or hang is the caller's to see.
Outcome run_target(const Target& target, std::string_view input);

/// Throws std::logic_error, which no reader may let out, when a promise of the reader is broken.
void promise(bool kept, const char* what);

extern const Target kSafetensors, kIndex, kConfig, kCheckpoint, kLoads, kPlacement;

}  // namespace switchyard::fuzz
