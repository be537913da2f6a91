// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/route_math.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kMaxIds = kMaxRoutedExperts;
static_assert(kMaxIds % kSumLanes == 0, "rows are padded to whole blocks of lanes");

/// One row's numbers, padded with entries that never win to whole blocks of lanes.
struct Row {
  alignas(64) float z[kMaxIds];  // cleaned logits
  alignas(64) float s[kMaxIds];  // scores
  alignas(64) float c[kMaxIds];  // choice scores
  std::int64_t num_ids = 0;
  std::int64_t padded = 0;
};

/// What was chosen; a slot that is not valid carries weight 0.
struct Choices {
  std::int32_t id[kMaxTopK];
  bool valid[kMaxTopK];
};

/// A list of the best entries so far, by (value descending, first offered first).
struct TopList {
  float* value;
  std::int32_t* id;
  std::int64_t capacity;
  std::int64_t size = 0;

  /// Ids must be offered in ascending order: a strict comparison then is the tie rule.
  void offer(float v, std::int32_t i) {
    if (!(v > kNever)) return;
    if (size == capacity && !(v > value[size - 1])) return;
    std::int64_t at = size < capacity ? size++ : size - 1;
    for (; at > 0 && v > value[at - 1]; --at) {
      value[at] = value[at - 1];
      id[at] = id[at - 1];
    }
    value[at] = v;
    id[at] = i;
  }
};

void load_row(Row& row, const float* logits, std::int64_t num_ids) {
  row.num_ids = num_ids;
  row.padded = (num_ids + kSumLanes - 1) / kSumLanes * kSumLanes;
  std::copy_n(logits, num_ids, row.z);
  std::fill(row.z + num_ids, row.z + row.padded, kNever);
  for (std::int64_t i = 0; i < row.padded; i += kSumLanes)
    for (int l = 0; l < kSumLanes; ++l) row.z[i + l] = clean_score(row.z[i + l]);
}

float largest(const float* x, std::int64_t padded) {
  float lanes[kSumLanes];
  std::fill_n(lanes, kSumLanes, kNever);
  for (std::int64_t i = 0; i < padded; i += kSumLanes)
    for (int l = 0; l < kSumLanes; ++l) lanes[l] = select(x[i + l] > lanes[l], x[i + l], lanes[l]);
  return *std::max_element(lanes, lanes + kSumLanes);
}

float sum(const float* x, std::int64_t padded) {
  float lanes[kSumLanes] = {};
  for (std::int64_t i = 0; i < padded; i += kSumLanes)
    for (int l = 0; l < kSumLanes; ++l) lanes[l] += x[i + l];
  return fold_lanes(lanes);
}

/// y = f(x) by blocks of lanes; y may be x. The block of its own lets the compiler vectorise f.
template <class F>
void map_blocks(const float* x, std::int64_t padded, float* y, F f) {
  for (std::int64_t i = 0; i < padded; i += kSumLanes) {
    float block[kSumLanes];
    for (int l = 0; l < kSumLanes; ++l) block[l] = f(x[i + l]);
    std::copy_n(block, kSumLanes, y + i);
  }
}

/// y = exp(x - top), and 0 everywhere when nothing is valid.
void exponentials(const float* x, float top, std::int64_t padded, float* y) {
  const float from = top > kNever ? top : 0.0f;
  map_blocks(x, padded, y, [from](float v) { return exp_float(v - from); });
}

void softmax(const float* x, std::int64_t padded, float* y) {
  exponentials(x, largest(x, padded), padded, y);
  const float total = sum(y, padded);
  if (total > 0) map_blocks(y, padded, y, [total](float v) { return v / total; });
}

void sqrt_softplus(const float* z, std::int64_t padded, float* s) {
  map_blocks(z, padded, s, [](float v) { return softplus_float(v); });
  for (std::int64_t i = 0; i < padded; ++i) s[i] = std::sqrt(s[i]);
  for (std::int64_t i = 0; i < padded; i += kSumLanes) {
    float block[kSumLanes];
    for (int l = 0; l < kSumLanes; ++l) block[l] = softplus_root(z[i + l], s[i + l]);
    std::copy_n(block, kSumLanes, s + i);
  }
}

