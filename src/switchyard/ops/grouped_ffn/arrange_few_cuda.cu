// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/base/cuda_launch.h"
#include "switchyard/core/routing.h"
#include "switchyard/ops/grouped_ffn/arrange_few_sm90.h"
#include "switchyard/ops/grouped_ffn/arrange_rows_sm90.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/ops/route/route_held_sm90.h"

namespace switchyard::ops {
namespace {

using namespace sm90::few;
using sm90::HeldRoute;
using sm90::lane_of;

constexpr int kThreads = 256, kWarps = kThreads / 32;
static_assert(kMostJoinedTokens <= kWarps, "a warp routes a token");

/// What the launch's parameters are.
struct FewCall {
  DeviceSort sort;
  DeviceGather gather;
  HeldRoute route;
  int groups;  // of eight columns in whole tiles, one a thread

  __host__ __device__ int parts() const { return (groups + kThreads - 1) / kThreads; }
};

/// Scores every token's ids, 32 a warp; by the whole block.
template <RouterKind kind, int kHeld>
__device__ void score_tokens(const HeldRoute& r, int tokens, float* scores) {
  const int pieces = (r.spec.num_ids + 31) / 32;
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < tokens * pieces; i += kWarps) {
    const int t = i / pieces;
    held::score_ids<kind, sm90::WarpLanes>(
        r.spec, r.logits.row(t), r.bias, i % pieces * 32,
        sm90::scores_at(scores + t * sm90::score_floats(kHeld), kHeld));
  }
}

/// What a block has found out of its token and of all of them.
struct Board {
  Chosen chosen;
  std::int32_t ids[kMaxTopK];  // of the block's token
};

/// A warp takes the choices of its token from its router; the first block of a token writes what
/// the router made for the launches behind.
template <RouterKind kind, int kHeld>
__device__ void choose(const FewCall& call, int token, bool first, float* scores, Board& board) {
  const DeviceSort& a = call.sort;
  const int t = int(threadIdx.x / 32), lane = lane_of(), top_k = int(a.top_k);
  if (t >= int(a.tokens)) return;
  const auto [id, weight] =
      sm90::route_token<kind, kHeld>(call.route, t, scores + t * sm90::score_floats(kHeld));
  if (lane >= top_k) return;
  if (first && t == token) {
    call.route.ids.row(t)[lane] = id;
    call.route.weights.row(t)[lane] = weight;
  }
  if (id >= 0 && id < a.experts) board.chosen.add(t, id);
  if (t == token) board.ids[lane] = id;
}

/// One token, or some of its columns, eight a thread. Each block routes all tokens and finds its
/// rows for itself: none waits for another, and the order is the stable one.
template <RouterKind kind, int kHeld, formats::ActivationQuant quant>
__global__ void __launch_bounds__(kThreads)
    arrange_few_kernel(const __grid_constant__ FewCall call) {
  extern __shared__ float scores[];
  __shared__ Board board;
  const DeviceSort& a = call.sort;
  const DeviceGather& g = call.gather;
  board.chosen.clear();
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const int parts = call.parts(), tokens = int(a.tokens), top_k = int(a.top_k);
  const int token = int(blockIdx.x) / parts, part = int(blockIdx.x) % parts;
  const std::int64_t group = std::int64_t(part) * kThreads + threadIdx.x;
  const uint4 raw = load_columns(g, token, group);  // on its way while the token is routed
#pragma unroll 1
  for (std::int64_t i = blockIdx.x * std::int64_t(kThreads) + threadIdx.x; i < a.num_arrivals;
       i += std::int64_t(gridDim.x) * kThreads)
    a.arrivals[i] = 0;
  float amax = 0;
  if constexpr (quant == formats::ActivationQuant::kFp8Token)
    amax = sm90::amax_of_block(sm90::TokenColumns<quant>(g, token).amax());
  if constexpr (held::scores_first(kind)) score_tokens<kind, kHeld>(call.route, tokens, scores);
  __syncthreads();  // scores, and bits that are clear
  choose<kind, kHeld>(call, token, part == 0, scores, board);
  const Columns columns = quantise<quant>(g, raw, amax);  // warps without a token: meanwhile
  __syncthreads();
  const Places places(board.chosen, tokens);
  const int id = lane_of() < top_k ? board.ids[lane_of()] : -1;
  const int row = sorted_row(board.chosen, places, token, id, a.experts);
  if (part == 0 && int(threadIdx.x) < top_k) {
    const std::int64_t choice = std::int64_t(token) * top_k + threadIdx.x;
    a.sorted_of[choice] = row;
    if (row >= 0) a.source[row] = std::int32_t(choice);
  }
  store_columns<quant>(g, group, columns, {row, top_k, call.groups});
  if (blockIdx.x == gridDim.x - 1) write_table(a, board.chosen, places);
}

int groups_of(const DeviceGather& g) {
  const std::int64_t cols = g.out.tiles.tile_cols();
  return int((g.hidden + cols - 1) / cols * (cols / 8));
}

template <RouterKind kind, int kHeld, formats::ActivationQuant quant>
void launch(const FewCall& call, Stream stream) {
  static_assert(4 * kMostJoinedTokens * sm90::score_floats(kMostHeld) + sizeof(Board) <= 48 * 1024,
                "shared memory that a launch has without asking");
  const std::int64_t scores =
      held::scores_first(kind) ? call.sort.tokens * sm90::score_floats(kHeld) : 0;
  launch_overlapped("routing and arranging: launch", arrange_few_kernel<kind, kHeld, quant>,
                    {.blocks = unsigned(call.sort.tokens * call.parts()),
                     .threads = kThreads,
                     .shared_bytes = std::size_t(4 * scores)},
                    stream, call);
}

template <formats::ActivationQuant quant>
void launch_router(const RouterChoice& router, const FewCall& call, Stream stream) {
  const auto with = [&]<RouterKind kind>() {
    sm90::with_held<kind>(router.held,
                          [&]<int kHeld>() { launch<kind, kHeld, quant>(call, stream); });
  };
  switch (router.kind) {
    case RouterKind::kSoftmaxOverChosen:
      return with.template operator()<RouterKind::kSoftmaxOverChosen>();
    case RouterKind::kSoftmax:
      return with.template operator()<RouterKind::kSoftmax>();
    case RouterKind::kSigmoid:
      return with.template operator()<RouterKind::kSigmoid>();
    case RouterKind::kSigmoidGroups:
      return with.template operator()<RouterKind::kSigmoidGroups>();
    case RouterKind::kGeneral:
      break;
  }
  ensure(false, "routing and arranging: router ", to_string(router.kind), " is not compiled");
}

void launch_quant(const RouterChoice& router, const FewCall& call, Stream stream) {
  using enum formats::ActivationQuant;
  switch (call.gather.quant) {
    case kNone:
      return launch_router<kNone>(router, call, stream);
    case kFp8Block128:
      return launch_router<kFp8Block128>(router, call, stream);
    case kFp8Block128Ue8m0:
      return launch_router<kFp8Block128Ue8m0>(router, call, stream);
    case kFp8Token:
      return launch_router<kFp8Token>(router, call, stream);
    case kFp8Tensor:
      return launch_router<kFp8Tensor>(router, call, stream);
    case kMxfp8:
      return launch_router<kMxfp8>(router, call, stream);
    case kNvfp4:
      return launch_router<kNvfp4>(router, call, stream);
    case kF32:
      break;
  }
  ensure(false, "routing and arranging: nothing quantises by ", to_string(call.gather.quant));
}

}  // namespace

void route_and_arrange_cuda(const RouteArgs& route, const DeviceSort& a, const DeviceGather& g,
                            Stream stream) {
  route.check_shapes();
  const RoutingCall call{
      .spec = route.spec, .tokens = a.tokens, .choices = a.top_k, .dtype = g.dtype};
  const RoutingLaunch answer = routing_launch(call);
  ensure(answer == RoutingLaunch::kTogether, "routing and arranging: ", explain(answer, call));
  ensure(g.weights == nullptr, "routing and arranging: weights on the input");
  ensure(route.logits.rows == a.tokens && route.ids.data == a.ids,
         "routing and arranging: ", route.logits.rows, " rows of logits for ", a.tokens,
         " tokens, or ids of their own");
  if (a.tokens > 0)
    launch_quant(compiled_router(*route.spec), {a, g, HeldRoute::of(route), groups_of(g)}, stream);
}

}  // namespace switchyard::ops
