// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "switchyard/base/device_memory.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"

namespace switchyard {

/// The router's steps on the GPU, from arguments whose pointers are the host's: one call per batch,
/// all batches in turn in one graph.
///
/// Errors:  DeviceError from every function.
class DeviceRouting {
 public:
  /// Calls of one timing.
  static constexpr int kCalls = 24;

  /// The router's GEMM. All batches have the same weight.
  explicit DeviceRouting(std::span<const ops::RouterGemmArgs> batches);
  /// The choice. All batches have the same tables.
  explicit DeviceRouting(std::span<const ops::RouteArgs> batches);

  /// Runs kCalls calls. Returns the time of one. Units: µs.
  double run();
  /// Copies each batch's logits to where its host arguments say.
  void fetch_logits(std::span<const ops::RouterGemmArgs> batches) const;
  /// Copies the first batch's ids and weights to where `host` says.
  void fetch_choice(const ops::RouteArgs& host) const;

 private:
  template <class T>
  T* upload(const T* host, std::int64_t count);
  template <class T>
  T* room(std::int64_t count);

  DeviceStream stream_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::vector<const DeviceMemory*> logits_, ids_, weights_;
  std::unique_ptr<DeviceGraph> graph_;
};

}  // namespace switchyard
