// SPDX-License-Identifier: Apache-2.0
// E2M1 panels with their scales folded in: what tiles multiply is the stored weight, bit for bit.
#include "switchyard/ops/grouped_gemm/panel_folded.h"

#include <gtest/gtest.h>

#include "switchyard/base/dtype.h"
#include "switchyard/formats/mxfp4.h"
#include "switchyard/formats/nvfp4.h"
#include "tests/cases/moe_case.h"
#include "tests/support/coded_matrix.h"

namespace switchyard::ops {
namespace {

using formats::kMxfp4Layout;
using formats::kNvfp4Layout;
using formats::Matrix;

struct Packed {
  explicit Packed(const Matrix& m)
      : layout(make_panel_layout(m.layout, m.rows, m.cols)),
        codes(layout.code_bytes()),
        scales(layout.scale_bytes()) {
    pack_panels(m, layout, codes, scales);
  }
  PanelMatrix view() const {
    return {.layout = layout, .codes = codes.data(), .scales = scales.data()};
  }
  PanelLayout layout;
  std::vector<std::byte> codes, scales;
};

/// Every weight of the panels, times what its row's sums are worth, is the stored value.
void expect_folded(const Matrix& m) {
  const Packed w(m);
  std::vector<std::uint16_t> room(std::size_t(w.layout.padded_cols() * kPanelRows) + 32);
  auto* weights = reinterpret_cast<std::uint16_t*>((std::uintptr_t(room.data()) + 63) / 64 * 64);
  for (std::int64_t panel = 0; panel < w.layout.panels(); ++panel) {
    float scale[kPanelRows];
    const PanelMatrix view = w.view();
    decode_folded_avx512(view, panel, weights, scale);
    for (std::int64_t k = 0; k < w.layout.padded_cols(); ++k)
      for (std::int64_t r = 0; r < kPanelRows; ++r) {
        const std::int64_t row = panel * kPanelRows + r;
        const bool valid = row < m.rows && k < m.cols;
        const float got = bf16_to_float(weights[(k / 2 * kPanelRows + r) * 2 + k % 2]);
        ASSERT_EQ(double(got) * scale[r], valid ? m.value(row, k) : 0.0)
            << "row " << row << ", column " << k;
      }
  }
}

class FoldedScales : public testing::Test {
 protected:
  void SetUp() override {
    if (test::runnable_tiers().back() < CpuIsa::kAvx512) GTEST_SKIP() << "this CPU has no avx512";
  }
};

TEST_F(FoldedScales, EveryCodeUnderEveryE4m3ScaleIsExact) {
  const auto all = [](std::int64_t r, std::int64_t b) { return (b + 13 * r) % 127; };  // 127: NaN
  expect_folded(test::coded_matrix(kNvfp4Layout, 40, 127 * 16, all));
  const auto zero = [](std::int64_t, std::int64_t) { return 0; };
  expect_folded(test::coded_matrix(kNvfp4Layout, 17, 48, zero));
}

TEST_F(FoldedScales, EveryCodeUnderEveryE8m0ScaleIsExact) {
  for (int base = 0; base + 32 <= 250; base += 31) {
    const auto all = [&](std::int64_t r, std::int64_t b) { return base + (b + 5 * r) % 33; };
    expect_folded(test::coded_matrix(kMxfp4Layout, 40, 33 * 32, all));
  }
  const auto most = [](std::int64_t r, std::int64_t b) { return 250 + (b + r) % 5; };  // 255: NaN
  expect_folded(test::coded_matrix(kMxfp4Layout, 40, 5 * 32, most));
  const auto least = [](std::int64_t r, std::int64_t b) { return r % 2 == 0 ? 0 : b % 3; };
  expect_folded(test::coded_matrix(kMxfp4Layout, 40, 5 * 32, least));
}

// A scale that belongs to the neighbour shows.
TEST_F(FoldedScales, AnotherScaleGivesAnotherWeight) {
  const Packed one(test::coded_matrix(kNvfp4Layout, 16, 16 * 8,
                                      [](std::int64_t, std::int64_t b) { return 40 + b; }));
  const Packed next(test::coded_matrix(kNvfp4Layout, 16, 16 * 8,
                                       [](std::int64_t, std::int64_t b) { return 41 + b; }));
  alignas(64) std::uint16_t a[128 * 16], b[128 * 16];
  float scale[kPanelRows];
  const PanelMatrix of_one = one.view(), of_next = next.view();
  decode_folded_avx512(of_one, 0, a, scale);
  decode_folded_avx512(of_next, 0, b, scale);
  std::size_t weights = 0;
  for (std::size_t i = 0; i < std::size(a); ++i) {
    ASSERT_TRUE(a[i] != b[i] || (a[i] & 0x7fff) == 0) << i;
    weights += (a[i] & 0x7fff) != 0;
  }
  EXPECT_GT(weights, std::size(a) / 2) << "what is zero could not differ";
}

}  // namespace
}  // namespace switchyard::ops
