// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/device.h"

/// What a layer on the device does with ids and weights beside routing. All arrays are device
/// memory. Errors: DeviceError when the launch fails or the build has no CUDA.
namespace switchyard::ops {

/// Ids and weights of a call as the experts read them.
///
/// Shapes:  ids, weights [tokens, width], of which the first top_k columns are routing's and the
///          rest belongs to fused shared experts: ids experts .. with weight 1.
struct DeviceChoices {
  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t width = 0;
  std::int64_t experts = 0;
  std::int64_t zero_experts = 0;
  std::int32_t* ids = nullptr;
  float* weights = nullptr;
};

/// Fills the columns of the fused shared experts; when `given_ids` is set, [tokens, top_k] dense,
/// copies the caller's choices in front of them. An id outside the experts becomes -1.
void fill_choices_cuda(const DeviceChoices& choices, const std::int32_t* given_ids,
                       const float* given_weights, Stream stream);

/// A layer's choices by the numbers of the experts that one rank holds.
///
/// Shapes:  ids, weights, local_ids, local_weights [count]; table [size]: the rank's number of each
///          id, or -1. An id outside the table counts as -1; where the local id is -1 the local
///          weight is 0.
struct DeviceLocal {
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  std::int64_t count = 0;
  const std::int32_t* table = nullptr;
  std::int64_t size = 0;
  std::int32_t* local_ids = nullptr;
  float* local_weights = nullptr;
};
/// Enqueues the look-up.
void localise_cuda(const DeviceLocal& args, Stream stream);

/// What a caller asked to see of the routing; null fields are not written.
///
/// Shapes:  ids, weights [tokens, top_k]; counts [experts + zero_experts], added to; row_weights,
///          row_index [tokens, top_k] of an unfinalised output: the weights still to be applied (1
///          for an expert when the weight is on the input), and the row or -1.
struct RoutingReport {
  std::int32_t* ids = nullptr;
  float* weights = nullptr;
  std::int64_t* counts = nullptr;
  float* row_weights = nullptr;
  std::int32_t* row_index = nullptr;
  bool weight_on_input = false;
};
/// Enqueues the report.
void report_routing_cuda(const DeviceChoices& choices, const RoutingReport& report, Stream stream);

}  // namespace switchyard::ops
