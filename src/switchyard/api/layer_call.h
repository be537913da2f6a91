// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "switchyard/api/call_inputs.h"
#include "switchyard/api/device_call.h"
#include "switchyard/api/judge.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/base/host_buffer.h"
#include "switchyard/layer/judge.h"
#include "switchyard/tune/tape.h"

namespace switchyard {

/// Most tokens of a call that are judged.
inline constexpr std::int64_t kCheckedTokens = 8;

/// Work of one call by the counting rule of all our figures: 2 (2 or 3) H I k T, the routed experts
/// alone.
double layer_flops(const Problem& problem, std::int64_t tokens);

/// Equal layers with the buffers of a call and seeded traffic; forward() is what gets timed. On
/// cuda it is the device's time for one of several calls in a graph, each with logits of its own
/// and on the next layer.
class LayerCall {
 public:
  /// The layers must outlive this. Errors: UsageError for more tokens than a call may have.
  LayerCall(std::span<const MoeLayer> layers, const Traffic& traffic);

  /// On the CPU the next calls run layer `i`, taken modulo their number; at first it is 0.
  void use(std::int64_t i) { layer_ = &layers_[std::size_t(i) % layers_.size()]; }
  /// Fills in call number `call`: its own logits and token ids; the output is poisoned.
  void prepare(std::int64_t call);
  /// Runs the layer from the prepared logits. Units: µs.
  double forward();
  /// The same with the tape's tactics; on cuda from a graph of the tape's own, which is kept as
  /// long as this. Units: µs.
  double forward(tune::Tape& tape);
  /// Runs the same calls launched one by one; on cuda only. Units: µs.
  double eager();
  /// Runs the first call as often as a timing has calls; on cuda only. Units: µs.
  double warm();
  /// Fetches what the first of the prepared calls gives, and counts the experts of all; on the CPU
  /// forward() has done so.
  void settle();
  /// Runs the router alone, its GEMM and the choice, from the hidden states. Units: µs.
  double route();
  /// Routed experts that the last forward touched; on cuda the mean of its calls, rounded.
  std::int64_t distinct_experts() const;
  /// Judges up to 8 tokens spread over the batch of the last forward; `same_bits` tells whether
  /// each has alone the bits that it has in the batch.
  layer::Judgement check(std::int64_t& checked, bool& same_bits) const;

 private:
  double timed_forward(tune::Tape* tape);
  std::int64_t count_distinct() const;

  std::span<const MoeLayer> layers_;
  const MoeLayer* layer_;
  CallInputs inputs_;
  HostBuffer workspace_;
  std::unique_ptr<DeviceCall> device_;  // null on the CPU
  std::int64_t distinct_ = 0;           // on cuda
};

}  // namespace switchyard
