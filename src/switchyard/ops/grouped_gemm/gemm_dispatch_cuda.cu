// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/gemm_tiles_sm90.h"

namespace switchyard::ops {
namespace {

/// Calls `visit` with the launches of the code.
template <class Visit>
void with_tiles(TileCode code, Visit visit) {
  switch (code) {
    case TileCode::kBf16:
      return visit(sm90::TileGemm<TileCode::kBf16>{});
    case TileCode::kE4m3Operand:
      return visit(sm90::TileGemm<TileCode::kE4m3Operand>{});
    case TileCode::kE4m3:
      return visit(sm90::TileGemm<TileCode::kE4m3>{});
    case TileCode::kE4m3Block:
      return visit(sm90::TileGemm<TileCode::kE4m3Block>{});
    case TileCode::kMxfp4:
      return visit(sm90::TileGemm<TileCode::kMxfp4>{});
    case TileCode::kNvfp4:
      return visit(sm90::TileGemm<TileCode::kNvfp4>{});
    case TileCode::kNvfp4Wide:
      return visit(sm90::TileGemm<TileCode::kNvfp4Wide>{});
  }
}

bool unscaled(const SumScales& s) {
  return s.factors == nullptr && s.tokens == nullptr && s.experts == nullptr;
}

bool has_codes(const DeviceGemm& gemm) { return gemm.layout.code == TileCode::kE4m3Operand; }

/// The last of a block's row tiles quantises it: all of them must be there, and count in one place.
void ensure_all_arrive(const DeviceGemm& gemm, const ActivationEnd& end) {
  ensure(has_codes(gemm), "grouped GEMM of FC1: no tier of this code counts arrivals");
  ensure(end.rows_stride % 128 == 0, "grouped GEMM of FC1: ", end.rows_stride,
         " columns are no whole blocks to count in");
  ensure(gemm.layout.row_tiles() % (end.gated ? 4 : 2) == 0,
         "grouped GEMM of FC1: ", gemm.layout.row_tiles(),
         " row tiles leave a block without its last one");
}

/// Whether the call takes the prefill tier, which `built` says is built for its end.
bool takes_prefill(const char* what, const DeviceGemm& gemm, bool built, std::int64_t tile) {
  if (tile == 0) return built && prefers_prefill(gemm);
  ensure(tile != kPrefillTile || (built && serves_prefill(gemm)), what, ": no tier of ", tile,
         " tokens for these operands");
  return tile == kPrefillTile;
}

}  // namespace

bool gemm_activation_cuda(const DeviceGemm& gemm, const ActivationEnd& end, Stream stream,
                          std::int64_t tile) {
  ensure(ends_in_rows(end.quant) == (end.rows != nullptr),
         "grouped GEMM of FC1: fp32 rows are for quantisers that need them");
  ensure(
      end.arrivals == nullptr || (tile == kCountingTile && counts_blocks(end.quant, end.out.codes)),
      "grouped GEMM of FC1: nobody counts arrivals for this quantiser in this tier");
  if (end.arrivals != nullptr) ensure_all_arrive(gemm, end);
  const bool bf16 =
      end.quant == formats::ActivationQuant::kNone && end.out.planes == 1 && unscaled(end.scales);
  if (takes_prefill("grouped GEMM of FC1", gemm, bf16 || has_codes(gemm), tile)) {
    if (has_codes(gemm)) return gemm_activation_prefill_e4m3_cuda(gemm, end, stream);
    gemm_activation_prefill_cuda(gemm, end, stream);
    return true;
  }
  with_tiles(gemm.layout.code, [&](auto tiles) { tiles.activation(gemm, end, stream, tile); });
  return end.rows == nullptr || end.arrivals != nullptr;
}

void gemm_rows_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream, std::int64_t tile) {
  if (takes_prefill("grouped GEMM of FC2", gemm, unscaled(end.scales) || has_codes(gemm), tile))
    return has_codes(gemm) ? gemm_rows_prefill_e4m3_cuda(gemm, end, stream)
                           : gemm_rows_prefill_cuda(gemm, end, stream);
  with_tiles(gemm.layout.code, [&](auto tiles) { tiles.rows(gemm, end, stream, tile); });
}

}  // namespace switchyard::ops
