// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "switchyard/base/arena.h"
#include "switchyard/base/check.h"
#include "switchyard/base/device.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/version.h"

namespace switchyard {
namespace {

constexpr int kNumCodes = 1 << 16;

TEST(Dtype, EveryBf16CodeComesBack) {
  for (int code = 0; code < kNumCodes; ++code) {
    float value = bf16_to_float(std::uint16_t(code));
    int back = float_to_bf16(value);
    if (std::isnan(value)) {
      EXPECT_EQ(back, code | 0x40) << code;  // quieted, payload kept
    } else {
      EXPECT_EQ(back, code);
    }
  }
}

TEST(Dtype, EveryFp16CodeComesBack) {
  for (int code = 0; code < kNumCodes; ++code) {
    float value = fp16_to_float(std::uint16_t(code));
    int back = float_to_fp16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(fp16_to_float(std::uint16_t(back)))) << code;
      EXPECT_EQ(back & 0x8000, code & 0x8000) << code;
    } else {
      EXPECT_EQ(back, code);
    }
  }
}

TEST(Dtype, Fp16ValuesAreThoseOfTheFormula) {
  for (int code = 0; code < kNumCodes; ++code) {
    int exponent = (code >> 10) & 0x1f, mantissa = code & 0x3ff;
    if (exponent == 0x1f) continue;
    double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(double(fp16_to_float(std::uint16_t(code))), code & 0x8000 ? -magnitude : magnitude);
  }
}

/// Halfway between two neighbours goes to the even one, a hair beside it to the nearer one.
template <class Decode, class Encode>
void check_ties(Decode decode, Encode encode, int last_finite) {
  for (int code = 0; code < last_finite; ++code) {
    float low = decode(std::uint16_t(code)), high = decode(std::uint16_t(code + 1));
    float middle = low + (high - low) / 2;
    int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(encode(middle), even) << code;
    EXPECT_EQ(encode(std::nextafter(middle, low)), code) << code;
    EXPECT_EQ(encode(std::nextafter(middle, high)), code + 1) << code;
    EXPECT_EQ(encode(-middle), even | 0x8000) << code;
  }
}

TEST(Dtype, TiesGoToEven) {
  check_ties(fp16_to_float, float_to_fp16, 0x7bff);
  // Below the normal range of float the midpoint itself cannot be told apart from its neighbours.
  check_ties([](std::uint16_t c) { return bf16_to_float(std::uint16_t(c + 0x80)); },
             [](float f) { return float_to_bf16(f) - 0x80; }, 0x7f7f - 0x80);
}

TEST(Dtype, OverflowGoesToInfinity) {
  EXPECT_EQ(float_to_fp16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_fp16(-65520.0f), 0xfc00);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Dtype, ElementsOfEveryType) {
  for (Dtype type : {Dtype::kF32, Dtype::kBf16, Dtype::kFp16}) {
    std::vector<std::byte> storage(3 * size_of(type), std::byte{0xff});
    store_element(type, storage.data(), 1, -2.5f);
    EXPECT_EQ(load_element(type, storage.data(), 1), -2.5f);
    EXPECT_TRUE(std::isnan(load_element(type, storage.data(), 0)));
    EXPECT_TRUE(std::isnan(load_element(type, storage.data(), 2)));
    EXPECT_EQ(to_dtype(to_string(type)), type);
  }
  EXPECT_THROW(to_dtype("int8"), UsageError);
}

TEST(Device, NamesAndTheirInverse) {
  for (Device d : {Device::kCpu, Device::kCuda}) EXPECT_EQ(to_device(to_string(d)), d);
  EXPECT_THROW(to_device("tpu"), UsageError);
}

TEST(Arena, MeasuringAndTakingAgree) {
  auto layout = [](Arena& arena) {
    arena.take<char>(3);
    arena.take<double>(0);
    return arena.take<float>(5);
  };
  Arena measure;
  EXPECT_EQ(layout(measure).data(), nullptr);
  const std::size_t behind = Arena::kGuard == 0 ? Arena::kAlign : 3 * Arena::kAlign;
  EXPECT_EQ(measure.used(), behind + 5 * sizeof(float) + Arena::kGuard);

  std::vector<std::byte> storage(measure.used() + Arena::kAlign, std::byte{0xff});
  auto start = reinterpret_cast<std::uintptr_t>(storage.data());
  std::size_t gap = (Arena::kAlign - start % Arena::kAlign) % Arena::kAlign;
  Arena arena(std::span<std::byte>(storage).subspan(gap, measure.used()));
  std::span<float> part = layout(arena);
  EXPECT_EQ(reinterpret_cast<std::byte*>(part.data()), storage.data() + gap + behind);
  EXPECT_EQ(arena.used(), measure.used());
  EXPECT_THROW(arena.take<char>(1), UsageError);

  Arena again(std::span<std::byte>(storage).subspan(gap, measure.used()));
  EXPECT_EQ(layout(again).size(), 5u);  // a good call works after the provoked error
}

TEST(Arena, RefusesAMisalignedBuffer) {
  alignas(Arena::kAlign) std::byte storage[2 * Arena::kAlign];
  EXPECT_THROW(Arena(std::span<std::byte>(storage).subspan(1)), UsageError);
  EXPECT_NO_THROW(Arena{std::span<std::byte>(storage)});
}

TEST(Errors, KindsAndTexts) {
  EXPECT_NO_THROW(require(true, "unused"));
  try {
    require(false, "top_k is ", 9, ", the limit is ", 8);
    FAIL() << "no exception";
  } catch (const UsageError& e) {
    EXPECT_STREQ(e.what(), "top_k is 9, the limit is 8");
  }
  EXPECT_THROW(ensure(false, "broken"), InternalError);
  EXPECT_THROW(ensure(false, "broken"), Error);
}

TEST(Version, IsThere) {
  EXPECT_EQ(version().find_first_not_of("0123456789."), std::string_view::npos);
  EXPECT_FALSE(commit().empty());
}

}  // namespace
}  // namespace switchyard