void score_row(Row& row, ScoreFunction score) {
  switch (score) {
    case ScoreFunction::kIdentity:
      std::copy_n(row.z, row.padded, row.s);
      return;
    case ScoreFunction::kSoftmax:
      return softmax(row.z, row.padded, row.s);
    case ScoreFunction::kSigmoid:
      return map_blocks(row.z, row.padded, row.s, [](float z) { return sigmoid_float(z); });
    case ScoreFunction::kSqrtSoftplus:
      return sqrt_softplus(row.z, row.padded, row.s);
  }
}

/// Fills row.c and returns the array that experts are ordered by.
const float* choice_scores(Row& row, const RouteArgs& a) {
  if (chooses_on_logits(*a.spec) && !a.spec->choice_bias) return row.z;
  const float* base = chooses_on_logits(*a.spec) ? row.z : row.s;
  std::fill_n(row.c, row.padded, 0.0f);
  if (a.spec->choice_bias) std::copy_n(a.choice_bias, row.num_ids, row.c);
  for (std::int64_t i = 0; i < row.padded; i += kSumLanes) {
    float block[kSumLanes];
    for (int l = 0; l < kSumLanes; ++l) {
      const float c = clean_score(base[i + l] + row.c[i + l]);
      block[l] = select(row.z[i + l] > kNever, c, kNever);
    }
    std::copy_n(block, kSumLanes, row.c + i);
  }
  return row.c;
}

float group_score(const float* c, std::int64_t size, GroupStatistic statistic) {
  float first = kNever, second = kNever;
  for (std::int64_t i = 0; i < size; ++i) {
    const float loser = std::min(first, c[i]);
    first = std::max(first, c[i]);
    second = std::max(second, loser);
  }
  return statistic == GroupStatistic::kMax || size == 1 ? first : top2_score(first, second);
}

/// Offers the experts of the best groups only: the others count as -inf.
void offer_groups(const float* c, const RoutingSpec& spec, TopList& best) {
  const std::int64_t size = spec.num_experts / spec.n_group;
  float values[kMaxIds];
  std::int32_t groups[kMaxIds];
  TopList kept{values, groups, spec.topk_group};
  for (std::int64_t g = 0; g < spec.n_group; ++g)
    kept.offer(group_score(c + g * size, size, spec.group_statistic), std::int32_t(g));
  std::sort(groups, groups + kept.size);
  for (std::int64_t j = 0; j < kept.size; ++j)
    for (std::int64_t i = groups[j] * size; i < (groups[j] + 1) * size; ++i)
      best.offer(c[i], std::int32_t(i));
}

/// Fills slots [used, k) with the lowest ids that are not in [0, used).
void fill_up(Choices& chosen, std::int64_t used, std::int64_t k) {
  std::int32_t next = 0;
  for (std::int64_t j = used; j < k; ++j, ++next) {
    while (std::find(chosen.id, chosen.id + used, next) != chosen.id + used) ++next;
    chosen.id[j] = next;
    chosen.valid[j] = false;
  }
}

void choose_top(const float* c, const Row& row, const RoutingSpec& spec, Choices& chosen) {
  float values[kMaxTopK];
  TopList best{values, chosen.id, spec.top_k};
  if (spec.n_group > 1) {
    offer_groups(c, spec, best);
  } else {
    for (std::int64_t i = 0; i < row.num_ids; ++i) best.offer(c[i], std::int32_t(i));
  }
  std::fill_n(chosen.valid, best.size, true);
  fill_up(chosen, best.size, spec.top_k);
}

void choose_hashed(const RouteArgs& a, std::int64_t t, const Row& row, Choices& chosen) {
  const std::int64_t k = a.spec->top_k;
  std::copy_n(a.hash_table + a.token_ids[t] * k, k, chosen.id);
  for (std::int64_t j = 0; j < k; ++j) chosen.valid[j] = row.z[chosen.id[j]] > kNever;
}

