// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "switchyard/api/moe_layer.h"
#include "switchyard/base/device_memory.h"
#include "switchyard/base/device_stream.h"

namespace switchyard {

/// A call's buffers on the GPU, and a graph of several calls in a row with logits of their own, so
/// that each finds other experts than the one in front of it left in the caches.
///
/// Errors:  DeviceError from every function.
class DeviceCall {
 public:
  /// `hidden` [tokens, H] in the layer's dtype. The layer must outlive this.
  DeviceCall(const MoeLayer& layer, std::int64_t tokens, std::span<const std::byte> hidden);

  /// Calls of one timing: fewer where a call is long.
  std::int64_t calls() const { return calls_; }
  /// Sets the inputs of call `i` of calls().
  ///
  /// Shapes:  logits [tokens, E+Z]; token_ids [tokens].
  void set(std::int64_t i, const std::vector<float>& logits,
           const std::vector<std::int64_t>& token_ids);
  /// Runs all calls from one graph, wait-free between them. Returns the time of one. Units: µs.
  double forward();
  /// The same for the router alone.
  double route();
  /// Runs the first call once more, outside the graph, and fetches its output and ids.
  void fetch(std::span<std::byte> out, std::span<std::int32_t> ids);

 private:
  ForwardArgs args(std::int64_t i);

  const MoeLayer& layer_;
  std::int64_t tokens_, experts_, calls_;
  DeviceStream stream_;
  DeviceMemory hidden_, logits_, token_ids_, ids_, out_, workspace_;
  std::optional<DeviceGraph> forwards_, routes_;
};

}  // namespace switchyard
