// SPDX-License-Identifier: Apache-2.0
// Rows as integers: every value comes back exactly, and what would not is marked.
#include "switchyard/ops/grouped_gemm/panel_fixed.h"

#include <gtest/gtest.h>

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
const std::vector<FixedForm> kForms = {{16, 2}, {16, 3}, {32, 3}};

struct Block {
  FixedHeader header{};
  std::vector<double> values;  // what the integers are worth
  std::int64_t sum = 0;        // of the integers
};

class FixedRow : public testing::Test {
 protected:
  void SetUp() override {
    if (test::runnable_tiers().back() < CpuIsa::kAvx512) GTEST_SKIP() << "this CPU has no avx512";
  }

  static std::vector<Block> fix(const FixedForm& form, const std::vector<float>& row) {
    std::vector<std::uint16_t> pairs;
    for (float v : row) pairs.push_back(float_to_bf16(v));
    const std::int64_t cols = std::int64_t(row.size());
    std::vector<std::byte> bytes(std::size_t(form.row_bytes(cols)) + 8, std::byte(0xee));
    fix_row_avx512(form, pairs.data(), cols, bytes.data());
    for (std::size_t i = bytes.size() - 8; i < bytes.size(); ++i)
      EXPECT_EQ(bytes[i], std::byte(0xee)) << "wrote behind the row";
    std::vector<Block> blocks;
    for (std::int64_t k = 0; k < cols; k += form.cols)
      blocks.push_back(decode(form, bytes.data() + k / form.cols * form.record_bytes()));
    return blocks;
  }

  static Block decode(const FixedForm& form, const std::byte* record) {
    Block b;
    std::memcpy(&b.header, record, sizeof(b.header));
    b.values.resize(std::size_t(form.cols));
    for (int c = 0; c < form.cols; ++c) {
      std::int64_t integer = 0;
      for (int d = form.digits - 1; d >= 0; --d)
        integer = integer * 256 + std::int8_t(record[16 + d * form.cols + c]);
      EXPECT_LE(std::abs(integer), std::int64_t(1) << (8 * form.digits - 2));
      b.sum += integer;
      b.values[std::size_t(c / 8 * 8 + fixed_column(c % 8))] = double(integer) * b.header.unit * 2;
    }
    return b;
  }

  static void expect_exact(const FixedForm& form, const std::vector<float>& row) {
    const std::vector<Block> blocks = fix(form, row);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(blocks[i].header.wide, 0) << "block " << i;
      EXPECT_EQ(blocks[i].header.offset, -12 * blocks[i].sum) << "block " << i;
      for (std::size_t c = 0; c < blocks[i].values.size(); ++c)
        ASSERT_EQ(blocks[i].values[c], row[i * std::size_t(form.cols) + c])
            << form.cols << " columns, " << form.digits << " digits, block " << i << ", " << c;
    }
  }
};

TEST_F(FixedRow, HoldsEveryE4m3ValueInThreeDigits) {
  const Random random(1, 1);
  for (const FixedForm& form : {kForms[1], kForms[2]})
    for (int seed = 0; seed < 64; ++seed) {
      std::vector<float> row;
      for (std::int64_t k = 0; k < kCols; ++k) {
        const auto code = std::uint8_t(random.bits(std::uint64_t(seed * kCols + k)));
        row.push_back((code & 0x7f) == 0x7f ? 0.0f : formats::decode_e4m3(code));
      }
      row[5] = 448, row[40] = -0x1p-9f, row[41] = 0x1p-9f;  // both ends in one block
      expect_exact(form, row);
    }
}

TEST_F(FixedRow, HoldsEveryBlockOfNvfp4InTwoDigits) {
  for (int scale = 1; scale < 0x7f; ++scale)
    for (int first = 0; first < 16; ++first) {
      std::vector<float> row;
      for (std::int64_t k = 0; k < kCols; ++k)
        row.push_back(formats::decode_e2m1(std::uint8_t((first + k * 5) % 16)) *
                      formats::decode_e4m3(std::uint8_t(scale)));
      expect_exact(kForms[0], row);
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
      expect_exact(form, row);
    }
  }
}

TEST_F(FixedRow, MarksWhatDoesNotFitAndNothingElse) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const FixedForm& form : kForms)
    for (float odd : {kNan, INFINITY, -INFINITY, 0x1p-40f, 0x1p100f}) {
      std::vector<float> row(kCols);
      for (std::size_t k = 0; k < row.size(); ++k) row[k] = 1 + float(k) / 128;
      row[37] = odd;
      const std::vector<Block> blocks = fix(form, row);
      for (int i = 0; i < int(blocks.size()); ++i)
        EXPECT_EQ(blocks[std::size_t(i)].header.wide != 0, i == 37 / form.cols)
            << form.cols << " columns, " << form.digits << " digits, block " << i << ", " << odd;
      row[37] = 1;
      expect_exact(form, row);
    }
}

TEST_F(FixedRow, ZerosAreIntegersAndTinyBlocksAreNot) {
  for (const FixedForm& form : kForms) {
    expect_exact(form, std::vector<float>(kCols, 0.0f));
    expect_exact(form, std::vector<float>(kCols, -0.0f));
    for (const Block& b : fix(form, std::vector<float>(kCols, 0x1p-101f)))
      EXPECT_NE(b.header.wide, 0);
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
  l.block = 64;
  EXPECT_EQ(fixed_form(l, ActivationQuant::kNvfp4).digits, 3);
  EXPECT_EQ(fixed_form(l, ActivationQuant::kNvfp4).cols, 32);
}

}  // namespace
}  // namespace switchyard::ops