/// (sum |v|^p)^(1/p); the two norms in use need no power function.
float lp_norm(const float* v, float p) {
  float terms[kSumLanes];
  for (int j = 0; j < kSumLanes; ++j) {
    const float m = magnitude_of(v[j]);
    terms[j] = p == 1 ? m : p == 2 ? m * m : float(std::pow(double(m), double(p)));
  }
  const float total = sum(terms, kSumLanes);
  return p == 1 ? total : p == 2 ? std::sqrt(total) : float(std::pow(double(total), 1.0 / p));
}

/// Maps the chosen values; slots that are not valid hold -inf (logits) or 0 (scores).
void map_weights(const RoutingSpec& spec, float* v) {
  if (spec.map == WeightMap::kNone) return;
  if (spec.map == WeightMap::kSoftmaxOverChosen) return softmax(v, kSumLanes, v);
  if (spec.map == WeightMap::kSigmoid) {
    for (int j = 0; j < kSumLanes; ++j) v[j] = sigmoid_float(v[j]);
    return;
  }
  float norm = 0;
  if (spec.map == WeightMap::kLpNorm) {
    norm = lp_norm(v, spec.p);
  } else {
    const float total = sum(v, kSumLanes);
    const bool floors = spec.map == WeightMap::kDivideByMax;
    norm = floors ? std::max(total, spec.epsilon) : total + spec.epsilon;
  }
  if (norm == 0) return;  // every chosen score is 0, and stays so
  for (int j = 0; j < kSumLanes; ++j) v[j] /= norm;
}

void weigh(const RouteArgs& a, const Row& row, const Choices& chosen, float* weights) {
  static_assert(kMaxTopK <= kSumLanes, "the chosen values fit one block of lanes");
  const RoutingSpec& spec = *a.spec;
  const bool logit = reads_logit(spec.map);
  float v[kSumLanes];
  std::fill_n(v, kSumLanes, logit ? kNever : 0.0f);
  for (std::int64_t j = 0; j < spec.top_k; ++j)
    if (chosen.valid[j]) v[j] = logit ? row.z[chosen.id[j]] : row.s[chosen.id[j]];
  map_weights(spec, v);
  for (std::int64_t j = 0; j < spec.top_k; ++j) weights[j] = chosen.valid[j] ? v[j] : 0.0f;
}

/// SparseMixer: each of two winners is weighed by a softmax over what stands close enough to it.
void mix_sparsely(Row& row, const RoutingSpec& spec, Choices& chosen, float* weights) {
  choose_top(row.z, row, spec, chosen);
  for (int j = 0; j < 2; ++j) {
    const float top = row.z[chosen.id[j]];
    weights[j] = 0;
    if (!chosen.valid[j]) continue;
    for (std::int64_t i = 0; i < row.padded; ++i)
      row.c[i] = is_masked_out(row.z[i], top, spec.jitter) ? kNever : row.z[i];
    if (j == 1) row.c[chosen.id[0]] = kNever;
    exponentials(row.c, top, row.padded, row.s);
    weights[j] = 1.0f / sum(row.s, row.padded);
  }
}

void route_row(const RouteArgs& a, std::int64_t t, Row& row) {
  const RoutingSpec& spec = *a.spec;
  Choices chosen;
  float* weights = a.weights.row(t);
  load_row(row, a.logits.row(t), spec.num_experts + spec.zero_experts);
  if (spec.choice == ChoiceRule::kSparseMixer) {
    mix_sparsely(row, spec, chosen, weights);
  } else {
    score_row(row, spec.score);
    if (spec.choice == ChoiceRule::kHash) {
      choose_hashed(a, t, row, chosen);
    } else {
      choose_top(choice_scores(row, a), row, spec, chosen);
    }
    weigh(a, row, chosen, weights);
  }
  std::copy_n(chosen.id, spec.top_k, a.ids.row(t));
  if (!spec.per_expert_scale) return;
  for (std::int64_t j = 0; j < spec.top_k; ++j)
    if (chosen.valid[j] && chosen.id[j] < spec.num_experts)
      weights[j] *= a.per_expert_scale[chosen.id[j]];
}

}  // namespace

void route_cpu(const RouteArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  Row row;
  for (std::int64_t t = row_begin; t < row_end; ++t) route_row(args, t, row);
}

}  // namespace switchyard::ops
