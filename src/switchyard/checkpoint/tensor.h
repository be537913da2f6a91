// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::checkpoint {

/// Element types of the safetensors container.
enum class TensorType : std::uint8_t {
  kBool,
  kF4,
  kF6E2m3,
  kF6E3m2,
  kU8,
  kI8,
  kF8E5m2,
  kF8E4m3,
  kF8E8m0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64
};

/// The container's spelling, e.g. "F8_E4M3".
std::string_view to_string(TensorType type);
/// Inverse of to_string(); nothing for an unknown word.
std::optional<TensorType> to_tensor_type(std::string_view word);
/// Bits of one element: 4 to 64.
int bits_of(TensorType type);

/// One tensor of a mapped file; borrows, so the file must outlive it.
///
/// Shapes:  row-major; [] is a scalar; a dimension may be 0.
/// Units:   bytes may start at any address: copy before reading as a wider type.
struct Tensor {
  TensorType type = TensorType::kU8;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;

  /// Number of elements (1 for a scalar).
  std::int64_t elements() const;
};

/// "[16, 128]", or "[]" for a scalar.
std::string show_shape(std::span<const std::int64_t> shape);

/// Elements of an F32, BF16 or F16 tensor as float; exact.
/// Errors: UsageError naming `what` for another type.
std::vector<float> read_floats(const Tensor& t, std::string_view what);
/// Elements of an I32 or I64 tensor.
/// Errors: UsageError naming `what` for another type or a value outside [0, limit).
std::vector<std::int32_t> read_ids(const Tensor& t, std::int64_t limit, std::string_view what);
/// Unaligned element `i` of an F32, BF16, F16 or F8_E8M0 tensor's bytes; exact.
float load_float(TensorType type, const std::byte* base, std::int64_t i);

}  // namespace switchyard::checkpoint
