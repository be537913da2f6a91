// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/usage_error.h"

namespace switchyard::test {

/// Values of codes 0 .. 7 of E2M1, written out.
const std::vector<double>& e2m1_magnitudes();
/// Values of codes 0 .. 0x7E of E4M3, by ldexp.
const std::vector<double>& e4m3_magnitudes();

/// Nearest of all magnitudes by search, ties to the even code, saturating; sign in `sign_bit`.
/// NaN gives `nan_code` (with the sign when it is 0x7F).
std::uint8_t slow_e2m1(double x);
std::uint8_t slow_e4m3(double x);
double slow_decode_e2m1(std::uint8_t code);
double slow_decode_e4m3(std::uint8_t code);

/// 2^e for the smallest e >= -127 with max * 2^e >= amax, as an E8M0 code (255 for NaN). `floored`
/// gives the OCP rule instead: floor(log2 amax) - floor(log2 max).
int slow_mx_code(double amax, double max, bool floored = false);
double slow_e8m0(int code);

/// Largest magnitude; NaN when one value is.
double slow_amax(const std::vector<float>& x);

/// One block's scale and unpacked element codes.
struct SlowBlock {
  double scale = 0;
  int scale_code = 0;
  std::vector<std::uint8_t> codes;
};
SlowBlock slow_mxfp4(const std::vector<float>& block, bool floored = false);
SlowBlock slow_mxfp8(const std::vector<float>& block, bool floored = false);
SlowBlock slow_nvfp4(const std::vector<float>& block, float g);
SlowBlock slow_fp8(const std::vector<float>& block, float scale);

/// Packs codes two to a byte, even index in the low nibble.
std::vector<std::uint8_t> pack_nibbles(const std::vector<std::uint8_t>& codes);

/// Every bf16 bit pattern as a float, in code order; `stride` 2048 puts far magnitudes side by
/// side.
std::vector<float> all_bf16(int stride = 1);
/// Both midpoints' neighbours and the midpoints themselves between adjacent magnitudes, both signs.
std::vector<float> around_ties(const std::vector<double>& magnitudes);
/// N(0, 1) values from a seed.
std::vector<float> normal_values(std::size_t count, unsigned seed);

}  // namespace switchyard::test
