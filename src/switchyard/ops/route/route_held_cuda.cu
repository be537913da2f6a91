// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/base/cuda_launch.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/ops/route/route_held_cuda.h"
#include "switchyard/ops/route/route_held_sm90.h"

namespace switchyard::ops {
namespace {

/// Warps that score a token's ids, 32 each.
constexpr int warps_of(RouterKind kind, int held) { return held::scores_first(kind) ? held : 1; }

/// One token a block; the first warp chooses.
template <RouterKind kind, int kHeld>
__global__ void __launch_bounds__(32 * warps_of(kind, kHeld))
    route_held_kernel(const __grid_constant__ sm90::HeldRoute r) {
  constexpr bool kScores = held::scores_first(kind);
  __shared__ float memory[kScores ? sm90::score_floats(kHeld) : 1];
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const std::int64_t t = blockIdx.x;
  if constexpr (kScores) {
    const int first = int(threadIdx.x / 32) * 32;
    if (first < r.spec.num_ids)
      held::score_ids<kind, sm90::WarpLanes>(r.spec, r.logits.row(t), r.bias, first,
                                             sm90::scores_at(memory, kHeld));
    __syncthreads();
    if (threadIdx.x >= 32) return;
  }
  const auto [id, weight] = sm90::route_token<kind, kHeld>(r, t, memory);
  const int lane = int(threadIdx.x);
  if (lane >= r.spec.top_k) return;
  r.ids.row(t)[lane] = id;
  r.weights.row(t)[lane] = weight;
}

template <RouterKind kind>
void launch(const RouteArgs& args, int held, Stream stream) {
  sm90::with_held<kind>(held, [&]<int kHeld>() {
    launch_overlapped(
        "compiled route: launch", route_held_kernel<kind, kHeld>,
        {.blocks = unsigned(args.logits.rows), .threads = unsigned(32 * warps_of(kind, kHeld))},
        stream, sm90::HeldRoute::of(args));
  });
}

}  // namespace

void route_held_cuda(const RouteArgs& args, const RouterChoice& router, Stream stream) {
  switch (router.kind) {
    case RouterKind::kSoftmaxOverChosen:
      return launch<RouterKind::kSoftmaxOverChosen>(args, router.held, stream);
    case RouterKind::kSoftmax:
      return launch<RouterKind::kSoftmax>(args, router.held, stream);
    case RouterKind::kSigmoid:
      return launch<RouterKind::kSigmoid>(args, router.held, stream);
    case RouterKind::kSigmoidGroups:
      return launch<RouterKind::kSigmoidGroups>(args, router.held, stream);
    case RouterKind::kGeneral:
      break;
  }
  ensure(false, "compiled route: router ", to_string(router.kind), " is none");
}

}  // namespace switchyard::ops
