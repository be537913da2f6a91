// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/device.h"
#include "switchyard/base/span2d.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/core/routing.h"
#include "switchyard/ops/route/router_choice.h"

namespace switchyard::ops {

/// Router logits in, expert ids and routing weights out, in choice order (best first).
///
/// Shapes:  logits [T, E+Z] with its own stride; choice_bias [E+Z], per_expert_scale [E] and
///          hash_table [vocab, k] where the spec asks for them, else null; token_ids [T], read by
///          hash routing only; ids and weights [T, k]. T may be 0.
/// Units:   float; weights without routed_scaling_factor.
struct RouteArgs {
  Span2d<const float> logits;
  const RoutingSpec* spec = nullptr;
  const float* choice_bias = nullptr;
  const float* per_expert_scale = nullptr;
  const std::int32_t* hash_table = nullptr;
  std::int64_t vocab = 0;
  const std::int64_t* token_ids = nullptr;
  Span2d<std::int32_t> ids;
  Span2d<float> weights;

  /// Checks the spec, shapes, pointers and every token id and table row that the call will read.
  /// Errors: UsageError with row, value and limit.
  void check() const;
  /// check() without the token ids and table rows, which it cannot read in device memory.
  void check_shapes() const;
};

/// CPU twin over rows [row_begin, row_end); the caller checks once and shares rows among threads.
///
/// Always k distinct ids: NaN and -inf never win, +inf counts as the largest finite number, a row
/// with fewer than k valid choices fills up with the lowest unused ids at weight 0.
/// Errors:  never throws, never allocates.
void route_cpu(const RouteArgs& args, std::int64_t row_begin, std::int64_t row_end);

/// All rows, shared among the threads.
///
/// Errors:  UsageError from check(); allocates nothing.
void route_cpu(const RouteArgs& args, ThreadPool& pool);

/// CUDA twin, enqueued on `stream`: from the same logits the ids and the bits of the CPU twin. A
/// token id outside the table, or an id outside the experts in it, gives id -1 at weight 0. Which
/// router runs changes no bit.
///
/// Shapes:  as RouteArgs, in device memory; the spec itself in host memory.
/// Errors:  UsageError from check_shapes(); DeviceError when the launch fails or the build has no
///          CUDA.
void route_cuda(const RouteArgs& args, Stream stream, RouterWish wish = RouterWish::kOwn);

/// The oracle: plain loops in double, weights rounded once to float.
///
/// Errors:  UsageError from check().
void route_ref(const RouteArgs& args);

/// Writes per row the smallest difference of choice scores (and of group scores) that decided an
/// id or its place, in double; infinite where nothing was close, 0 for a tie. Ids of two twins are
/// comparable where it exceeds their rounding.
///
/// Shapes:  gaps [T].
/// Errors:  UsageError from check().
void route_gaps(const RouteArgs& args, double* gaps);

}  // namespace switchyard::ops
