// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "switchyard/formats/e2m1.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm_math.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm_rows.h"

/// The bodies of RowKernels, included once by each instruction set's source, which gives them its
/// own local copies. Loops are free of branches on data, so that every compiler vectorises them.
namespace switchyard::ops {
namespace {

/// `yes` where the mask is all ones.
[[gnu::always_inline]] inline std::uint32_t pick(bool condition, std::uint32_t yes,
                                                 std::uint32_t no) {
  const std::uint32_t mask = 0u - std::uint32_t(condition);
  return (yes & mask) | (no & ~mask);
}

/// The element types: storage, exact widening, one rounding to nearest even.
struct F32 {
  using Bits = float;
  [[gnu::always_inline]] static float load(float x) { return x; }
  [[gnu::always_inline]] static float store(float x) { return x; }
  [[gnu::always_inline]] static float round(float x) { return x; }
};

struct Bf16 {
  using Bits = std::uint16_t;
  [[gnu::always_inline]] static float load(std::uint16_t b) {
    return float_of(std::uint32_t(b) << 16);
  }
  [[gnu::always_inline]] static std::uint32_t rounded(float x) {
    const std::uint32_t bits = bits_of(x);
    const bool nan = std::int32_t(bits & 0x7fffffffu) > 0x7f800000;
    return pick(nan, bits | 0x400000u, bits + 0x7fffu + (bits >> 16 & 1u));
  }
  [[gnu::always_inline]] static std::uint16_t store(float x) {
    return std::uint16_t(rounded(x) >> 16);
  }
  [[gnu::always_inline]] static float round(float x) { return float_of(rounded(x) & 0xffff0000u); }
};

struct Fp16 {
  using Bits = std::uint16_t;
  [[gnu::always_inline]] static float load(std::uint16_t b) {
    const std::uint32_t magnitude = b & 0x7fffu;
    // Subnormals come from an integer, which no flushing to zero can lose.
    const std::uint32_t small = bits_of(float(std::int32_t(magnitude)) * 0x1p-24f);
    std::uint32_t bits = pick(magnitude < 0x400u, small, (magnitude << 13) + (112u << 23));
    bits = pick(magnitude >= 0x7c00u, (magnitude << 13) | 0x7f800000u, bits);
    return float_of(bits | std::uint32_t(b & 0x8000u) << 16);
  }
  [[gnu::always_inline]] static std::uint16_t store(float x) {
    const std::uint32_t bits = bits_of(x), m = bits & 0x7fffffffu;
    const std::uint32_t normal = (m + 0xc8000fffu + (m >> 13 & 1u)) >> 13;
    const std::uint32_t clamped = pick(m < 0x38800000u, m, 0u);
    const std::uint32_t small = bits_of(float_of(clamped) + 0.5f) - 0x3f000000u;
    std::uint32_t half = pick(m < 0x38800000u, small, normal);
    half = pick(m >= 0x477ff000u, 0x7c00u, half);
    half = pick(m > 0x7f800000u, 0x7e00u, half);
    return std::uint16_t(half | (bits >> 16 & 0x8000u));
  }
  [[gnu::always_inline]] static float round(float x) { return load(store(x)); }
};

/// Calls f with the element type of `t`.
template <class F>
[[gnu::always_inline]] inline void with_type(Dtype t, F&& f) {
  if (t == Dtype::kBf16) return f(Bf16{});
  if (t == Dtype::kFp16) return f(Fp16{});
  f(F32{});
}

inline void add(const RowOf& t, const void* row, float* acc) {
  with_type(t.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* x = static_cast<const typename T::Bits*>(row);
    for (std::int64_t i = 0; i < t.hidden; ++i) acc[i] = acc[i] + T::load(x[i]);
  });
}

inline void add_weighted(const RowOf& t, const void* row, float weight, float* acc) {
  with_type(t.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* x = static_cast<const typename T::Bits*>(row);
    for (std::int64_t i = 0; i < t.hidden; ++i) acc[i] = acc[i] + weight * T::load(x[i]);
  });
}

inline void add_rounded(const RowOf& t, const void* row, float* acc) {
  with_type(t.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* x = static_cast<const typename T::Bits*>(row);
    for (std::int64_t i = 0; i < t.hidden; ++i) acc[i] = T::round(acc[i] + T::load(x[i]));
  });
}

