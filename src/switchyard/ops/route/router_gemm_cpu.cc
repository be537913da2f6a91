// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "switchyard/ops/route/route_math.h"
#include "switchyard/ops/route/router_dots.h"
#include "switchyard/ops/route/router_gemm.h"

namespace switchyard::ops {
namespace {

/// K is cut here, whatever the batch: a chunk of x stays in the first cache while experts stream.
constexpr std::int64_t kChunk = 512;
constexpr std::int64_t kMaxColumns = 256;
static_assert(kChunk % kRouterLanes == 0, "only the last chunk of a row is ragged");

void load_chunk(const RouterGemmArgs& a, std::int64_t first, std::int64_t count, float* x) {
  if (a.dtype == Dtype::kF32) {
    std::copy_n(static_cast<const float*>(a.x) + first, count, x);
    return;
  }
  const auto* bits = static_cast<const std::uint16_t*>(a.x) + first;
  if (a.dtype == Dtype::kBf16) {
    for (std::int64_t h = 0; h < count; ++h) x[h] = bf16_to_float(bits[h]);
  } else {
    for (std::int64_t h = 0; h < count; ++h) x[h] = fp16_to_float(bits[h]);
  }
}

/// Two experts at once, so that each load of x serves two products.
void dot_pair(const float* x, const float* w0, const float* w1, std::int64_t count, float* sums) {
  float a[kRouterLanes] = {}, b[kRouterLanes] = {};
  const std::int64_t whole = count / kRouterLanes * kRouterLanes;
  for (std::int64_t h = 0; h < whole; h += kRouterLanes)
    for (int l = 0; l < kRouterLanes; ++l) {
      a[l] += x[h + l] * w0[h + l];
      b[l] += x[h + l] * w1[h + l];
    }
  for (std::int64_t h = whole; h < count; ++h) {
    a[h - whole] += x[h] * w0[h];
    b[h - whole] += x[h] * w1[h];
  }
  sums[0] += fold_router_lanes(a);
  sums[1] += fold_router_lanes(b);
}

/// Sum of squares in the same order as the products: dot of x with itself.
float squares(const float* x, std::int64_t count) {
  float sums[2] = {};
  dot_pair(x, x, x, count, sums);
  return sums[0];
}

/// Logits of up to kMaxColumns experts of one row.
void row_columns(const RouterGemmArgs& a, std::int64_t t, std::int64_t begin, std::int64_t end) {
  const RouterDotsTwin dots = router_dots_twin(a.isa);
  float sums[kMaxColumns] = {};
  float x[kChunk], square = 0;
  for (std::int64_t k = 0; k < a.hidden; k += kChunk) {
    const std::int64_t count = std::min(kChunk, a.hidden - k);
    load_chunk(a, t * a.x_stride + k, count, x);
    if (a.norm_eps > 0) square += squares(x, count);
    for (std::int64_t e = begin; e < end; e += kRouterExperts)
      dots({.x = x,
            .w = a.weight + e * a.hidden + k,
            .w_stride = a.hidden,
            .count = count,
            .experts = std::min<std::int64_t>(kRouterExperts, end - e),
            .sums = sums + (e - begin)});
  }
  // The norm is one factor per row, so it may follow the products.
  const float root = std::sqrt(square / float(a.hidden) + a.norm_eps);
  for (std::int64_t e = begin; e < end; ++e) {
    const float z = a.norm_eps > 0 ? sums[e - begin] / root : sums[e - begin];
    a.logits.row(t)[e] = a.bias ? z + a.bias[e] : z;
  }
}

}  // namespace

void router_dots_portable(const RouterDots& d) {
  for (std::int64_t e = 0; e < d.experts; e += 2) {
    const float* w = d.w + e * d.w_stride;
    float sums[2] = {};
    const bool pair = e + 1 < d.experts;
    dot_pair(d.x, w, pair ? w + d.w_stride : w, d.count, sums);
    d.sums[e] += sums[0];
    if (pair) d.sums[e + 1] += sums[1];
  }
}

void router_gemm_cpu(const RouterGemmArgs& args, const RouterTile& tile) {
  for (std::int64_t t = tile.row_begin; t < tile.row_end; ++t)
    for (std::int64_t e = tile.expert_begin; e < tile.expert_end; e += kMaxColumns)
      row_columns(args, t, e, std::min(e + kMaxColumns, tile.expert_end));
}

}  // namespace switchyard::ops
