// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// Where routing leaves its choice.
///
/// Shapes:  ids, weights [tokens, width]: k columns of routing's, then the fused shared experts.
struct Routed {
  std::span<std::int32_t> ids;
  std::span<float> weights;
  std::int64_t width = 0;
  float factor = 1;  // what finalize still multiplies
};

/// The router alone: logits from `hidden` (any dtype, unrounded) unless given, then the choice.
///
/// Shapes:  as ForwardArgs; `logits_buffer` [tokens, E+Z] is used when args.logits is empty.
/// Errors:  UsageError when routing needs token ids and has none, or for ids out of range.
void route_tokens(const Layer& layer, const ForwardArgs& args, Dtype hidden_dtype,
                  std::span<float> logits_buffer, Routed& routed);

/// The fused shared experts: ids E .. E + n - 1 with weight 1 behind every token's choices.
void append_shared(const Layer& layer, const ForwardArgs& args, Routed& routed);
/// The caller's ids and weights instead.
void take_caller_routing(const Layer& layer, const ForwardArgs& args, Routed& routed);
/// Checks what the call says about its routing.
/// Errors:  UsageError for contradictory fields, and for an id outside -1 .. E + Z - 1.
void check_routing_args(const Layer& layer, const ForwardArgs& args);
/// Hands out what the caller asked to see of the routing.
void report_routing(const Layer& layer, const ForwardArgs& args, const Routed& routed);

}  // namespace switchyard::layer
