// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

/// CPU instruction tiers in ascending order; a twin runs the best one that it has and the pin
/// allows. kZen4 is AVX-512 where a bf16 pair product issues as often as a byte product: the same
/// instructions, another choice among them.
enum class CpuIsa : std::uint8_t { kPortable, kAvx2, kAvx512, kZen4, kAmx };

/// "portable", "avx2", "avx512", "zen4" or "amx".
std::string_view to_string(CpuIsa isa);
/// Inverse of to_string(). Errors: UsageError on any other word.
CpuIsa to_cpu_isa(std::string_view s);

/// Every fact about the machine and its switches, collected once and frozen; gates read only this.
struct Environment {
  int sm = 0;  // GPU architecture, e.g. 90; 0 when there is no GPU
  int num_gpus = 0;
  CpuIsa isa = CpuIsa::kPortable;       // the tier that will run: pinned, else any but amx
  CpuIsa best_isa = CpuIsa::kPortable;  // the tier that the machine has; not in the fingerprint
  std::int64_t memory_bytes = 0;        // available when probed; not in the fingerprint
  int num_cpus = 1;                     // not in the fingerprint
  std::string cpu_model;                // as the system names it; not in the fingerprint
  std::int64_t l3_bytes = 0;            // 0 when unknown; not in the fingerprint
  std::vector<std::string> deps;        // sorted names of the dependencies present
  std::vector<std::pair<std::string, std::string>> flags;  // honoured switches, sorted, defaults in
  std::vector<std::pair<std::string, std::string>> local_flags;  // those that may differ by rank
  std::vector<std::string> warnings;  // one per retired or misspelt switch; not in the fingerprint
  std::string build;                  // version and commit of the library

  bool operator==(const Environment&) const = default;
  /// True when dependency `name` was found.
  bool has_dep(std::string_view name) const;
  /// Value of an honoured switch, among both kinds of flags; empty when it is not one.
  std::string_view flag(std::string_view name) const;
  /// The first 16 hex digits of SHA-256 over a versioned, sorted, length-prefixed encoding of
  /// build, sm, num_gpus, isa, deps and flags; equal on ranks that may work together.
  std::string fingerprint() const;
};

}  // namespace switchyard
