// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/core/environment.h"
#include "switchyard/resolve/probe_cuda.h"
#include "switchyard/resolve/switches.h"

namespace switchyard::resolve {

/// Where the facts come from; a test replaces any of them. A source that throws counts as "absent"
/// and adds a warning.
struct MachineFacts {
  std::function<Variables()> variables;
  std::function<CpuIsa()> best_isa;
  std::function<std::int64_t()> memory_bytes;  // available now
  std::function<int()> num_cpus;               // that this process may use
  std::function<std::string()> cpu_model;      // as the system names it
  std::function<std::int64_t()> l3_bytes;      // of the last-level caches of those; 0: unknown
  std::function<GpuFacts()> gpus;
  std::vector<std::pair<std::string, std::function<bool()>>>
      deps;  // beside cuda, which `gpus` tells
};

/// The sources that read this machine; the only code that reads environment variables, instruction
/// sets, memory, processors or devices. Asks the kernel for the AMX tiles where the CPU has them.
MachineFacts this_machine();

/// Collects an environment from `facts`, without the cache. Hands each warning to the sink once per
/// process and keeps it in the environment.
/// Errors: UsageError for a switch with an illegal value, or a pinned CPU tier that is not there.
Environment collect(const MachineFacts& facts);

/// This machine's environment: the innermost override, else the cached one, probed on the first
/// call. Errors: those of collect(); a failed probe is not cached.
Environment environment();
/// Probes anew and replaces the cached environment; an override still wins in environment().
Environment probe_again();

/// Where this process stands among those that a launcher started together.
struct Launch {
  int rank = 0, processes = 1;
};

/// What the launcher said: Open MPI's and PMI's variables; one process alone without them.
Launch launched();
/// The processors that this process may use, by their numbers, ascending.
std::vector<int> usable_cpus();

/// Replaces environment() for a scope; scopes nest, the innermost wins, in every thread.
class ScopedEnvironment {
 public:
  /// Installs `env`.
  explicit ScopedEnvironment(Environment env);
  /// Restores what stood before.
  ~ScopedEnvironment();
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  std::optional<Environment> before_;
};

/// `env` as it would be with `count` GPUs of architecture `sm`, or as many as there are, and the
/// CUDA twins built; for planning. Errors: UsageError unless 50 <= sm <= 999.
Environment with_gpu(Environment env, int sm, int count = 1);

}  // namespace switchyard::resolve