inline void add_weighted_rounded(const RowOf& t, const void* row, float weight, float* acc) {
  with_type(t.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* x = static_cast<const typename T::Bits*>(row);
    for (std::int64_t i = 0; i < t.hidden; ++i)
      acc[i] = T::round(acc[i] + T::round(weight * T::load(x[i])));
  });
}

inline void scale(float* acc, float factor, std::int64_t hidden) {
  for (std::int64_t i = 0; i < hidden; ++i) acc[i] *= factor;
}

inline void round_row(const RowOf& t, float* acc) {
  with_type(t.dtype, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t i = 0; i < t.hidden; ++i) acc[i] = T::round(acc[i]);
  });
}

inline void store(const RowOf& t, const float* acc, void* row) {
  with_type(t.dtype, [&](auto type) {
    using T = decltype(type);
    auto* out = static_cast<typename T::Bits*>(row);
    for (std::int64_t i = 0; i < t.hidden; ++i) out[i] = T::store(acc[i]);
  });
}

inline float sum_squares(const float* p, std::int64_t hidden) {
  alignas(64) float lanes[kRmsLanes] = {};
  const std::int64_t whole = hidden / kRmsLanes * kRmsLanes;
  for (std::int64_t i = 0; i < whole; i += kRmsLanes)
    for (std::int64_t j = 0; j < kRmsLanes; ++j) lanes[j] = lanes[j] + p[i + j] * p[i + j];
  for (std::int64_t i = whole; i < hidden; ++i) lanes[i - whole] = lanes[i - whole] + p[i] * p[i];
  for (std::int64_t half = kRmsLanes / 2; half > 0; half /= 2)
    for (std::int64_t j = 0; j < half; ++j) lanes[j] = lanes[j] + lanes[j + half];
  return lanes[0];
}

inline void normalise(const RowOf& t, const NormRow& row) {
  const float rstd = row.rstd, bias = row.weight_bias;
  const float* p = row.p;
  float* out = row.norm;
  with_type(t.dtype, [&](auto type) {
    using T = decltype(type);
    const auto* gamma = static_cast<const typename T::Bits*>(row.gamma);
    for (std::int64_t i = 0; i < t.hidden; ++i)
      out[i] = T::round(norm_value(p[i], rstd, T::load(gamma[i]), bias));
  });
}

/// The bits of magnitudes are in the magnitudes' order, with NaN above infinity.
inline float amax(const float* x, std::int64_t n) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t m = bits_of(x[i]) & 0x7fffffffu;
    most = most > m ? most : m;
  }
  return float_of(most);
}

inline void encode_e4m3(const float* x, float factor, std::int64_t n, std::uint8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = formats::encode_e4m3(x[i] * factor);
}

inline void encode_e4m3_divided(const float* x, float scale, std::int64_t n, std::uint8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) codes[i] = formats::encode_e4m3(x[i] / scale);
}

inline void encode_nvfp4(const Nvfp4NormRow& row, std::int64_t hidden) {
  constexpr std::int64_t kBlock = 16;
  for (std::int64_t begin = 0, b = 0; begin < hidden; begin += kBlock, ++b) {
    const std::int64_t n = hidden - begin < kBlock ? hidden - begin : kBlock;
    const float* x = row.norm + begin;
    row.scales[b] = nvfp4_norm_scale(amax(x, n), row.g);
    const float decoded = formats::decode_e4m3(row.scales[b]);
    const float up = decoded == 0.0f ? 0.0f : row.g / decoded;
    for (std::int64_t i = 0; i < n; i += 2)
      row.codes[(begin + i) / 2] =
          std::uint8_t(formats::encode_e2m1(x[i] * up) | formats::encode_e2m1(x[i + 1] * up) << 4);
  }
}

/// The table of the source that includes this.
constexpr RowKernels make_row_kernels() {
  return {.add = add,
          .add_weighted = add_weighted,
          .add_rounded = add_rounded,
          .add_weighted_rounded = add_weighted_rounded,
          .scale = scale,
          .round = round_row,
          .store = store,
          .sum_squares = sum_squares,
          .normalise = normalise,
          .amax = amax,
          .encode_e4m3 = encode_e4m3,
          .encode_e4m3_divided = encode_e4m3_divided,
          .encode_nvfp4 = encode_nvfp4};
}

}  // namespace
}  // namespace switchyard::ops
