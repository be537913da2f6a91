// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "switchyard/core/deployment.h"
#include "switchyard/core/environment.h"
#include "switchyard/core/sketch.h"

namespace switchyard {

/// This machine's facts and switches, collected once.
Environment environment();
/// The tier of the CPU twin that really runs under `env`: no higher than what this version has
/// built.
CpuIsa running_tier(const Environment& env);
/// Where warnings go; the default drops them (they stay in Environment::warnings).
void set_warning_sink(std::function<void(std::string_view)> sink);

/// What `explain` is asked.
struct ExplainOptions {
  std::string preset;  // one of preset, checkpoint or the sketch
  std::string checkpoint;
  std::optional<std::int64_t> layer;  // of the checkpoint; absent: every MoE layer
  ProblemSketch sketch;
  Deployment deployment;  // its env is this machine's unless sm is set
  std::optional<int> sm;
  bool device_pinned = false;
  std::string leaf, prefer;
  std::string comm;  // pins an exchange strategy, by our name or an ancestor's; "auto" pins nothing
};

/// An answer of `explain`: data, its text for a terminal, and whether anything can serve.
struct Explanation {
  bool served = false;
  std::string json;
  std::string text;
};

/// The canonical name of an exchange strategy; "auto" for none in particular.
/// Errors: UsageError for an unknown name, with the legal ones.
std::string to_strategy(std::string_view name);
/// The exchange strategy that is pinned: by the switch SWITCHYARD_COMM, else by `comm` unless that
/// is empty; "auto" for none.
/// Errors: UsageError for an unknown `comm`.
std::string pinned_strategy(const Environment& env, std::string_view comm);

/// The complete resolution report(s). A preset, a sketch and a single layer give one report as a
/// JSON object; a checkpoint without `layer` gives {"layers": [report, ...], "notices": [text,
/// ...]}. Each has "ok" beside the report's own keys. More than one rank, and a pinned strategy,
/// are answered under "strategies". Errors: UsageError, one line.
Explanation explain(const ExplainOptions& options);

/// What `doctor` prints: instruction sets, GPUs, dependencies, switches, which formats can run
/// here. Errors: UsageError for a switch with an illegal value.
Explanation doctor(std::optional<Device> device);

}  // namespace switchyard
