// SPDX-License-Identifier: Apache-2.0
// Rows as integers: every value comes back exactly, and what would not is marked.
#include "switchyard/ops/grouped_gemm/panel_fixed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "switchyard/base/dtype.h"
#include "switchyard/base/random.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"
#include "tests/cases/moe_case.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kCols = 96;
const std::vector<FixedForm> kForms = {{16, 2}, {16, 3}, {32, 2}, {32, 3}};

struct Row {
  std::vector<double> values;      // what the integers are worth
  std::vector<std::int32_t> list;  // quads that are read from the pairs
};

class FixedRow : public testing::Test {
 protected:
  void SetUp() override {
    if (test::runnable_tiers().back() < CpuIsa::kAvx512) GTEST_SKIP() << "this CPU has no avx512";
  }

  static Row fix(const FixedForm& form, const std::vector<float>& row) {
    std::vector<std::uint16_t> pairs;
    for (float v : row) pairs.push_back(float_to_bf16(v));
    const std::int64_t cols = std::int64_t(row.size());
    std::vector<std::byte> bytes(std::size_t(form.row_bytes(cols)) + 8, std::byte(0xee));
    fix_row_avx512(form, pairs.data(), cols, bytes.data());
    for (std::size_t i = bytes.size() - 8; i < bytes.size(); ++i)
      EXPECT_EQ(bytes[i], std::byte(0xee)) << "wrote behind the row";
    Row out;
    for (std::int64_t k = 0; k < cols; k += form.cols)
      decode(form, bytes.data() + k / form.cols * form.record_bytes(), out.values);
    std::int32_t count = -1;
    std::memcpy(&count, bytes.data() + form.list_offset(cols), 4);
    EXPECT_LE(count, cols / 8);
    out.list.resize(std::size_t(std::max(count, 0)));
    if (count > 0)
      std::memcpy(out.list.data(), bytes.data() + form.list_offset(cols) + 4,
                  std::size_t(count) * 4);
    return out;
  }

  static void decode(const FixedForm& form, const std::byte* record, std::vector<double>& out) {
    FixedHeader header;
    std::memcpy(&header, record, sizeof(header));
    std::vector<double> values(std::size_t(form.cols));
    std::int64_t sum = 0;
    for (int c = 0; c < form.cols; ++c) {
      std::int64_t integer = 0;
      for (int d = form.digits - 1; d >= 0; --d)
        integer = integer * 256 + std::int8_t(record[8 + d * form.cols + c]);
      EXPECT_LE(std::abs(integer), std::int64_t(1) << (8 * form.digits - 2));
      sum += integer;
      values[std::size_t(c / 8 * 8 + fixed_column(c % 8))] = double(integer) * header.unit * 2;
    }
    EXPECT_EQ(header.offset, -12 * sum);
    out.insert(out.end(), values.begin(), values.end());
  }

  /// Every value is there exactly, but those of the quads in `list`, which must be zero.
  static void expect_row(const FixedForm& form, const std::vector<float>& row,
                         const std::vector<std::int32_t>& list = {}) {
    SCOPED_TRACE(testing::Message() << form.cols << " columns, " << form.digits << " digits");
    const Row got = fix(form, row);
    EXPECT_EQ(got.list, list);
    for (std::size_t k = 0; k < row.size(); ++k)
      ASSERT_EQ(got.values[k], std::ranges::count(list, k / 8) > 0 ? 0 : row[k]) << "column " << k;
  }
};

TEST_F(FixedRow, HoldsEveryE4m3ValueInThreeDigits) {
  const Random random(1, 1);
  for (const FixedForm& form : {kForms[1], kForms[3]})
    for (int seed = 0; seed < 64; ++seed) {
      std::vector<float> row;
      for (std::int64_t k = 0; k < kCols; ++k) {
        const auto code = std::uint8_t(random.bits(std::uint64_t(seed * kCols + k)));
        row.push_back((code & 0x7f) == 0x7f ? 0.0f : formats::decode_e4m3(code));
      }
      row[5] = 448, row[40] = -0x1p-9f, row[41] = 0x1p-9f;  // both ends in one block
      expect_row(form, row);
    }
}

TEST_F(FixedRow, HoldsEveryBlockOfNvfp4InTwoDigits) {
  for (int scale = 1; scale < 0x7f; ++scale)
    for (int first = 0; first < 16; ++first) {
      std::vector<float> row;
      for (std::int64_t k = 0; k < kCols; ++k)
        row.push_back(formats::decode_e2m1(std::uint8_t((first + k * 5) % 16)) *
                      formats::decode_e4m3(std::uint8_t(scale)));
      expect_row(kForms[0], row);
    }
}

