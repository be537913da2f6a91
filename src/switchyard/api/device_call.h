// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "switchyard/api/moe_layer.h"
#include "switchyard/base/device_memory.h"
#include "switchyard/base/device_stream.h"

namespace switchyard {

/// A call's buffers on the GPU, and graphs of several calls in a row, each with logits of its own
/// and on the next of several equal layers, so that it finds other experts than those that the
/// calls in front of it left in the caches.
///
/// Errors:  DeviceError from every function.
class DeviceCall {
 public:
  /// `hidden` [tokens, H] in the layers' dtype. The layers must outlive this.
  DeviceCall(std::span<const MoeLayer> layers, std::int64_t tokens,
             std::span<const std::byte> hidden);

  /// Calls of one timing: fewer where a call is long, and one for each layer at least.
  std::int64_t calls() const { return calls_; }
  /// Sets the inputs of call `i` of calls().
  ///
  /// Shapes:  logits [tokens, E+Z]; token_ids [tokens].
  void set(std::int64_t i, const std::vector<float>& logits,
           const std::vector<std::int64_t>& token_ids);
  /// Runs all calls from one graph, wait-free between them. Returns the time of one. Units: µs.
  double forward();
  /// The same with the tape's tactics, from a graph of its own.
  double forward(tune::Tape& tape);
  /// The same, launched one by one.
  double eager();
  /// The first call as often from one graph: its weights stay in the caches where they fit.
  double warm();
  /// The router alone, its GEMM and the choice, as forward().
  double route();
  /// Runs call `i` once more, outside the graphs, and fetches its output and ids.
  void fetch(std::int64_t i, std::span<std::byte> out, std::span<std::int32_t> ids);

 private:
  ForwardArgs args(std::int64_t i);
  const MoeLayer& layer_of(std::int64_t i) const {
    return layers_[std::size_t(i) % layers_.size()];
  }
  void enqueue(tune::Tape* tape);

  std::span<const MoeLayer> layers_;
  std::int64_t tokens_, experts_, calls_;
  DeviceStream stream_;
  DeviceMemory hidden_, logits_, token_ids_, ids_, out_, workspace_;
  std::optional<DeviceGraph> forwards_, warm_, routes_;
  std::map<const tune::Tape*, DeviceGraph> replays_;
};

}  // namespace switchyard
