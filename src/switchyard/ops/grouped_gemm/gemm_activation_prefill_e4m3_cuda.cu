// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/prefill_tokens_sm90.h"
#include "switchyard/ops/quantize/quantize_sm90.h"

namespace switchyard::ops {
namespace {

using namespace sm90::prefill;  // NOLINT(google-build-using-namespace): the ends are part of it

/// Two columns of a token: fp32 rows for quantisers that read more of a row, else codes with a
/// static scale.
__device__ void write_pair(const ActivationEnd& end, float scale, std::int64_t row, int col,
                           float low, float high) {
  if (end.rows) {
    *reinterpret_cast<float2*>(end.rows + row * end.rows_stride + col) = make_float2(low, high);
    return;
  }
  const float v[4] = {low, high, 0, 0};
  *reinterpret_cast<std::uint16_t*>(end.out.at(row, col / 16) + col % 16) =
      std::uint16_t(sm90::e4m3_codes(v, scale));
}

/// Any kind.
template <bool gated>
struct StoreActivated {
  static constexpr bool kPaired = gated;
  ActivationEnd end;

  __device__ void ask(E4m3Operands::Asked& to, const Work& w, int tiles) const {
    ask_activation(to, end, w, tiles);
  }

  __device__ __forceinline__ void store(TokenSums& acc, const Place& place, std::byte*) const {
    const float scale = end.static_scale ? place.asked.static_scale : 1;
    activate_sums<gated>(acc, end, place);
    constexpr int kCount = gated ? 8 : 4;
#pragma unroll 1
    for (int n = 0; n < Run<kCount>::runs(); ++n) {
      const auto run = Run<kCount>::take(acc, n);
      const int group = n * (kCount / 4), half = group / TokenSums::kGroups;
      const int in_half = group % TokenSums::kGroups;
      if (!has_tile(place, half, in_half)) return;
      const int col = inter_column<gated>(place, half, in_half);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = Place::token() + 8 * i;
        if (place.has(token))
          write_pair(end, scale, place.first + token, col, run.v[2 * i], run.v[2 * i + 1]);
      }
    }
  }
};

}  // namespace

bool gemm_activation_prefill_e4m3_cuda(const DeviceGemm& gemm, const ActivationEnd& end,
                                       Stream stream) {
  const char* what = "grouped GEMM of FC1: launch";
  if (end.gated && has_block_scales(end.quant)) {
    gemm_codes_prefill_cuda(gemm, end, stream);
    return true;
  }
  if (end.gated) {
    launch<E4m3Operands>(what, gemm, StoreActivated<true>{end}, stream);
  } else {
    launch<E4m3Operands>(what, gemm, StoreActivated<false>{end}, stream);
  }
  return end.rows == nullptr;
}

}  // namespace switchyard::ops
