// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/wire.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "switchyard/base/check.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"

namespace switchyard::comm {
namespace {

constexpr std::int64_t kFp8Block = 128, kNvfp4Block = 16;
constexpr float kFp8Floor = 1e-4F;
constexpr float kNvfp4Range = formats::kE4m3Max * formats::kE2m1Max;
// Below it 2688 / amax could become infinite.
constexpr float kNvfp4Floor = 0x1p-100F;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::int64_t blocks(std::int64_t hidden, std::int64_t block) {
  return (hidden + block - 1) / block;
}

/// Largest magnitude; NaN when any value is.
float amax_of(const float* x, std::int64_t n) {
  float amax = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    float a = std::fabs(x[i]);
    amax = a > amax || std::isnan(a) ? a : amax;
    if (std::isnan(amax)) return kNan;
  }
  return amax;
}

/// Every code's value: a look-up costs a fraction of decoding.
template <std::size_t kCodes>
struct DecodeTable {
  explicit DecodeTable(float (*decode)(std::uint8_t)) {
    for (std::size_t c = 0; c < kCodes; ++c) values[c] = decode(std::uint8_t(c));
  }
  float values[kCodes];
};

const float* e4m3_values() {
  static const DecodeTable<256> table(formats::decode_e4m3);
  return table.values;
}

const float* e2m1_values() {
  static const DecodeTable<16> table(formats::decode_e2m1);
  return table.values;
}

// Layout: scales, then codes.
void encode_fp8(const float* x, std::int64_t hidden, std::byte* out) {
  auto* codes = reinterpret_cast<std::uint8_t*>(out) + blocks(hidden, kFp8Block) * 4;
  for (std::int64_t begin = 0, b = 0; begin < hidden; begin += kFp8Block, ++b) {
    std::int64_t n = std::min(kFp8Block, hidden - begin);
    float amax = amax_of(x + begin, n);
    // An infinity leaves no scale that could decode the others.
    float scale = std::isfinite(amax) ? std::max(amax, kFp8Floor) / formats::kE4m3Max : kNan;
    std::memcpy(out + b * 4, &scale, 4);
    for (std::int64_t i = begin; i < begin + n; ++i) codes[i] = formats::encode_e4m3(x[i] / scale);
  }
}

void add_fp8(const std::byte* row, float weight, std::int64_t hidden, float* acc) {
  const float* values = e4m3_values();
  auto* codes = reinterpret_cast<const std::uint8_t*>(row) + blocks(hidden, kFp8Block) * 4;
  for (std::int64_t begin = 0, b = 0; begin < hidden; begin += kFp8Block, ++b) {
    float scale;
    std::memcpy(&scale, row + b * 4, 4);
    std::int64_t end = std::min(begin + kFp8Block, hidden);
    for (std::int64_t i = begin; i < end; ++i) acc[i] += weight * (values[codes[i]] * scale);
  }
}

// Layout: the row's g, block scales, then pairs of codes, the even value in the low nibble.
void encode_nvfp4(const float* x, std::int64_t hidden, std::byte* out) {
  float row_amax = 0;
  for (std::int64_t i = 0; i < hidden; ++i)
    if (!std::isnan(x[i])) row_amax = std::max(row_amax, std::fabs(x[i]));
  float g = std::isinf(row_amax) ? kNan : kNvfp4Range / std::max(row_amax, kNvfp4Floor);
  std::memcpy(out, &g, 4);
  auto* scales = reinterpret_cast<std::uint8_t*>(out) + 4;
  auto* codes = scales + blocks(hidden, kNvfp4Block);
  for (std::int64_t begin = 0, b = 0; begin < hidden; begin += kNvfp4Block, ++b) {
    std::int64_t end = std::min(begin + kNvfp4Block, hidden);
    scales[b] = formats::encode_e4m3(g * amax_of(x + begin, end - begin) / formats::kE2m1Max);
    float decoded = formats::decode_e4m3(scales[b]);
    float up = decoded == 0 ? 0 : g / decoded;
    for (std::int64_t i = begin; i < end; i += 2) {
      std::uint8_t low = formats::encode_e2m1(x[i] * up),
                   high = formats::encode_e2m1(x[i + 1] * up);
      codes[i / 2] = std::uint8_t(low | high << 4);
    }
  }
}

void add_nvfp4(const std::byte* row, float weight, std::int64_t hidden, float* acc) {
  const float* values = e2m1_values();
  float g;
  std::memcpy(&g, row, 4);
  auto* scales = reinterpret_cast<const std::uint8_t*>(row) + 4;
  auto* codes = scales + blocks(hidden, kNvfp4Block);
  for (std::int64_t begin = 0, b = 0; begin < hidden; begin += kNvfp4Block, ++b) {
    float scale = formats::decode_e4m3(scales[b]) / g;
    std::int64_t end = std::min(begin + kNvfp4Block, hidden);
    for (std::int64_t i = begin; i < end; i += 2) {
      const std::uint8_t pair = codes[i / 2];
      acc[i] += weight * (values[pair & 15] * scale);
      acc[i + 1] += weight * (values[pair >> 4] * scale);
    }
  }
}

}  // namespace

