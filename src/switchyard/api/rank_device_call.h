// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "switchyard/api/behind_tensors.h"
#include "switchyard/base/device_memory.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/layer/rank_layer.h"

namespace switchyard {

/// One rank's buffers of a call on its GPU, and a graph of several calls in a row, each with logits
/// of its own. Every function is collective but calls(), set() and route(), and meets around what
/// frees memory, so that ranks may share a GPU.
///
/// Errors:  those of RankLayer::forward() and wait().
class RankDeviceCall {
 public:
  /// What it is made of.
  struct Args {
    std::int64_t tokens = 0;
    std::span<const std::byte> hidden;  // [tokens, H] in the layer's dtype
    BehindTensors* behind = nullptr;    // of a layer that has something behind it
    Trace* trace = nullptr;             // written with what runs
  };
  /// The layer and what `args` points to must outlive this.
  RankDeviceCall(layer::RankLayer& layer, const Args& args);
  ~RankDeviceCall();
  RankDeviceCall(const RankDeviceCall&) = delete;
  RankDeviceCall& operator=(const RankDeviceCall&) = delete;

  /// Calls of one timing: fewer where a call is long.
  std::int64_t calls() const { return calls_; }
  /// Sets the inputs of call `i` of calls().
  ///
  /// Shapes:  logits [tokens, E+Z]; token_ids [tokens].
  void set(std::int64_t i, const std::vector<float>& logits,
           const std::vector<std::int64_t>& token_ids);
  /// Runs all calls from one graph, behind a call of its own, so that no rank's clock runs while
  /// the others are on the way. Returns the time of one. Units: µs.
  double forward();
  /// The router alone, its GEMM and the choice, from a graph. Units: µs.
  double route();
  /// Runs the first call once more, with nothing behind it, and fetches its output and ids.
  void fetch(std::span<std::byte> out, std::span<std::int32_t> ids);
  /// The same with what stands behind it, whose outputs come back into the tensors.
  void fetch_behind();

 private:
  struct Behind;
  ForwardArgs args(std::int64_t i);
  void enqueue(std::int64_t i);
  void end();

  layer::RankLayer& layer_;
  Args args_;
  std::int64_t experts_, calls_;
  DeviceStream stream_;
  DeviceMemory hidden_, logits_, token_ids_, ids_, out_, workspace_;
  std::unique_ptr<Behind> behind_;
  std::optional<DeviceGraph> forwards_, routes_;
};

}  // namespace switchyard
