// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "switchyard/base/cuda_launch.h"
#include "switchyard/ops/grouped_gemm/sm90.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/route_held_cuda.h"
#include "switchyard/ops/route/route_math.h"

namespace switchyard::ops {
namespace {

static_assert(kSumLanes == 32, "a warp is the lanes of a sum");
static_assert(kMaxTopK <= 32, "a lane holds one choice");

/// What a launch needs, by value: the spec lies in host memory.
struct DeviceRoute {
  RouteArgs a;
  RoutingSpec spec;
  bool on_logits;  // experts are ordered by their logits
};

/// One token's numbers in shared memory, as in the CPU twin: entry i belongs to lane i % 32.
struct Row {
  float* z;  // cleaned logits
  float* s;  // scores
  float* c;  // choice scores; used up by the choice
  int num_ids, padded;
};

/// The one choice of a lane.
struct Choice {
  std::int32_t id = 0;
  bool valid = false;
};

__device__ int lane_of() { return threadIdx.x % 32; }

/// fold_lanes() of one value per lane, for all lanes.
__device__ float fold(float x) {
  for (int half = kSumLanes / 2; half > 0; half /= 2) x += __shfl_down_sync(~0u, x, half);
  return __shfl_sync(~0u, x, 0);
}

__device__ float largest_lane(float x) {
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(~0u, x, step);
    x = select(other > x, other, x);
  }
  return x;
}

__device__ float largest(const float* x, int padded) {
  float top = kNever;
#pragma unroll 4
  for (int i = lane_of(); i < padded; i += 32) top = select(x[i] > top, x[i], top);
  return largest_lane(top);
}

__device__ float sum(const float* x, int padded) {
  float lane = 0;
#pragma unroll 4
  for (int i = lane_of(); i < padded; i += 32) lane += x[i];
  return fold(lane);
}

/// Loads of up to this many entries of a lane are in flight before the first is used.
constexpr int kAhead = 4;

/// Calls visit(i, from[i]) for the lane's entries i; `absent` stands behind the last of `size`.
template <class Visit>
__device__ void visit_entries(const float* from, int size, int padded, float absent,
                              Visit&& visit) {
  for (int begin = lane_of(); begin < padded; begin += 32 * kAhead) {
    float v[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) v[n] = begin + 32 * n < size ? from[begin + 32 * n] : absent;
#pragma unroll
    for (int n = 0; n < kAhead; ++n)
      if (begin + 32 * n < padded) visit(begin + 32 * n, v[n]);
  }
}

/// y[i] = f(x[i]) of the lane's entries; y may be x.
template <class F>
__device__ void map_row(const float* x, int padded, float* y, F f) {
  visit_entries(x, padded, padded, 0, [&](int i, float v) { y[i] = f(v); });
}

__device__ void exponentials(const float* x, float top, int padded, float* y) {
  const float from = top > kNever ? top : 0.0f;
  map_row(x, padded, y, [from](float v) { return exp_float(v - from); });
}

__device__ void softmax(const float* x, int padded, float* y) {
  exponentials(x, largest(x, padded), padded, y);
  const float total = sum(y, padded);
  if (total > 0) map_row(y, padded, y, [total](float v) { return v / total; });
}

__device__ void score_row(const Row& row, ScoreFunction score) {
  switch (score) {
    case ScoreFunction::kIdentity:
      return map_row(row.z, row.padded, row.s, [](float z) { return z; });
    case ScoreFunction::kSoftmax:
      return softmax(row.z, row.padded, row.s);
    case ScoreFunction::kSigmoid:
      return map_row(row.z, row.padded, row.s, [](float z) { return sigmoid_float(z); });
    case ScoreFunction::kSqrtSoftplus:
      return map_row(row.z, row.padded, row.s, [](float z) { return sqrt_softplus_float(z); });
  }
}

__device__ void choice_scores(const Row& row, const DeviceRoute& r) {
  const float* base = r.on_logits ? row.z : row.s;
  if (r.on_logits && !r.spec.choice_bias)
    return map_row(row.z, row.padded, row.c, [](float z) { return z; });
  const float* bias = r.spec.choice_bias ? r.a.choice_bias : nullptr;
  visit_entries(bias, bias ? row.num_ids : 0, row.padded, 0, [&](int i, float b) {
    row.c[i] = select(row.z[i] > kNever, clean_score(base[i] + b), kNever);
  });
}

/// Whole numbers in the order of the floats; -0 and +0 are one.
__device__ unsigned ordered(float x) {
  const std::uint32_t bits = bits_of(x == 0 ? 0.0f : x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/// The best entry of x by (value descending, index ascending), for all lanes; -1 when none is left.
__device__ int best_entry(const float* x, int size) {
  constexpr unsigned kNone = 0xffffffffu;
  float value = kNever;
  unsigned at = kNone;
  for (int i = lane_of(); i < size; i += 32)
    if (x[i] > value) value = x[i], at = unsigned(i);
  const unsigned top = __reduce_max_sync(~0u, ordered(value));
  return int(__reduce_min_sync(~0u, ordered(value) == top ? at : kNone));
}

/// The two largest of some choice scores.
struct TopTwo {
  float first = kNever, second = kNever;

  __device__ void add(float x) {
    second = max(second, min(first, x));
    first = max(first, x);
  }
};

/// Writes the score of each group, whose entries several lanes share.
__device__ void score_groups(const float* c, const RoutingSpec& spec, float* groups) {
  const int count = int(spec.n_group), size = int(spec.num_experts / spec.n_group);
  int share = 1;  // lanes of a group
  while (2 * share * count <= 32) share *= 2;
  const int part = lane_of() % share;
  for (int from = 0; from < count; from += 32 / share) {
    const int g = from + lane_of() / share;
    TopTwo top;
    if (g < count) {
      // Groups begin at different places of theirs, for the banks' sake.
      int at = (part + g * share) % size;
      for (int i = part; i < size; i += share) {
        top.add(c[g * size + at]);
        at += share;
        if (at >= size) at -= size;
      }
    }
    for (int step = 1; step < share; step *= 2) {
      const float first = __shfl_xor_sync(~0u, top.first, step);
      const float second = __shfl_xor_sync(~0u, top.second, step);
      top.add(first);
      top.add(second);
    }
    const bool one = spec.group_statistic == GroupStatistic::kMax || size == 1;
    if (g < count && part == 0) groups[g] = one ? top.first : top2_score(top.first, top.second);
  }
}

/// Experts of all but the best groups never win, nor do zero experts, which are in no group.
/// `groups` has room for two entries per group: its score, and whether it is kept.
__device__ void drop_groups(const Row& row, const RoutingSpec& spec, float* groups) {
  const int count = int(spec.n_group), size = int(spec.num_experts / spec.n_group);
  float* kept = groups + count;
  score_groups(row.c, spec, groups);
  for (int g = lane_of(); g < count; g += 32) kept[g] = 0;
  __syncwarp();
  for (int j = 0; j < spec.topk_group; ++j) {
    const int g = best_entry(groups, count);
    if (g < 0) break;
    __syncwarp();
    if (g % 32 == lane_of()) groups[g] = kNever, kept[g] = 1;
    __syncwarp();
  }
  for (int i = lane_of(); i < row.num_ids; i += 32)
    if (i >= spec.num_experts || kept[i / size] == 0) row.c[i] = kNever;
  __syncwarp();
}

/// Slots that no valid expert fills take the lowest ids that are not used.
__device__ __noinline__ Choice fill_up(Choice mine, int used, int k) {
  int next = 0;
  for (int j = used; j < k; ++j, ++next) {
    while (__any_sync(~0u, lane_of() < used && mine.id == next)) ++next;
    if (lane_of() == j) mine = {next, false};
  }
  return mine;
}

/// Choices of a row whose entries fit the lanes' registers.
constexpr int kHeld = 8;  // of a lane

/// The best k entries in order, one in each lane; the entries stand in registers.
__device__ Choice choose_held(const Row& row, int k) {
  constexpr unsigned kNone = 0xffffffffu;
  float c[kHeld];
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = lane_of() + 32 * n;
    c[n] = i < row.num_ids ? row.c[i] : kNever;
  }
  Choice mine;
  int used = 0;
  for (; used < k; ++used) {
    float value = kNever;
    unsigned at = kNone;
#pragma unroll
    for (int n = 0; n < kHeld; ++n)
      if (c[n] > value) value = c[n], at = unsigned(lane_of() + 32 * n);
    const unsigned top = __reduce_max_sync(~0u, ordered(value));
    const unsigned best = __reduce_min_sync(~0u, ordered(value) == top ? at : kNone);
    if (best == kNone) break;
#pragma unroll
    for (int n = 0; n < kHeld; ++n)
      if (best == unsigned(lane_of() + 32 * n)) c[n] = kNever;
    if (lane_of() == used) mine = {std::int32_t(best), true};
  }
  return used < k ? fill_up(mine, used, k) : mine;
}

/// As choose_held(), from shared memory.
__device__ __noinline__ Choice choose_many(const Row& row, int k) {
  Choice mine;
  int used = 0;
  for (; used < k; ++used) {
    const int at = best_entry(row.c, row.num_ids);
    if (at < 0) break;
    __syncwarp();
    if (at % 32 == lane_of()) row.c[at] = kNever;
    if (lane_of() == used) mine = {at, true};
    __syncwarp();
  }
  return used < k ? fill_up(mine, used, k) : mine;
}

/// The best k entries in order, one in each lane.
__device__ Choice choose_top(const Row& row, int k) {
  return row.padded <= 32 * kHeld ? choose_held(row, k) : choose_many(row, k);
}

/// (sum |v|^p)^(1/p) over the lanes. Rare paths are out of line: where one token is all, each
/// instruction is fetched for the first time.
__device__ __noinline__ float lp_norm(float v, float p) {
  const float m = magnitude_of(v);
  const float term = p == 1 ? m : p == 2 ? m * m : float(pow(double(m), double(p)));
  const float total = fold(term);
  return p == 1 ? total : p == 2 ? sqrtf(total) : float(pow(double(total), 1.0 / p));
}

/// A lane's chosen value as its weight.
__device__ float map_weight(const RoutingSpec& spec, float v) {
  if (spec.map == WeightMap::kNone) return v;
  if (spec.map == WeightMap::kSoftmaxOverChosen) {
    const float top = largest_lane(v), from = top > kNever ? top : 0.0f;
    const float y = exp_float(v - from), total = fold(y);
    return total > 0 ? y / total : y;
  }
  if (spec.map == WeightMap::kSigmoid) return sigmoid_float(v);
  float norm = 0;
  if (spec.map == WeightMap::kLpNorm) {
    norm = lp_norm(v, spec.p);
  } else {
    const float total = fold(v);
    norm = spec.map == WeightMap::kDivideByMax ? max(total, spec.epsilon) : total + spec.epsilon;
  }
  return norm == 0 ? v : v / norm;
}

__device__ float weigh(const RoutingSpec& spec, const Row& row, Choice mine, int k) {
  const bool logit = reads_logit(spec.map), valid = lane_of() < k && mine.valid;
  const float absent = logit ? kNever : 0.0f;
  const float v = valid ? (logit ? row.z[mine.id] : row.s[mine.id]) : absent;
  const float w = map_weight(spec, v);
  return valid ? w : 0.0f;
}

/// SparseMixer: each of two winners is weighed by a softmax over what stands close enough to it.
__device__ __noinline__ Choice mix_sparsely(const Row& row, const RoutingSpec& spec,
                                            float& weight) {
  map_row(row.z, row.padded, row.c, [](float z) { return z; });
  __syncwarp();
  const Choice mine = choose_top(row, int(spec.top_k));
  const int first = __shfl_sync(~0u, mine.id, 0);
  weight = 0;
  for (int j = 0; j < 2; ++j) {
    const int id = __shfl_sync(~0u, mine.id, j);
    if (!__shfl_sync(~0u, int(mine.valid), j)) continue;
    const float top = row.z[id];
    __syncwarp();
    for (int i = lane_of(); i < row.padded; i += 32)
      row.c[i] =
          is_masked_out(row.z[i], top, spec.jitter) || (j == 1 && i == first) ? kNever : row.z[i];
    exponentials(row.c, top, row.padded, row.s);
    const float w = 1.0f / sum(row.s, row.padded);
    if (lane_of() == j) weight = w;
  }
  return mine;
}

/// The table's row; a token id outside it, or an id outside the experts, skips.
__device__ Choice choose_hashed(const DeviceRoute& r, std::int64_t t, const Row& row) {
  const int k = int(r.spec.top_k);
  if (lane_of() >= k) return {};
  const std::int64_t token = r.a.token_ids[t];
  if (token < 0 || token >= r.a.vocab) return {-1, false};
  const std::int32_t id = r.a.hash_table[token * k + lane_of()];
  if (id < 0 || id >= row.num_ids) return {-1, false};
  return {id, row.z[id] > kNever};
}

__device__ void load_row(const Row& row, const float* logits) {
  visit_entries(logits, row.num_ids, row.padded, kNever,
                [&](int i, float z) { row.z[i] = clean_score(z); });
}

__global__ void route_kernel(const __grid_constant__ DeviceRoute r, int row_floats) {
  extern __shared__ float memory[];
  sm90::wait_for_previous_launch();
  sm90::allow_next_launch();
  const int warp = threadIdx.x / 32;
  const std::int64_t t = std::int64_t(blockIdx.x) * (blockDim.x / 32) + warp;
  if (t >= r.a.logits.rows) return;
  const RoutingSpec& spec = r.spec;
  const int num_ids = int(spec.num_experts + spec.zero_experts), k = int(spec.top_k);
  const int padded = (num_ids + 31) / 32 * 32;
  float* base = memory + warp * row_floats;
  const Row row{base, base + padded, base + 2 * padded, num_ids, padded};
  float* groups = base + 3 * padded;
  load_row(row, r.a.logits.row(t));
  __syncwarp();
  Choice mine;
  float weight = 0;
  if (spec.choice == ChoiceRule::kSparseMixer) {
    mine = mix_sparsely(row, spec, weight);
  } else {
    score_row(row, spec.score);
    __syncwarp();
    if (spec.choice == ChoiceRule::kHash) {
      mine = choose_hashed(r, t, row);
    } else {
      choice_scores(row, r);
      __syncwarp();
      if (spec.n_group > 1) drop_groups(row, spec, groups);
      mine = choose_top(row, k);
    }
    weight = weigh(spec, row, mine, k);
  }
  if (lane_of() >= k) return;
  if (spec.per_expert_scale && mine.valid && mine.id < spec.num_experts)
    weight *= r.a.per_expert_scale[mine.id];
  r.a.ids.row(t)[lane_of()] = mine.id;
  r.a.weights.row(t)[lane_of()] = weight;
}

}  // namespace

void route_cuda(const RouteArgs& args, Stream stream, RouterWish wish) {
  args.check_shapes();
  if (args.logits.rows == 0) return;
  const RoutingSpec& spec = *args.spec;
  const RouterChoice router = choose_router(spec, args.logits.rows, wish);
  if (router.kind != RouterKind::kGeneral) return route_held_cuda(args, router, stream);
  const std::int64_t padded = (spec.num_experts + spec.zero_experts + 31) / 32 * 32;
  const std::int64_t floats = 3 * padded + (spec.n_group > 1 ? 2 * spec.n_group : 0);
  const std::int64_t warps = std::clamp<std::int64_t>(48 * 1024 / (4 * floats), 1, 4);
  launch_overlapped("route: launch", route_kernel,
                    {.blocks = unsigned((args.logits.rows + warps - 1) / warps),
                     .threads = unsigned(32 * warps),
                     .shared_bytes = std::size_t(4 * floats * warps)},
                    stream, DeviceRoute{args, spec, chooses_on_logits(spec)}, int(floats));
}

}  // namespace switchyard::ops
