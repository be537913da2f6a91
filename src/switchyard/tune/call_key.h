// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "switchyard/leaves/leaf.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"

namespace switchyard::tune {

/// What a choice of tactic is for: all that a leaf's candidates and their times depend on, apart
/// from the machine.
///
/// Units:   widths in elements; experts as packed on this rank; tokens is a bucket.
struct CallKey {
  std::string leaf;  // identity
  std::int64_t hidden = 0, inter = 0, experts = 0, top_k = 0;
  bool gated = true, bias = false, weight_on_input = false;
  std::string weights, quant, dtype;
  std::int64_t tokens = 0;
  std::int64_t threads = 0;  // of a CPU; 0 on cuda

  bool operator==(const CallKey&) const = default;
  /// Calls visit(name, member pointer) for each field, in the order in which they are written.
  template <class Visit>
  static void each(Visit&& visit) {
    visit("leaf", &CallKey::leaf);
    visit("hidden", &CallKey::hidden);
    visit("inter", &CallKey::inter);
    visit("experts", &CallKey::experts);
    visit("top_k", &CallKey::top_k);
    visit("gated", &CallKey::gated);
    visit("bias", &CallKey::bias);
    visit("weight_on_input", &CallKey::weight_on_input);
    visit("weights", &CallKey::weights);
    visit("quant", &CallKey::quant);
    visit("dtype", &CallKey::dtype);
    visit("tokens", &CallKey::tokens);
    visit("threads", &CallKey::threads);
  }
};

/// The key of a call that `leaf` runs.
CallKey key_of(const leaves::Leaf& leaf, const ops::FfnCall& call);
/// The key as an error line and a table show it.
std::string to_string(const CallKey& key);

}  // namespace switchyard::tune
