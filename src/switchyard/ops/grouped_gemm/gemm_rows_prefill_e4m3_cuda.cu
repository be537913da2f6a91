// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/prefill_tokens_sm90.h"

namespace switchyard::ops {
namespace {

using namespace sm90::prefill;  // NOLINT(google-build-using-namespace): the ends are part of it

/// Neighbouring lanes have neighbouring pairs of columns of two groups; afterwards the even one has
/// four columns of the first, the odd one of the second.
__device__ float4 four_columns(float2 first, float2 second) {
  const bool odd = Place::lane() % 2 != 0;
  const float2 give = odd ? first : second, keep = odd ? second : first;
  const float2 got = make_float2(__shfl_xor_sync(~0u, give.x, 1), __shfl_xor_sync(~0u, give.y, 1));
  return odd ? make_float4(got.x, got.y, keep.x, keep.y)
             : make_float4(keep.x, keep.y, got.x, got.y);
}

/// fp32 rows, 16 bytes a lane: 64 bytes of each of eight tokens a warp.
struct StoreScaledRows {
  static constexpr bool kPaired = false;
  RowsEnd end;

  __device__ void ask(E4m3Operands::Asked& to, const Work& w, int tiles) const {
    ask_scales(to, end.scales, end.stride, w, tiles);
  }

  __device__ float4 bias_of(const Place& place, std::int64_t col) const {
    const float* bias = reinterpret_cast<const float*>(end.bias + place.expert * end.stride) + col;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = col + i < end.hidden ? bias[i] : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
  }

  __device__ __forceinline__ void store(TokenSums& acc, const Place& place, std::byte*) const {
    scale_sums(acc, end.scales, place);
    const int odd = Place::lane() % 2;
    for_groups([&](int half, int group) {
      if (group % 2 == 1 || !has_tile(place, half, group)) return;
      const std::int64_t col = place.row(half, group + odd) - 2 * odd;
      const float* v = acc.v[half] + group * 4;
      float4 bias = make_float4(0, 0, 0, 0);
      if (end.bias) bias = bias_of(place, col);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = Place::token() + 8 * i;
        float4 y = four_columns(make_float2(v[2 * i], v[2 * i + 1]),
                                make_float2(v[2 * i + 4], v[2 * i + 5]));
        if (end.bias) y.x += bias.x, y.y += bias.y, y.z += bias.z, y.w += bias.w;
        if (place.has(token) && col < end.hidden)  // rows are padded to whole quads
          *reinterpret_cast<float4*>(end.out + (place.first + token) * end.out_stride + col) = y;
      }
    });
  }
};

}  // namespace

void gemm_rows_prefill_e4m3_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream) {
  launch<E4m3Operands>("grouped GEMM of FC2: launch", gemm, StoreScaledRows{end}, stream);
}

}  // namespace switchyard::ops
