// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/finite.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "switchyard/base/check.h"
#include "switchyard/formats/e4m3.h"

namespace switchyard::checkpoint {
namespace {

/// The first of `count` elements, `step` bytes apart, whose bits under `mask` are all set; -1 when
/// there is none. Every format with such values has them there and nothing else.
template <class Bits>
std::int64_t first_special(const std::byte* at, std::int64_t count, std::int64_t step, Bits mask) {
  auto special = [&](std::int64_t i) {
    Bits bits;
    std::memcpy(&bits, at + i * step, sizeof bits);
    return Bits(bits & mask) == mask;
  };
  if (step == std::int64_t(sizeof(Bits))) {  // no early exit, so that it vectorises
    unsigned any = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      Bits bits;
      std::memcpy(&bits, at + i * std::int64_t(sizeof bits), sizeof bits);
      any |= unsigned(Bits(bits & mask) == mask);
    }
    if (any == 0) return -1;
  }
  for (std::int64_t i = 0; i < count; ++i)
    if (special(i)) return i;
  return -1;
}

std::int64_t first_special(TensorType type, const std::byte* at, std::int64_t count,
                           std::int64_t step) {
  switch (type) {
    case TensorType::kBf16:
      return first_special<std::uint16_t>(at, count, step, 0x7f80);
    case TensorType::kF16:
      return first_special<std::uint16_t>(at, count, step, 0x7c00);
    case TensorType::kF32:
      return first_special<std::uint32_t>(at, count, step, 0x7f800000);
    case TensorType::kF8E4m3:
      return first_special<std::uint8_t>(at, count, step, 0x7f);
    default:  // packed 4-bit codes have no such value
      return -1;
  }
}

float value_at(TensorType type, const std::byte* at) {
  return type == TensorType::kF8E4m3 ? formats::decode_e4m3(std::uint8_t(*at))
                                     : load_float(type, at, 0);
}

}  // namespace

std::optional<std::pair<std::int64_t, std::int64_t>> first_special(const Plane& p) {
  const bool by_rows = p.col_stride <= p.row_stride || p.rows == 1;
  const std::int64_t lines = by_rows ? p.rows : p.cols, length = by_rows ? p.cols : p.rows;
  const std::int64_t line_step = by_rows ? p.row_stride : p.col_stride;
  const std::int64_t step = by_rows ? p.col_stride : p.row_stride;
  for (std::int64_t line = 0; line < lines; ++line) {
    const std::int64_t at = first_special(p.type, p.base + line * line_step, length, step);
    if (at >= 0) return by_rows ? std::pair{line, at} : std::pair{at, line};
  }
  return {};
}

namespace {

std::optional<Finding> find_bad_value(const WeightSource& w, std::string_view which) {
  const auto at = first_special(w.codes);
  if (!at) return {};
  const auto [row, col] = *at;
  const float value =
      value_at(w.codes.type, w.codes.base + row * w.codes.row_stride + col * w.codes.col_stride);
  return Finding{
      FindingKind::kBadScale, w.name,
      cat("tensor '", w.name, "'", which.empty() ? "" : ", ", which, ": the weight at row ", row,
          ", column ", col, " is ", value, ", must be finite; the checkpoint is damaged")};
}

}  // namespace

std::vector<Finding> find_bad_values(const ExpertSources& e, std::string_view which) {
  std::vector<Finding> out;
  for (const WeightSource* w : {e.gate ? &*e.gate : nullptr, &e.up, &e.down})
    if (w != nullptr)
      if (std::optional<Finding> found = find_bad_value(*w, which))
        out.push_back(*std::move(found));
  return out;
}

bool check_values(BlockReader& reader, const WeightSource& w) {
  std::optional<Finding> found = find_bad_value(w, "");
  if (found) reader.fault(found->kind, found->tensor, found->text);
  return !found;
}

bool check_values(BlockReader& reader, const ExpertSources& expert) {
  const std::vector<Finding> found = find_bad_values(expert, "");
  for (const Finding& f : found) reader.fault(f.kind, f.tensor, f.text);
  return found.empty();
}

bool check_floats(BlockReader& reader, const Tensor& t, const std::string& name) {
  const std::int64_t i = first_special(t.type, t.bytes.data(), t.elements(), bits_of(t.type) / 8);
  if (i < 0) return true;
  reader.fault(
      FindingKind::kBadScale, name,
      cat("tensor '", name, "': element ", i, " is ", load_float(t.type, t.bytes.data(), i),
          ", must be finite; the checkpoint is damaged"));
  return false;
}

}  // namespace switchyard::checkpoint
