// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/dtype.h"
#include "switchyard/core/environment.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

namespace switchyard::ops {

/// A row of T and its width.
struct RowOf {
  Dtype dtype = Dtype::kBf16;
  std::int64_t hidden = 0;
};

/// What turns a residual row into a norm.
struct NormRow {
  const float* p = nullptr;
  const void* gamma = nullptr;  // of T
  float rstd = 0, weight_bias = 0;
  float* norm = nullptr;  // rounded to T
};

/// A row of NVFP4: codes [hidden / 2], scales [ceil(hidden / 16)].
struct Nvfp4NormRow {
  const float* norm = nullptr;
  float g = 1;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
};

/// The loops over one row, built once per instruction set; all tiers give the same bits.
///
/// Shapes:  acc, p, norm: float [hidden]; other rows of T.
/// Errors:  never throw, never allocate.
struct RowKernels {
  /// acc += row.
  void (*add)(const RowOf& t, const void* row, float* acc);
  /// acc += weight * row, product and sum rounded each.
  void (*add_weighted)(const RowOf& t, const void* row, float weight, float* acc);
  /// acc = T(acc + row).
  void (*add_rounded)(const RowOf& t, const void* row, float* acc);
  /// acc = T(acc + T(weight * row)).
  void (*add_weighted_rounded)(const RowOf& t, const void* row, float weight, float* acc);
  /// acc *= factor.
  void (*scale)(float* acc, float factor, std::int64_t hidden);
  /// acc = T(acc).
  void (*round)(const RowOf& t, float* acc);
  /// row = T(acc).
  void (*store)(const RowOf& t, const float* acc, void* row);
  /// The sum of squares in the fixed tree of kRmsLanes.
  float (*sum_squares)(const float* p, std::int64_t hidden);
  /// norm = T(norm_value(..)).
  void (*normalise)(const RowOf& t, const NormRow& row);
  /// Largest magnitude; NaN when any value is.
  float (*amax)(const float* x, std::int64_t n);
  /// codes = e4m3(x * factor).
  void (*encode_e4m3)(const float* x, float factor, std::int64_t n, std::uint8_t* codes);
  /// codes = e4m3(x / scale).
  void (*encode_e4m3_divided)(const float* x, float scale, std::int64_t n, std::uint8_t* codes);
  /// Quantises a row as NVFP4.
  void (*encode_nvfp4)(const Nvfp4NormRow& row, std::int64_t hidden);
};

/// The loops of the best tier that is no higher than `isa`.
const RowKernels& row_kernels(CpuIsa isa);
/// Plain C++.
extern const RowKernels kRowKernelsPortable;
/// 256-bit.
extern const RowKernels kRowKernelsAvx2;
/// 512-bit.
extern const RowKernels kRowKernelsAvx512;

/// Memory for one row at a time: one per thread.
///
/// Shapes:  acc, p, norm [hidden]; scales [hidden], at least 4.
struct RowScratch {
  float* acc = nullptr;            // the sum of the contributions
  float* p = nullptr;              // the residual row, rounded to T
  float* norm = nullptr;           // the norm, rounded to T
  std::uint8_t* scales = nullptr;  // linear, of one row
};

/// A row of a quantised output in linear form, as a row's owner sends it.
struct QuantRow {
  std::uint8_t* codes = nullptr;   // [quant_code_bytes()]
  std::uint8_t* scales = nullptr;  // [quant_scale_bytes()]
};

/// acc = this rank's contribution to token m, in fp32; under legacy_rounding rounded to T at every
/// step.
void local_row(const AllReduceCall& call, const RowKernels& k, std::int64_t m, float* acc);
/// s.p = T(s.acc + residual); under legacy_rounding s.acc is of T already.
void residual_row(const AllReduceCall& call, const RowKernels& k, std::int64_t m,
                  const RowScratch& s);
/// s.norm = the rounded norm of s.p.
void normalise_row(const AllReduceCall& call, const RowKernels& k, const RowScratch& s);
/// Quantises s.norm.
void quantise_row(const AllReduceCall& call, const RowKernels& k, const RowScratch& s,
                  const QuantRow& out);
/// Writes what is wanted behind the residual row s.p of token m.
void norm_row(const AllReduceCall& call, const RowKernels& k, std::int64_t m, const RowScratch& s);

/// Bytes of one row's codes; 0 without a quantised output.
std::int64_t quant_code_bytes(const NormArgs& norm, std::int64_t hidden);
/// Bytes of one row's scales.
std::int64_t quant_scale_bytes(const NormArgs& norm, std::int64_t hidden);
/// Copies a quantised row to where the outputs have token m.
void place_quant_row(const NormArgs& norm, const CallShape& shape, std::int64_t m,
                     const QuantRow& row);
/// Writes 0 into the padding of the scales.
void clear_scale_padding(const NormArgs& norm, const CallShape& shape);

/// Where row m of a tensor [tokens, hidden] of T begins.
inline const void* row_of(const void* base, const CallShape& s, std::int64_t m) {
  return static_cast<const char*>(base) + m * s.hidden * std::int64_t(size_of(s.dtype));
}
/// As the other row_of().
inline void* row_of(void* base, const CallShape& s, std::int64_t m) {
  return static_cast<char*>(base) + m * s.hidden * std::int64_t(size_of(s.dtype));
}

}  // namespace switchyard::ops
