// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "switchyard/base/check.h"

namespace switchyard {

/// Why a leaf or a strategy cannot serve; a closed set. Tests compare these, never message text.
enum class Reject : std::uint8_t {
  kQuantUnsupported,        // the format is not the leaf's
  kDtypeUnsupported,        // dtype of the hidden states, or activations = f32
  kSmUnsupported,           // no GPU, or one of another architecture
  kDepMissing,              // a library is not built in
  kShapeUnaligned,          // a width that the format cannot store
  kSlotsNotDivisibleByEp,   // replicated slots are laid out evenly
  kTopologyUnsupported,     // the device, or a combination of group sizes
  kLoraUnsupported,         // adapters on routed experts
  kActivationUnsupported,   // the activation's kind or constants, or expert biases
  kRoutingUnsupported,      // the routing recipe
  kEplbUnsupported,         // the slots cannot hold the experts, or cannot be replicated
  kFinalizeFusionRequired,  // only a fused finalize could serve, and it is off
  kPathNotEnabled,          // could serve, but is not built in this version
  kBackendDeprecated,       // a retired backend word
  kNotAnImpl                // the oracle, asked to stand in for a leaf
};

/// The reason's stable code, e.g. "quant_unsupported".
std::string_view to_string(Reject r);
/// Inverse of to_string(). Errors: UsageError on any other word.
Reject to_reject(std::string_view s);

/// A gate's only answer: yes, or no with one closed reason and a sentence with value and limit.
class Eligibility {
 public:
  /// The yes.
  static Eligibility yes() { return {}; }
  /// A no. Errors: InternalError when `detail` is empty.
  static Eligibility no(Reject reason, std::string detail) {
    ensure(!detail.empty(), "a rejection needs a detail text");
    Eligibility e;
    e.eligible_ = false;
    e.reason_ = reason;
    e.detail_ = std::move(detail);
    return e;
  }

  /// Whether the asked one can serve.
  bool eligible() const { return eligible_; }
  /// The closed reason. Errors: InternalError when eligible.
  Reject reason() const {
    ensure(!eligible_, "an eligible verdict has no reason");
    return reason_;
  }
  /// The failing value and the limit; empty when eligible.
  const std::string& detail() const { return detail_; }

 private:
  bool eligible_ = true;
  Reject reason_{};
  std::string detail_;
};

/// The first no among `verdicts`, in order; yes when there is none.
inline Eligibility first_reject(std::initializer_list<Eligibility> verdicts) {
  for (const Eligibility& v : verdicts)
    if (!v.eligible()) return v;
  return Eligibility::yes();
}

}  // namespace switchyard
