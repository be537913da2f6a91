// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace switchyard::formats {

/// How one weight is coded.
enum class Element : std::uint8_t { kF32, kBf16, kFp16, kE4m3, kE2m1 };
/// How one block scale is coded; every scale multiplies.
enum class ScaleType : std::uint8_t { kNone, kF32, kE8m0, kE4m3 };

/// "f32", "bf16", "fp16", "e4m3" or "e2m1".
std::string_view to_string(Element e);
/// "none", "f32", "e8m0" or "e4m3".
std::string_view to_string(ScaleType s);
/// Bits of one coded weight: 32, 16, 8 or 4.
constexpr int bits_of(Element e) {
  return e == Element::kF32 ? 32 : e == Element::kE4m3 ? 8 : e == Element::kE2m1 ? 4 : 16;
}
/// Bytes of one scale: 0, 4, 1 or 1.
constexpr int bytes_of(ScaleType s) {
  return s == ScaleType::kNone ? 0 : s == ScaleType::kF32 ? 4 : 1;
}

/// The storage geometry of a weight matrix: what a format is, apart from the values.
///
/// Units:   block_rows and block_cols in elements; 0 means "the whole extent" (per tensor, per
/// channel).
struct WeightLayout {
  Element element = Element::kBf16;
  ScaleType scale = ScaleType::kNone;
  std::int64_t block_rows = 1;
  std::int64_t block_cols = 0;
  bool global_scale = false;  // a second, fp32 scale per matrix
  bool power_of_two =
      false;  // fp32 block scales are rounded up to powers of two (UE8M0 checkpoints)

  bool operator==(const WeightLayout&) const = default;
  /// Scale rows of a matrix of `rows` rows (ceiling division, a partial block is a block); 0 when
  /// the layout has no block scales.
  std::int64_t scale_rows(std::int64_t rows) const;
  /// Scale columns of a matrix of `cols` columns, in the same way.
  std::int64_t scale_cols(std::int64_t cols) const;
  /// Bytes of one row of codes (4-bit rows end on a byte).
  std::int64_t row_bytes(std::int64_t cols) const;
  /// Stored bytes of codes plus scales (plus 4 for a global scale).
  std::int64_t stored_bytes(std::int64_t rows, std::int64_t cols) const;
};

/// What a format does to the activations in front of a GEMM.
enum class ActivationQuant : std::uint8_t {
  kNone,              // hidden dtype as it is (bf16 or fp16), rounded once
  kF32,               // no rounding at all (the f32 mode)
  kFp8Block128,       // E4M3, fp32 scale per 1 x 128, amax floored at 1e-4
  kFp8Block128Ue8m0,  // the same with the scale rounded up to a power of two
  kFp8Token,          // E4M3, fp32 scale per row, amax floored at 1e-4
  kFp8Tensor,         // E4M3, one static scale
  kMxfp8,             // E4M3, E8M0 scale per 32
  kNvfp4              // E2M1, E4M3 scale per 16, one static global scale
};

/// "none", "f32", "fp8_1x128", "fp8_1x128_ue8m0", "fp8_token", "fp8_tensor", "mxfp8" or "nvfp4".
std::string_view to_string(ActivationQuant q);
/// True for the kinds whose scale comes from calibration: kFp8Tensor and kNvfp4.
constexpr bool is_static(ActivationQuant q) {
  return q == ActivationQuant::kFp8Tensor || q == ActivationQuant::kNvfp4;
}

/// One weight matrix in its stored form, canonical order: [rows = out, cols = in], row-major,
/// scales linear, even column in the low nibble. Codes and scales are borrowed from a mapping, or
/// from `storage` when they had to be transposed, de-interleaved or requantised.
///
/// Shapes:  codes [rows, cols] (E2M1: cols/2 bytes a row, cols even); scales [scale_rows,
/// scale_cols].
struct Matrix {
  WeightLayout layout;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::span<const std::byte> codes;
  std::span<const std::byte> scales;
  float global_scale = 1;               // multiplies; 1 when the layout has none
  std::optional<float> input_scale;     // static activation scale; multiplies (modelopt convention)
  std::shared_ptr<const void> storage;  // keeps alive what codes and scales point into

  /// Decoded weight at (r, c), exact in double (code x block scale x global scale).
  ///
  /// Errors:  InternalError outside the matrix.
  double value(std::int64_t r, std::int64_t c) const;
  /// Decodes row r into `out` [cols] as float (one rounding where the product is inexact).
  ///
  /// Errors:  InternalError for a row outside the matrix or an `out` of another length.
  void decode_row(std::int64_t r, std::span<float> out) const;
  /// Checks sizes, and that no scale is NaN, infinite or negative (a set sign bit, -0 included).
  /// A zero block or global scale is legal, an input scale is positive. NaN elements are legal as
  /// they are in bf16, and reach the output as NaN.
  ///
  /// Errors:  UsageError naming `what`, and the scale's row, column and value; InternalError for a
  ///          global scale that the layout does not have.
  void check(std::string_view what) const;
};

/// Quantises (or rounds) a decoded matrix into `layout`; the quantisers are those of the formats'
/// headers. Global scale: amax of the finite values / 2688, and g = 1 / that, both rounded in fp32.
///
/// Layouts: f32, bf16, fp16 without scales; e4m3 with f32 or e8m0 scales; e2m1 with e8m0 scales, or
///          with e4m3 scales and a global one. Any block extents (even block_cols for 4 bits).
/// Shapes:  values [rows, cols] row-major.
/// Errors:  UsageError for an odd cols in a 4-bit layout, for another layout, or a wrong length.
Matrix quantize_matrix(std::span<const float> values, std::int64_t rows, std::int64_t cols,
                       const WeightLayout& layout);
/// The same with the amax that the global scale is made from: for a part of a larger matrix.
Matrix quantize_matrix(std::span<const float> values, std::int64_t rows, std::int64_t cols,
                       const WeightLayout& layout, float global_amax);

/// Decodes `source` and quantises it into `layout`, some rows at a time: bit for bit what
/// quantize_matrix() makes of the whole decoded matrix, without ever holding one. Drops the input
/// scale.
///
/// Errors:  those of quantize_matrix().
Matrix convert_matrix(const Matrix& source, const WeightLayout& layout);

}  // namespace switchyard::formats
