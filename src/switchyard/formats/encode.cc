// SPDX-License-Identifier: Apache-2.0
#include "switchyard/formats/encode.h"

#include <cmath>
#include <cstring>

#include "switchyard/formats/blocks.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"

namespace switchyard::formats {
namespace {

constexpr std::int64_t kRun = 16;

}  // namespace

void encode_e4m3_times(const float* x, std::int64_t count, float factor, std::uint8_t* codes) {
  if (!(std::fabs(factor) > 0)) {
    memset(codes, factor == 0.0f ? 0 : kE4m3Nan, std::size_t(count));
    return;
  }
  for_blocks<kRun>(x, count, [&](const float* run, std::int64_t begin, std::int64_t valid) {
    std::uint8_t code[kRun];
    for (int i = 0; i < kRun; ++i) code[i] = encode_e4m3(run[i] * factor);
    memcpy(codes + begin, code, std::size_t(valid));
  });
}

void encode_e4m3_over(const float* x, std::int64_t count, float divisor, std::uint8_t* codes) {
  if (!std::isfinite(divisor)) {
    memset(codes, kE4m3Nan, std::size_t(count));
    return;
  }
  for_blocks<kRun>(x, count, [&](const float* run, std::int64_t begin, std::int64_t valid) {
    std::uint8_t code[kRun];
    for (int i = 0; i < kRun; ++i) code[i] = encode_e4m3(run[i] / divisor);
    memcpy(codes + begin, code, std::size_t(valid));
  });
}

void encode_e2m1_times(const float* x, std::int64_t count, float factor, std::uint8_t* codes) {
  if (factor == 0.0f) {
    memset(codes, 0, std::size_t((count + 1) / 2));
    return;
  }
  for_blocks<kRun>(x, count, [&](const float* run, std::int64_t begin, std::int64_t valid) {
    std::uint8_t code[kRun];
    for (int i = 0; i < kRun; ++i) code[i] = encode_e2m1(run[i] * factor);
    std::uint8_t packed[kRun / 2];
    for (int i = 0; i < kRun / 2; ++i) packed[i] = std::uint8_t(code[2 * i] | code[2 * i + 1] << 4);
    memcpy(codes + begin / 2, packed, std::size_t((valid + 1) / 2));
  });
}

}  // namespace switchyard::formats
