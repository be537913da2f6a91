// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace switchyard::eplb {

/// Where one layer's forward stands with its balancing.
enum class Phase : std::uint8_t {
  kIdle,      // between forwards: slots may change
  kWaiting,   // the forward has asked for its slots
  kRouting,   // slots stand still; choices are counted and sent to slots
  kCounted,   // all ranks' counts of this forward are in; choices may still be sent to slots
  kReleasing  // the experts have run
};

/// "idle", "waiting" and so on.
std::string_view to_string(Phase phase);

/// The one legal order of a layer's balancing hooks in a forward:
///
///   start_wait -> done_wait -> count* -> gathered? -> route* -> start_set -> done_set
///
/// Counts come before the first choice that is sent to a slot, gathering once at most and after the
/// counts. A hook out of order throws InternalError that names it, the phase and the order; the
/// state is then unchanged. A forward that fails calls reset().
class Cycle {
 public:
  /// The forward wants its slots to stand still.
  void start_wait() { step("start_wait", Phase::kIdle, Phase::kWaiting); }
  /// They do.
  void done_wait() { step("done_wait", Phase::kWaiting, Phase::kRouting); }
  /// This rank's choices are counted; once for each chunk.
  void count();
  /// The counts of all ranks are in.
  void gathered();
  /// Choices become slots; once for each chunk.
  void route();
  /// The experts have run: this forward reads no slot any more.
  void start_set();
  /// Slots may change again.
  void done_set() { step("done_set", Phase::kReleasing, Phase::kIdle); }
  /// Forgets a forward that did not end.
  void reset() { *this = {}; }

  /// Where the forward stands.
  Phase phase() const { return phase_; }
  /// Throws unless slots may change. Errors: InternalError naming `what`.
  void check_idle(std::string_view what) const;

 private:
  void step(std::string_view hook, Phase from, Phase to);
  [[noreturn]] void refuse(std::string_view hook) const;

  Phase phase_ = Phase::kIdle;
  std::int32_t counts_ = 0, routes_ = 0;
};

}  // namespace switchyard::eplb