TEST_F(FixedRow, HoldsValuesOfEightBitsWithinItsRange) {
  for (const FixedForm& form : kForms) {
    const int binades = 8 * form.digits - 2 - 8;  // 8 bits of the smallest value still fit
    for (int exponent : {-90, -3, 0, 60, 120}) {
      std::vector<float> row(kCols);
      for (std::size_t k = 0; k < row.size(); ++k)
        row[k] = std::ldexp((k % 2 ? -1.0f : 1.0f) * float(129 + 2 * (k % 63)),
                            exponent - 7 - int(k) % (binades + 1));
      expect_row(form, row);
    }
  }
}

TEST_F(FixedRow, ListsWhatDoesNotFitAndNothingElse) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const FixedForm& form : kForms) {
    std::vector<float> row(kCols);
    for (std::size_t k = 0; k < row.size(); ++k) row[k] = 1 + float(k) / 128;
    const std::vector<float> good = row;
    row[37] = 0x1p-40f;
    expect_row(form, row, {4});
    row[36] = -0x1p-30f, row[47] = 0x1.02p-12f * (form.digits == 2 ? 1 : 0x1p-8f), row[95] = 1e-20f;
    expect_row(form, row, {4, 5, 11});
    const int block = 37 / form.cols, quads = form.cols / 8;
    std::vector<std::int32_t> whole;
    for (int q = 0; q < quads; ++q) whole.push_back(block * quads + q);
    for (float odd : {kNan, INFINITY, -INFINITY}) {
      row = good;
      row[37] = odd;
      expect_row(form, row, whole);
    }
    row[37] = 0x1p100f;  // an integer, which leaves no room for its neighbours
    expect_row(form, row, whole);
    expect_row(form, good);
  }
}

TEST_F(FixedRow, ZerosAreIntegersAndTinyBlocksAreNot) {
  for (const FixedForm& form : kForms) {
    expect_row(form, std::vector<float>(kCols, 0.0f));
    expect_row(form, std::vector<float>(kCols, -0.0f));
    EXPECT_EQ(fix(form, std::vector<float>(kCols, 0x1p-101f)).list.size(), kCols / 8);
    expect_row(form, std::vector<float>(kCols, 0x1p-100f));
  }
}

TEST(FixedForm, RowsAreAnOddNumberOfLines) {
  for (const FixedForm& form : kForms)
    for (std::int64_t cols = 32; cols < 4096; cols += 32) {
      const std::int64_t need = form.list_offset(cols) + 4 * (1 + cols / 8);
      EXPECT_EQ(form.row_bytes(cols) % 128, 64);
      EXPECT_GE(form.row_bytes(cols), need);
      EXPECT_LT(form.row_bytes(cols), need + 128);
    }
}

TEST(FixedForm, FollowsTheCutAndTheQuantiser) {
  using formats::ActivationQuant;
  PanelLayout l{.element = formats::Element::kE2m1,
                .scale = formats::ScaleType::kE4m3,
                .rows = 16,
                .cols = 64,
                .block = 16};
  EXPECT_EQ(fixed_form(l, ActivationQuant::kNvfp4).digits, 2);
  EXPECT_EQ(fixed_form(l, ActivationQuant::kNone).digits, 3);
  EXPECT_EQ(fixed_form(l, ActivationQuant::kNone).cols, 16);
  EXPECT_EQ(fixed_form(l, ActivationQuant::kFp8Tensor).digits, 2);
  l.block = 64;
  EXPECT_EQ(fixed_form(l, ActivationQuant::kNvfp4).cols, 32);
}

// Which twin serves which tier, and whether it asks for integer rows.
TEST(PanelTwins, EveryTierHasItsOwn) {
  const auto is = [](CpuIsa isa, PanelGemm gemm, FixRow fix_row) {
    const PanelTwin twin = panel_twin(isa);
    return twin.gemm == gemm && twin.tier == isa && twin.fix_row == fix_row;
  };
  EXPECT_TRUE(is(CpuIsa::kPortable, panel_gemm_portable, nullptr));
  EXPECT_TRUE(is(CpuIsa::kAvx2, panel_gemm_avx2, nullptr));
  EXPECT_TRUE(is(CpuIsa::kAvx512, panel_gemm_avx512, fix_row_avx512));
  EXPECT_TRUE(is(CpuIsa::kZen4, panel_gemm_avx512, nullptr));
  EXPECT_TRUE(is(CpuIsa::kAmx, panel_gemm_amx, nullptr));
}

}  // namespace
}  // namespace switchyard::ops
