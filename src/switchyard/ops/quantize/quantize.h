// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/core/environment.h"
#include "switchyard/formats/matrix.h"

namespace switchyard::ops {

/// One row of activations quantised into the form that panel kernels read: bf16 values times fp32
/// scales. Every value is exact in bf16, so a kernel adds no rounding of its own.
///
/// Folding: for kMxfp8 and kNvfp4 the block scale (not nvfp4's global one) is multiplied into the
///          values. That is exact except where an MXFP8 block has amax <= 448 * 2^-125 (scale codes
///          0 to 2: its last places are below bf16's 2^-133 and round) or a value of 2^128 and more
///          (becomes infinity).
/// NaN:     reaches every value of its block, or of the whole row where one scale serves the row;
///          with a static fp8 scale it stays one NaN value. Infinity saturates where the scale is
///          static, E8M0 or UE8M0, and makes its block NaN under an fp32 dynamic scale.
/// Zeros:   a zero block gives zeros; the sign of a zero value is kept except in a block whose
/// scale
///          is 0.
struct QuantizeRowArgs {
  formats::ActivationQuant kind = formats::ActivationQuant::kNone;
  const float* x = nullptr;         // [cols]
  std::int64_t cols = 0;            // any width, a partial last block is a block
  float static_scale = 1;           // multiplies when decoding; kFp8Tensor and kNvfp4 only
  std::uint16_t* values = nullptr;  // [cols] bf16 bits
  float* block_scales = nullptr;    // [ceil(cols / 128)]; the two 1 x 128 kinds only, else unused
  float* row_scale = nullptr;       // [1]: token scale, static scale, nvfp4 global, or 1

  /// Errors: UsageError for a static scale outside [2^-126, 2^126] where one is read or a negative
  ///         cols, InternalError for kF32, which is no quantiser, or a null pointer.
  void check() const;
};

/// Quantises one row; allocates nothing. kNone rounds to bf16.
///
/// Formulas: kFp8*: e4m3(x / scale), IEEE division in fp32; 1 x 128 and token: scale =
///           max(amax, 1e-4) / 448, or 2^ceil(log2 of that). kMxfp8: scale = 2^ceil(log2(amax /
///           448)). kNvfp4: g = 1 / static_scale, sf = e4m3((g * amax) / 6), e2m1(x * (g / sf)),
///           all in fp32; 0 where sf is 0.
/// Runs as tier `isa` compiles it; every tier gives the same bits, a NaN's sign aside.
/// Errors:   as check().
void quantize_row_cpu(const QuantizeRowArgs& args, CpuIsa isa = CpuIsa::kPortable);
/// The same for args that were checked; call it only where the environment has AVX-512.
void quantize_row_avx512(const QuantizeRowArgs& args);

/// The dequantised row (values x scales) in double by plain loops: the oracle of quantize_row_cpu.
/// Reads kind, x, cols and static_scale; knows no bf16 fold, so it differs where `Folding` says.
///
/// Shapes:   out [cols].
/// Errors:   as check(), without the output pointers.
void quantize_row_ref(const QuantizeRowArgs& args, double* out);

/// Rows quantised into the public storage form, for exchange and tests.
///
/// Shapes:   codes [rows, cols] bytes; kNvfp4: [rows, cols / 2], even column in the low nibble;
///           kNone: [rows, cols] of 2 bytes (bf16).
///           scales, linear: fp32 [rows, ceil(cols / 128)] or [rows, 1] (kFp8Token); E8M0
///           [rows, ceil(cols / 32)]; E4M3 [rows, ceil(cols / 16)]; none for kNone and kFp8Tensor.
struct QuantizeCodesArgs {
  formats::ActivationQuant kind = formats::ActivationQuant::kNone;
  const float* x = nullptr;  // [rows, cols], dense
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  float static_scale = 1;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;  // fp32 scales need no alignment

  /// Errors: as QuantizeRowArgs::check(), and UsageError for an odd cols in kNvfp4.
  void check() const;
};

/// Bytes of one row of codes in that form.
std::int64_t activation_code_bytes(formats::ActivationQuant kind, std::int64_t cols);
/// Bytes of one row of scales in that form.
std::int64_t activation_scale_bytes(formats::ActivationQuant kind, std::int64_t cols);

/// Quantises rows into codes and scales; the same bits as quantize_row_cpu's values.
///
/// Errors:   as check().
void quantize_rows_to_codes(const QuantizeCodesArgs& args);

/// One row of the public storage form, to be read as quantize_row_cpu() would have left it.
///
/// Shapes:  codes, scales one row as quantize_rows_to_codes() wrote it; the rest as in
///          QuantizeRowArgs.
struct DecodeRowArgs {
  formats::ActivationQuant kind = formats::ActivationQuant::kNone;
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;  // fp32 scales need no alignment
  std::int64_t cols = 0;
  float static_scale = 1;
  std::uint16_t* values = nullptr;
  float* block_scales = nullptr;
  float* row_scale = nullptr;
};

/// The values and scales of a quantised row; the bits that quantize_row_cpu() gives for what was
/// quantised (any NaN for a NaN). Allocates nothing.
///
/// Errors:   InternalError for kF32 or a null pointer.
void decode_row_cpu(const DecodeRowArgs& args);

}  // namespace switchyard::ops
