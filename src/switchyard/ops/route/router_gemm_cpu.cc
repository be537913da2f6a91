// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "switchyard/ops/route/route_math.h"
#include "switchyard/ops/route/router_gemm.h"

namespace switchyard::ops {
namespace {

/// K is cut here, whatever the batch: a chunk of x stays in the first cache while experts stream.
constexpr std::int64_t kChunk = 512;
constexpr int kLanes = 16;
constexpr std::int64_t kMaxColumns = 256;
static_assert(kChunk % kLanes == 0, "only the last chunk of a row is ragged");

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
  float a[kLanes] = {}, b[kLanes] = {};
  const std::int64_t whole = count / kLanes * kLanes;
  for (std::int64_t h = 0; h < whole; h += kLanes)
    for (int l = 0; l < kLanes; ++l) {
      a[l] += x[h + l] * w0[h + l];
      b[l] += x[h + l] * w1[h + l];
    }
  for (std::int64_t h = whole; h < count; ++h) {
    a[h - whole] += x[h] * w0[h];
    b[h - whole] += x[h] * w1[h];
  }
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) {
      a[l] += a[l + half];
      b[l] += b[l + half];
    }
  sums[0] += a[0];
  sums[1] += b[0];
}

/// Sum of squares in the same order as the products: dot of x with itself.
float squares(const float* x, std::int64_t count) {
  float sums[2] = {};
  dot_pair(x, x, x, count, sums);
  return sums[0];
}

/// Logits of up to kMaxColumns experts of one row.
void row_columns(const RouterGemmArgs& a, std::int64_t t, std::int64_t begin, std::int64_t end) {
  float sums[kMaxColumns + 1] = {};  // one more: an odd last expert is computed as a pair
  float x[kChunk], square = 0;
  for (std::int64_t k = 0; k < a.hidden; k += kChunk) {
    const std::int64_t count = std::min(kChunk, a.hidden - k);
    load_chunk(a, t * a.x_stride + k, count, x);
    if (a.norm_eps > 0) square += squares(x, count);
    for (std::int64_t e = begin; e < end; e += 2) {
      const float* w = a.weight + e * a.hidden + k;
      dot_pair(x, w, e + 1 < end ? w + a.hidden : w, count, sums + (e - begin));
    }
  }
  // The norm is one factor per row, so it may follow the products.
  const float root = std::sqrt(square / float(a.hidden) + a.norm_eps);
  for (std::int64_t e = begin; e < end; ++e) {
    const float z = a.norm_eps > 0 ? sums[e - begin] / root : sums[e - begin];
    a.logits.row(t)[e] = a.bias ? z + a.bias[e] : z;
  }
}

}  // namespace

void router_gemm_cpu(const RouterGemmArgs& args, const RouterTile& tile) {
  for (std::int64_t t = tile.row_begin; t < tile.row_end; ++t)
    for (std::int64_t e = tile.expert_begin; e < tile.expert_end; e += kMaxColumns)
      row_columns(args, t, e, std::min(e + kMaxColumns, tile.expert_end));
}

}  // namespace switchyard::ops
