// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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
  /// The group sizes: --ranks alone means ep.
  /// Errors: UsageError when --ranks contradicts --ep times --tp.
  Deployment deployment() const;
};

/// Declares the flags that say how a layer of `run` and `verify` is built, and keeps them in `out`.
void add_build_flags(Arguments& args, BuildOptions& out);

/// Declares --calibrate; the file is read by calibration_of().
void add_calibrate_flag(Arguments& args, std::string& path);

/// Runs `work`, whose layers are to run on `device`. A verdict that nothing can serve becomes the
/// missing GPU when that is what it comes from. Errors: NoDevice, and those of `work`.
void with_device(Device device, const std::function<void()>& work);

/// A GPU or a peer that the caller asked for is not there.
class NoDevice : public Error {
 public:
  using Error::Error;
};

}  // namespace switchyard::cli
