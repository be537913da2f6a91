// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "switchyard/base/dtype.h"
#include "switchyard/ops/allreduce_norm/allreduce_peers.h"

/// Units of eight elements: how a thread of the CUDA twin holds, reads and writes them. For .cu
/// files only.
namespace switchyard::ops::fused {

/// Elements of a unit.
inline constexpr int kUnit = int(kAllReduceUnit);

/// Both halves' all ones where the halves of `a` and `b` are the same.
__device__ inline std::uint32_t same_halves(std::uint32_t a, std::uint32_t b) {
  return __vcmpeq2(a, b);
}

/// The element types: `kWords` words to a unit, exact widening, one rounding to nearest even.
/// plus_zero() turns -0 into +0 and leaves the rest; hide_zero() turns -0 into the negative NaN,
/// which arithmetic never gives, and show_zero() turns that back.
struct F32 {
  /// Words of a unit, and elements of a word.
  static constexpr int kWords = 8, kPerWord = 1;
  /// As it lies in memory.
  using Bits = float;
  __device__ static float round(float x) { return x; }
  __device__ static void widen(std::uint32_t w, float* x) { x[0] = __uint_as_float(w); }
  __device__ static std::uint32_t narrow(const float* x) { return __float_as_uint(x[0]); }
  __device__ static std::uint32_t plus_zero(std::uint32_t w) {
    return w == kNothingArrived ? 0 : w;
  }
  __device__ static std::uint32_t hide_zero(std::uint32_t w) {
    return w == kNothingArrived ? ~0U : w;
  }
  __device__ static std::uint32_t show_zero(std::uint32_t w) {
    return w == ~0U ? kNothingArrived : w;
  }
  __device__ static float load(Bits b) { return b; }
  __device__ static Bits store(float x) { return x; }
};

/// What both 16-bit types share: how the halves of a word are told apart.
struct Halves {
  /// Words of a unit, and elements of a word.
  static constexpr int kWords = 4, kPerWord = 2;
  /// As it lies in memory.
  using Bits = std::uint16_t;
  __device__ static std::uint32_t hide_zero(std::uint32_t w) {
    return w | (same_halves(w, 0x80008000U) & 0x7fff7fffU);
  }
  __device__ static std::uint32_t show_zero(std::uint32_t w) {
    return w & ~(same_halves(w, ~0U) & 0x7fff7fffU);
  }
  __device__ static std::uint32_t plus_zero(std::uint32_t w) {
    return w & ~(same_halves(w, 0x80008000U) & 0x80008000U);
  }
};

/// bfloat16.
struct Bf16 : Halves {
  __device__ static float round(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
  /// Both elements of a word; exact.
  __device__ static void widen(std::uint32_t w, float* x) {
    x[0] = __uint_as_float(w << 16);
    x[1] = __uint_as_float(w & 0xffff0000U);
  }
  /// Two elements, each rounded once.
  __device__ static std::uint32_t narrow(const float* x) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x[0], x[1]);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  __device__ static float load(Bits b) { return bf16_to_float(b); }
  __device__ static Bits store(float x) { return float_to_bf16(x); }
};

/// IEEE half.
struct Fp16 : Halves {
  __device__ static float round(float x) { return __half2float(__float2half_rn(x)); }
  /// Both elements of a word; exact.
  __device__ static void widen(std::uint32_t w, float* x) {
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(w));
    x[0] = pair.x;
    x[1] = pair.y;
  }
  /// Two elements, each rounded once.
  __device__ static std::uint32_t narrow(const float* x) {
    const __half2 pair = __floats2half2_rn(x[0], x[1]);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  __device__ static float load(Bits b) { return fp16_to_float(b); }
  __device__ static Bits store(float x) { return float_to_fp16(x); }
};

/// A unit of T.
template <class T>
struct Unit {
  std::uint32_t w[T::kWords];
};

/// A unit's elements; exact.
template <class T>
__device__ inline void widen(const Unit<T>& u, float (&x)[kUnit]) {
#pragma unroll
  for (int i = 0; i < T::kWords; ++i) T::widen(u.w[i], x + i * T::kPerWord);
}

/// Eight elements, each rounded once.
template <class T>
__device__ inline Unit<T> narrow(const float (&x)[kUnit]) {
  Unit<T> u;
#pragma unroll
  for (int i = 0; i < T::kWords; ++i) u.w[i] = T::narrow(x + i * T::kPerWord);
  return u;
}

/// Eight +0.
template <class T>
__device__ inline Unit<T> zeros() {
  Unit<T> u;
#pragma unroll
  for (int i = 0; i < T::kWords; ++i) u.w[i] = 0;
  return u;
}

/// Rows of T in a tensor of the caller's. `vectors`: rows and base allow 16-byte accesses.
struct Rows {
  std::int64_t hidden;
  bool vectors;
};

/// load_unit() and store_unit() element by element: out of line, as few rows need them.
template <class T>
__device__ __noinline__ Unit<T> load_elements(const typename T::Bits* from, std::int64_t count) {
  float x[kUnit];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) x[i] = i < count ? T::load(from[i]) : 0.0F;
  return narrow<T>(x);
}
/// As load_elements(), for writing.
template <class T>
__device__ __noinline__ void store_elements(typename T::Bits* to, std::int64_t count,
                                            Unit<T> unit) {
  float x[kUnit];
  widen(unit, x);
#pragma unroll
  for (int i = 0; i < kUnit; ++i)
    if (i < count) to[i] = T::store(x[i]);
}

/// Unit `u` of row `m`, where rows.vectors.
template <class T>
__device__ inline Unit<T> load_vectors(const Rows& rows, const void* base, std::int64_t m, int u) {
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const typename T::Bits*>(base) +
                                                    m * rows.hidden + u * kUnit);
  Unit<T> out;
#pragma unroll
  for (int i = 0; i < T::kWords; i += 4) {
    const uint4 v = from[i / 4];
    out.w[i] = v.x, out.w[i + 1] = v.y, out.w[i + 2] = v.z, out.w[i + 3] = v.w;
  }
  return out;
}

/// Unit `u` of row `m`; 0 beyond the row's end.
template <class T>
__device__ inline Unit<T> load_unit(const Rows& rows, const void* base, std::int64_t m, int u) {
  if (rows.vectors) return load_vectors<T>(rows, base, m, u);
  const std::int64_t first = std::int64_t(u) * kUnit;
  return load_elements<T>(static_cast<const typename T::Bits*>(base) + m * rows.hidden + first,
                          rows.hidden - first);
}

/// Writes unit `u` of row `m`, as far as the row goes.
template <class T>
__device__ inline void store_unit(const Rows& rows, void* base, std::int64_t m, int u,
                                  const Unit<T>& unit) {
  const std::int64_t first = m * rows.hidden + std::int64_t(u) * kUnit;
  auto* to = static_cast<typename T::Bits*>(base) + first;
  if (rows.vectors) {
#pragma unroll
    for (int i = 0; i < T::kWords; i += 4)
      reinterpret_cast<uint4*>(to)[i / 4] =
          make_uint4(unit.w[i], unit.w[i + 1], unit.w[i + 2], unit.w[i + 3]);
    return;
  }
  store_elements<T>(to, rows.hidden - std::int64_t(u) * kUnit, unit);
}

}  // namespace switchyard::ops::fused
