// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "switchyard/base/device.h"
#include "switchyard/core/environment.h"

namespace switchyard {

/// Attention DP or TP crossed with MoE EP or TP.
enum class Parallel : std::uint8_t { kDep, kDtp, kTep, kTtp };

/// "dep", "dtp", "tep" or "ttp".
std::string_view to_string(Parallel p);
/// Inverse of to_string(). Errors: UsageError on any other word.
Parallel to_parallel(std::string_view s);

/// Limits on group sizes and slots; past them check() refuses.
inline constexpr std::int64_t kMaxRanks = 4096, kMaxSlots = 65536;

/// Where a layer runs: sizes of the groups, slots, device, and the frozen environment.
struct Deployment {
  Device device = Device::kCpu;
  std::int64_t ep = 1;
  std::int64_t tp = 1;
  Parallel parallel = Parallel::kTtp;
  std::int64_t slots = 0;  // 0 means one per expert
  bool eplb = false;
  bool lora = false;  // routed-expert adapters are asked for
  bool finalize_fusion = true;
  bool fuse_shared = false;  // opt-in: shared experts as ids E .. E+n-1
  Environment env;

  std::int64_t ranks() const { return ep * tp; }
  bool operator==(const Deployment&) const = default;
  /// The slot count that serves E experts: `slots`, or E when it is 0.
  std::int64_t num_slots(std::int64_t num_experts) const { return slots > 0 ? slots : num_experts; }
  /// Whether attention runs data-parallel over more than one rank.
  bool attention_dp() const {
    return ranks() > 1 && (parallel == Parallel::kDep || parallel == Parallel::kDtp);
  }
  /// Checks group sizes and slots against their ranges.
  /// Errors: UsageError with field, value and limit.
  void check() const;
};

}  // namespace switchyard