std::string_view to_string(Wire w) {
  switch (w) {
    case Wire::kF32:
      return "f32";
    case Wire::kBf16:
      return "bf16";
    case Wire::kFp16:
      return "fp16";
    case Wire::kFp8:
      return "fp8";
    case Wire::kNvfp4:
      return "nvfp4";
  }
  throw InternalError(cat("wire form ", int(w), " has no text"));
}

Wire to_wire(CombinePrecision precision, Dtype dtype) {
  if (precision == CombinePrecision::kFp8) return Wire::kFp8;
  if (precision == CombinePrecision::kNvfp4) return Wire::kNvfp4;
  return dtype == Dtype::kF32 ? Wire::kF32 : dtype == Dtype::kBf16 ? Wire::kBf16 : Wire::kFp16;
}

std::int64_t wire_bytes(Wire w, std::int64_t hidden) {
  switch (w) {
    case Wire::kF32:
      return hidden * 4;
    case Wire::kBf16:
    case Wire::kFp16:
      return hidden * 2;
    case Wire::kFp8:
      return hidden + blocks(hidden, kFp8Block) * 4;
    case Wire::kNvfp4:
      return 4 + blocks(hidden, kNvfp4Block) + (hidden + 1) / 2;
  }
  throw InternalError(cat("wire form ", int(w), " has no size"));
}

void encode_row(Wire w, const float* x, std::int64_t hidden, std::byte* out) {
  auto* halves = reinterpret_cast<std::uint16_t*>(out);
  switch (w) {
    case Wire::kF32:
      std::memcpy(out, x, std::size_t(hidden) * 4);
      return;
    case Wire::kBf16:
      for (std::int64_t i = 0; i < hidden; ++i) halves[i] = float_to_bf16(x[i]);
      return;
    case Wire::kFp16:
      for (std::int64_t i = 0; i < hidden; ++i) halves[i] = float_to_fp16(x[i]);
      return;
    case Wire::kFp8:
      encode_fp8(x, hidden, out);
      return;
    case Wire::kNvfp4:
      ensure(hidden % 2 == 0, "an nvfp4 row of ", hidden, " values");
      encode_nvfp4(x, hidden, out);
      return;
  }
}

void add_row(Wire w, const std::byte* row, float weight, std::int64_t hidden, float* acc) {
  auto* halves = reinterpret_cast<const std::uint16_t*>(row);
  auto* floats = reinterpret_cast<const float*>(row);
  switch (w) {
    case Wire::kF32:
      for (std::int64_t i = 0; i < hidden; ++i) acc[i] += weight * floats[i];
      return;
    case Wire::kBf16:
      for (std::int64_t i = 0; i < hidden; ++i) acc[i] += weight * bf16_to_float(halves[i]);
      return;
    case Wire::kFp16:
      for (std::int64_t i = 0; i < hidden; ++i) acc[i] += weight * fp16_to_float(halves[i]);
      return;
    case Wire::kFp8:
      add_fp8(row, weight, hidden, acc);
      return;
    case Wire::kNvfp4:
      add_nvfp4(row, weight, hidden, acc);
      return;
  }
}

}  // namespace switchyard::comm
