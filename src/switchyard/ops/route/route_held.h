// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/base/host_device.h"
#include "switchyard/ops/route/route_math.h"
#include "switchyard/ops/route/router_choice.h"

/// Routing of one token by a warp that holds its order of experts in registers, compiled for one
/// class of recipes. With few tokens each instruction comes from memory, so there are few of them:
/// what is done for each expert is done by many warps rather than many times.
///
/// `Warp` is how 32 lanes talk to each other: a GPU's warp, or threads of a test.
namespace switchyard::ops::held {

/// What of a RoutingSpec such a router reads.
struct HeldSpec {
  int num_ids = 0;
  int top_k = 0;
  int topk_group = 1;
  WeightMap map = WeightMap::kNone;
  float epsilon = 0;

  static HeldSpec of(const RoutingSpec& s) {
    return {int(s.num_experts + s.zero_experts), int(s.top_k), int(s.topk_group), s.map, s.epsilon};
  }
};

/// True for the kinds that score every id first; the others read the logits.
SWITCHYARD_HD constexpr bool scores_first(RouterKind kind) {
  return kind == RouterKind::kSigmoid || kind == RouterKind::kSigmoidGroups;
}

/// One token's scores, for those kinds.
///
/// Shapes:  score, choice [num_ids]; group [num_ids / 32], of the kind with groups.
template <class T>
struct HeldScores {
  T* score = nullptr;
  T* choice = nullptr;
  T* group = nullptr;
};

/// The choice of lane j, the token's j-th.
struct HeldChoice {
  std::int32_t id = 0;
  float weight = 0;
};

/// Whole numbers in the order of the floats; -0 and +0 are one.
[[gnu::always_inline]] SWITCHYARD_HD inline std::uint32_t to_key(float x) {
  const std::uint32_t bits = bits_of(x + 0.0f);  // -0 becomes +0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/// Inverse of to_key().
[[gnu::always_inline]] SWITCHYARD_HD inline float of_key(std::uint32_t key) {
  return float_of(key >> 31 ? key & 0x7fffffffu : ~key);
}

/// The key of what never wins, the lowest of all.
inline constexpr std::uint32_t kDeadKey = 0x007fffffu;

/// fold_lanes() of one value per lane, for all lanes: two halves added in either order have the
/// same sum.
SWITCHYARD_ANY_SIDE
template <class Warp>
SWITCHYARD_HD float fold(float x) {
  SWITCHYARD_UNROLLED
  for (int half = kSumLanes / 2; half > 0; half /= 2) x += Warp::of_neighbour(x, half);
  return x;
}

/// Scores the 32 ids from `first` on, and their group. `bias`: null, or the correction.
SWITCHYARD_ANY_SIDE
template <RouterKind kind, class Warp>
SWITCHYARD_HD void score_ids(const HeldSpec& spec, const float* logits, const float* bias,
                             int first, const HeldScores<float>& out) {
  const int i = first + Warp::lane();
  const bool exists = i < spec.num_ids;
  const float b = exists && bias != nullptr ? bias[i] : 0.0f;
  const float z = clean_score(exists ? logits[i] : kNever), s = sigmoid_float(z);
  const float c = z > kNever ? clean_score(s + b) : kNever;
  if (exists) out.score[i] = s, out.choice[i] = c;
  if constexpr (kind == RouterKind::kSigmoidGroups) {
    const std::uint32_t key = to_key(c), best = Warp::most(key);
    const int winner = Warp::lowest_lane(key == best);
    const std::uint32_t second = Warp::most(Warp::lane() == winner ? kDeadKey : key);
    if (Warp::lane() == 0) out.group[first / 32] = top2_score(of_key(best), of_key(second));
  }
}

/// A bit for each group that is kept.
SWITCHYARD_ANY_SIDE
template <int held, class Warp>
SWITCHYARD_HD std::uint32_t kept_groups(const HeldSpec& spec, const float* group) {
  const int count = spec.num_ids / 32, lane = Warp::lane();
  const float mine = lane < count ? group[lane] : kNever;
  int ahead = 0;
  SWITCHYARD_UNROLLED
  for (int n = 0; n < held; ++n) {
    const float other = n < count ? group[n] : kNever;
    ahead += other > mine || (other == mine && n < lane);
  }
  return Warp::lanes_of(mine > kNever && ahead < spec.topk_group);
}

/// The best ids in order, one in each lane. Returns how many there are, up to k; uses the keys up.
SWITCHYARD_ANY_SIDE
template <int held, class Warp>
SWITCHYARD_HD int choose(int k, std::uint32_t (&key)[held], std::int32_t& id) {
  const std::uint32_t lane = std::uint32_t(Warp::lane());
  int used = 0;
  SWITCHYARD_ROLLED
  for (; used < k; ++used) {
    std::uint32_t most = key[0];
    SWITCHYARD_UNROLLED
    for (int n = 1; n < held; ++n) most = key[n] > most ? key[n] : most;
    const std::uint32_t top = Warp::most(most);
    if (top == kDeadKey) break;
    std::uint32_t at = 0xffffffffu;
    SWITCHYARD_UNROLLED
    for (int n = held - 1; n >= 0; --n) at = key[n] == top ? lane + 32 * n : at;
    const std::uint32_t best = Warp::least(at);
    SWITCHYARD_UNROLLED
    for (int n = 0; n < held; ++n) key[n] = best == lane + 32 * n ? kDeadKey : key[n];
    id = int(lane) == used ? std::int32_t(best) : id;
  }
  return used;
}

/// Lanes from `used` to k take the lowest ids that are not used.
SWITCHYARD_ANY_SIDE
template <class Warp>
SWITCHYARD_HD void fill_up(int used, int k, std::int32_t& id) {
  int next = 0;
  SWITCHYARD_ROLLED
  for (int j = used; j < k; ++j, ++next) {
    while (Warp::lanes_of(Warp::lane() < used && id == next) != 0) ++next;
    id = Warp::lane() == j ? next : id;
  }
}

/// exp(z - top) over all ids: their sum, by the tree that all twins share.
SWITCHYARD_ANY_SIDE
template <class Warp>
SWITCHYARD_HD float sum_of_exponentials(const HeldSpec& spec, const float* logits, float from) {
  float sum = 0;
  SWITCHYARD_ROLLED
  for (int i = Warp::lane(); i < spec.num_ids; i += kSumLanes)
    sum += exp_float(clean_score(logits[i]) - from);
  return fold<Warp>(sum);
}

/// The chosen logits of the first lanes, best first, as a softmax over them.
SWITCHYARD_ANY_SIDE
template <class Warp>
SWITCHYARD_HD float weigh_logit(float z, bool valid) {
  z = valid ? z : kNever;
  const float top = Warp::of_lane(z, 0);
  const float y = exp_float(z - (top > kNever ? top : 0.0f)), total = fold<Warp>(y);
  return valid ? (total > 0 ? y / total : y) : 0.0f;
}

/// The chosen scores as the recipe divides them.
SWITCHYARD_ANY_SIDE
template <class Warp>
SWITCHYARD_HD float weigh_score(const HeldSpec& spec, float s, bool valid) {
  s = valid ? s : 0.0f;
  if (spec.map == WeightMap::kNone) return s;
  const float total = fold<Warp>(s);
  const float norm = spec.map == WeightMap::kDivideByMax
                         ? (total > spec.epsilon ? total : spec.epsilon)
                         : total + spec.epsilon;
  return norm == 0 ? s : s / norm;
}

/// Routes one token: its ids and weights in the lanes below k; from the same logits the bits of the
/// other twins. `scores`: of all ids, for the kinds that score first.
///
/// Shapes:  logits [num_ids]; num_ids at most 32 * held, and whole groups of 32 for the kind that
///          has groups.
SWITCHYARD_ANY_SIDE
template <RouterKind kind, int held, class Warp>
SWITCHYARD_HD HeldChoice route(const HeldSpec& spec, const float* logits,
                               const HeldScores<const float>& scores) {
  const int lane = Warp::lane();
  std::uint32_t key[held];
  SWITCHYARD_UNROLLED
  for (int n = 0; n < held; ++n) {
    const float* from = scores_first(kind) ? scores.choice : logits;
    const int i = lane + 32 * n;
    const float x = i < spec.num_ids ? from[i] : kNever;
    key[n] = to_key(scores_first(kind) ? x : clean_score(x));
  }
  if constexpr (kind == RouterKind::kSigmoidGroups) {
    const std::uint32_t kept = kept_groups<held, Warp>(spec, scores.group);
    SWITCHYARD_UNROLLED
    for (int n = 0; n < held; ++n) key[n] = kept >> n & 1 ? key[n] : kDeadKey;
  }
  HeldChoice mine;
  const int used = choose<held, Warp>(spec.top_k, key, mine.id);
  const bool valid = lane < used;
  if constexpr (scores_first(kind)) {
    mine.weight = weigh_score<Warp>(spec, scores.score[mine.id], valid);
  } else {
    const float z = clean_score(logits[mine.id]);  // read again: this cache has it
    if constexpr (kind == RouterKind::kSoftmaxOverChosen) {
      mine.weight = weigh_logit<Warp>(z, valid);
    } else {
      const float best = Warp::of_lane(valid ? z : kNever, 0), from = best > kNever ? best : 0.0f;
      const float total = sum_of_exponentials<Warp>(spec, logits, from), y = exp_float(z - from);
      mine.weight = weigh_score<Warp>(spec, total > 0 ? y / total : y, valid);
    }
  }
  if (used < spec.top_k) fill_up<Warp>(used, spec.top_k, mine.id);
  return mine;
}

}  // namespace switchyard::ops::held
