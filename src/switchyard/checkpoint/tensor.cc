// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/tensor.h"

#include <array>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/base/dtype.h"
#include "switchyard/formats/e8m0.h"

namespace switchyard::checkpoint {
namespace {

struct TypeRow {
  std::string_view name;
  int bits;
};

constexpr std::array<TypeRow, 20> kTypes = {
    {{"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
     {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
     {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
     {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};
static_assert(std::size_t(TensorType::kU64) + 1 == kTypes.size(), "one row per type");

template <class T>
T load(const std::byte* base, std::int64_t i) {
  T value;
  std::memcpy(&value, base + i * std::int64_t(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

std::string_view to_string(TensorType type) { return kTypes[std::size_t(type)].name; }

std::optional<TensorType> to_tensor_type(std::string_view word) {
  for (std::size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].name == word) return TensorType(i);
  return {};
}

int bits_of(TensorType type) { return kTypes[std::size_t(type)].bits; }

std::int64_t Tensor::elements() const {
  std::int64_t n = 1;
  for (std::int64_t d : shape) n *= d;
  return n;
}

std::string show_shape(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += cat(i ? ", " : "", shape[i]);
  return text + "]";
}

float load_float(TensorType type, const std::byte* base, std::int64_t i) {
  switch (type) {
    case TensorType::kF32:
      return load<float>(base, i);
    case TensorType::kBf16:
      return bf16_to_float(load<std::uint16_t>(base, i));
    case TensorType::kF16:
      return fp16_to_float(load<std::uint16_t>(base, i));
    case TensorType::kF8E8m0:
      return formats::decode_e8m0(load<std::uint8_t>(base, i));
    default:
      throw InternalError(cat("no float reader for ", to_string(type)));
  }
}

std::vector<float> read_floats(const Tensor& t, std::string_view what) {
  bool known =
      t.type == TensorType::kF32 || t.type == TensorType::kBf16 || t.type == TensorType::kF16;
  require(known, what, ": type ", to_string(t.type),
          " cannot be read here; store it as F32, BF16 or F16");
  std::vector<float> out(std::size_t(t.elements()));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = load_float(t.type, t.bytes.data(), std::int64_t(i));
  return out;
}

std::vector<std::int32_t> read_ids(const Tensor& t, std::int64_t limit, std::string_view what) {
  bool wide = t.type == TensorType::kI64;
  require(wide || t.type == TensorType::kI32, what, ": type ", to_string(t.type),
          " cannot hold ids; store it as I64 or I32");
  std::vector<std::int32_t> out(std::size_t(t.elements()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::int64_t id = wide ? load<std::int64_t>(t.bytes.data(), std::int64_t(i))
                           : load<std::int32_t>(t.bytes.data(), std::int64_t(i));
    require(id >= 0 && id < limit, what, ": element ", i, " is ", id, ", must be in 0 .. ",
            limit - 1, "; the table does not belong to this model");
    out[i] = std::int32_t(id);
  }
  return out;
}

}  // namespace switchyard::checkpoint
