// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"

/// The tier for hundreds of tokens an expert, of the two functions of grouped_gemm_cuda.h.
namespace switchyard::ops {

/// What forces it, beside kTokenTiles, and the experts that it takes.
inline constexpr std::int64_t kPrefillTile = 256, kPrefillExperts = 1024;

/// Whether it is built for such operands: bf16 in one plane, and E4M3 codes.
bool serves_prefill(const DeviceGemm& gemm);
/// Whether a call that leaves the tier open takes it. The choice changes no bit.
bool prefers_prefill(const DeviceGemm& gemm);

/// FC1 without scales, for FC2 in bf16. Errors: as gemm_activation_cuda().
void gemm_activation_prefill_cuda(const DeviceGemm& gemm, const ActivationEnd& end, Stream stream);
/// FC2 without scales. Errors: as gemm_rows_cuda().
void gemm_rows_prefill_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream);
/// FC1 of codes; otherwise as gemm_activation_cuda().
bool gemm_activation_prefill_e4m3_cuda(const DeviceGemm& gemm, const ActivationEnd& end,
                                       Stream stream);
/// The same for pairs of gate and up that are quantised per 128 columns; writes the codes itself.
void gemm_codes_prefill_cuda(const DeviceGemm& gemm, const ActivationEnd& end, Stream stream);
/// FC2 of codes. Errors: as gemm_rows_cuda().
void gemm_rows_prefill_e4m3_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream);

}  // namespace switchyard::ops
