// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "switchyard/api/call_inputs.h"
#include "switchyard/api/device_call.h"
#include "switchyard/api/judge.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/base/host_buffer.h"
#include "switchyard/layer/judge.h"

namespace switchyard {

/// Most tokens of a call that are judged.
inline constexpr std::int64_t kCheckedTokens = 8;

/// Work of one call by the counting rule of all our figures: 2 (2 or 3) H I k T, the routed experts
/// alone.
double layer_flops(const Problem& problem, std::int64_t tokens);

/// One layer with the buffers of a call and seeded traffic; forward() is what gets timed. On cuda
/// it is the device's time for one of several calls in a graph, each with logits of its own.
class LayerCall {
 public:
  /// The layer must outlive this. Errors: UsageError for more tokens than a call may have.
  LayerCall(const MoeLayer& layer, const Traffic& traffic);

  /// The next calls run this layer: a copy of the first one, which must outlive this too.
  void use(const MoeLayer& layer) { layer_ = &layer; }
  /// Fills in call number `call`: its own logits and token ids; the output is poisoned.
  void prepare(std::int64_t call);
  /// Runs the layer from the prepared logits. Units: µs.
  double forward();
  /// Runs the router alone, its GEMM and the choice, from the hidden states. Units: µs.
  double route();
  /// Routed experts that the last forward touched.
  std::int64_t distinct_experts() const;
  /// Judges up to 8 tokens spread over the batch of the last forward; `same_bits` tells whether
  /// each has alone the bits that it has in the batch.
  layer::Judgement check(std::int64_t& checked, bool& same_bits) const;

 private:
  const MoeLayer* layer_;
  CallInputs inputs_;
  HostBuffer workspace_;
  std::unique_ptr<DeviceCall> device_;  // null on the CPU
};

}  // namespace switchyard
