// SPDX-License-Identifier: Apache-2.0
// Packing into panels, and every twin of the panel GEMM against a double loop over Matrix::value().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "switchyard/base/errors.h"
#include "switchyard/base/random.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/mxfp8.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/ops/grouped_gemm/panel_fixed.h"
#include "tests/cases/moe_case.h"
#include "tests/support/coded_matrix.h"
#include "tests/support/panel_amx_emulated.h"
#include "tests/support/panel_scratch.h"
#include "tests/support/selection_cases.h"
#include "tests/support/soak.h"

namespace switchyard::ops {
namespace {

using formats::Element;
using formats::Matrix;
using formats::ScaleType;
using formats::WeightLayout;
using test::Fault;

struct NamedLayout {
  std::string name;
  WeightLayout layout;
};

// Every leaf's layout, so that a new format is covered by the list, and those of checkpoints only.
std::vector<NamedLayout> all_layouts() {
  std::vector<NamedLayout> out;
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu)) {
    bool known = false;
    for (const NamedLayout& l : out) known = known || l.layout == leaf->weights;
    if (!known) out.push_back({std::string(leaf->id.quant), leaf->weights});
  }
  out.push_back({"fp16", {.element = Element::kFp16}});
  out.push_back({"fp8_tensor", formats::kFp8TensorLayout});
  WeightLayout ue8m0 = formats::kFp8BlockLayout;
  ue8m0.power_of_two = true;
  out.push_back({"fp8_block_ue8m0", ue8m0});
  return out;
}

struct Shape {
  std::int64_t n, k;
};

// Each edge once as N and once as K; the full cross under soak.
std::vector<Shape> all_shapes() {
  const std::vector<std::int64_t> edges = {1, 15, 16, 17, 31, 32, 33, 96, 128, 129, 360, 2880};
  std::vector<Shape> some, all;
  for (std::int64_t e : edges) {
    some.push_back({e, e > 1000 ? 33 : 129});
    some.push_back({e == 2880 ? 17 : 33, e});
    for (std::int64_t k : edges) all.push_back({e, k});
  }
  return test::subset_or_full(some, all);
}

std::int64_t legal_cols(const WeightLayout& l, std::int64_t k) {
  return formats::bits_of(l.element) == 4 ? k + k % 2 : k;
}

struct Packed {
  explicit Packed(Matrix matrix)
      : m(std::move(matrix)),
        layout(make_panel_layout(m.layout, m.rows, m.cols)),
        codes(layout.code_bytes(), std::byte(0xee)),
        scales(layout.scale_bytes(), std::byte(0xee)) {
    pack_panels(m, layout, codes, scales);
    for (std::int64_t r = 0; r < layout.panels() * kPanelRows; ++r)
      bias.push_back(r < m.rows ? float(r % 7) / 8 : 0);
  }
  PanelMatrix view() const {
    return {.layout = layout,
            .codes = codes.data(),
            .scales = scales.data(),
            .alpha = m.global_scale,
            .bias = bias.data()};
  }
  Matrix m;
  PanelLayout layout;
  std::vector<std::byte> codes, scales;
  std::vector<float> bias;
};

enum class Form { kPairs, kFloats, kFixed, kFixedTwo };  // fixed: in three or two digits

// Input rows with scales of every kind that the layout allows; poison behind the padded columns.
// Every third row has values that are too small to be integers beside their neighbours.
struct Input {
  Input(const Packed& w, std::int64_t rows, Form wanted, FixRow fix_row = fix_row_avx512)
      : cols(w.m.cols), stride(w.layout.padded_cols() + 6), blocks((cols + 127) / 128) {
    const Random random(5, std::uint64_t(cols));
    for (std::int64_t i = 0; i < std::max<std::int64_t>(rows, 1); ++i) {  // never a null pointer
      for (std::int64_t k = 0; k < stride; ++k) {
        float v = random.normal(std::uint64_t(i * stride + k));
        if (i % 3 == 1 && k % 37 == 5) v = std::ldexp(v, -30);
        if (k >= cols) v = k < w.layout.padded_cols() ? 0.0f : std::nanf("");
        pairs.push_back(float_to_bf16(v));
        floats.push_back(v);
      }
      row_scales.push_back(0.5f + float(i % 5) / 4);
      for (std::int64_t b = 0; b < blocks; ++b)
        block_scales.push_back(0.25f + float((3 * i + b) % 7) / 8);
    }
    has_block_scales = w.layout.scale == ScaleType::kF32 && w.layout.cut() <= 128;
    form = wanted;
    if (form == Form::kFixed) fix(w.layout, formats::ActivationQuant::kNone, fix_row);
    if (form == Form::kFixedTwo) fix(w.layout, formats::ActivationQuant::kMxfp8, fix_row);
  }
  void fix(const PanelLayout& layout, formats::ActivationQuant quant, FixRow fix_row) {
    const FixedForm fixed_as = fixed_form(layout, quant);
    fixed_stride = fixed_as.row_bytes(layout.padded_cols());
    digits = fixed_as.digits;
    fixed.resize(row_scales.size() * std::size_t(fixed_stride), std::byte(0xee));
    for (std::int64_t i = 0; i < std::int64_t(row_scales.size()); ++i)
      fix_row(fixed_as, &pairs[std::size_t(i * stride)], layout.padded_cols(),
              &fixed[std::size_t(i * fixed_stride)]);
  }
  PanelInput view() const {
    return {.pairs = form == Form::kFloats ? nullptr : pairs.data(),
            .floats = form == Form::kFloats ? floats.data() : nullptr,
            .stride = stride,
            .block_scales = has_block_scales ? block_scales.data() : nullptr,
            .scale_stride = blocks,
            .row_scales = row_scales.data(),
            .fixed = fixed.empty() ? nullptr : fixed.data(),
            .fixed_stride = fixed_stride,
            .digits = digits};
  }
  double value(std::int64_t i, std::int64_t k) const {
    const std::size_t at = std::size_t(i * stride + k);
    const double x = form == Form::kFloats ? floats[at] : bf16_to_float(pairs[at]);
    const float block = has_block_scales ? block_scales[std::size_t(i * blocks + k / 128)] : 1;
    return x * block * row_scales[std::size_t(i)];
  }
  std::int64_t cols, stride, blocks;
  std::vector<std::uint16_t> pairs;
  std::vector<float> floats, row_scales, block_scales;
  std::vector<std::byte> fixed;
  std::int64_t fixed_stride = 0;
  int digits = 0;
  bool has_block_scales = false;
  Form form = Form::kPairs;
};

struct Rows {
  std::int64_t panel_begin = 0, panel_end = 0;
  std::vector<std::int32_t> index;
};

Rows first_rows(const Packed& w, std::int64_t count) {
  Rows r{0, w.layout.panels(), {}};
  for (std::int64_t i = 0; i < count; ++i) r.index.push_back(std::int32_t((i * 5 + 3) % count));
  return r;
}

std::vector<float> run(PanelGemm gemm, const Packed& w, const Input& x, const Rows& rows,
                       bool keeps = true, bool indexed = true) {
  const PanelMatrix view = w.view();
  // The tiers' needs differ, and a Zen 4 keeps panels with the twin of AVX-512.
  const bool gathers = gemm == panel_gemm_amx || gemm == test::panel_gemm_amx_emulated;
  test::PanelScratch scratch(w.layout, gathers ? CpuIsa::kAmx : CpuIsa::kZen4);
  const std::int64_t width = kPanelRows * (rows.panel_end - rows.panel_begin), stride = width + 3;
  std::vector<float> y(rows.index.size() * std::size_t(stride), -777.0f);
  gemm({.w = &view,
        .panel_begin = rows.panel_begin,
        .panel_end = rows.panel_end,
        .x = x.view(),
        .index = indexed ? rows.index.data() : nullptr,
        .num_rows = std::int64_t(rows.index.size()),
        .y = y.data(),
        .y_stride = stride,
        .scratch = keeps ? scratch.data() : nullptr});
  EXPECT_TRUE(scratch.is_intact());
  std::vector<float> dense;
  for (std::size_t i = 0; i < rows.index.size(); ++i) {
    const auto row = y.begin() + std::int64_t(i) * stride;
    dense.insert(dense.end(), row, row + width);
    for (auto pad = row + width; pad != row + stride; ++pad) EXPECT_EQ(*pad, -777.0f);
  }
  return dense;
}

struct Error {
  double rel_l2 = 0;
  double worst = 0;  // in units of the counted roundings' bound
};

// Roundings of one output: every product and sum of a cut, the cuts' sum, scales, alpha, bias. One
// sum may run through all blocks of E2M1, whose scales can be part of the weights.
double counted_roundings(const PanelLayout& l) {
  const bool folded = l.element == Element::kE2m1;
  const std::int64_t run = folded ? l.padded_cols() : std::min(l.cut(), l.padded_cols());
  return double(run + 3 * l.blocks() + 8) * 0x1p-24;
}

Error error_of(const Packed& w, const Input& x, const Rows& rows, const std::vector<float>& y) {
  const std::int64_t width = w.layout.panels() * kPanelRows;
  double diff2 = 0, norm2 = 0;
  Error e;
  std::vector<double> weights(std::size_t(w.m.cols));
  for (std::int64_t n = 0; n < w.m.rows; ++n) {
    for (std::int64_t k = 0; k < w.m.cols; ++k) weights[std::size_t(k)] = w.m.value(n, k);
    for (std::size_t i = 0; i < rows.index.size(); ++i) {
      double sum = w.bias[std::size_t(n)], size = std::abs(sum);
      for (std::int64_t k = 0; k < w.m.cols; ++k) {
        const double term = weights[std::size_t(k)] * x.value(rows.index[i], k);
        sum += term;
        size += std::abs(term);
      }
      const double diff = std::abs(double(y[i * std::size_t(width) + std::size_t(n)]) - sum);
      diff2 += diff * diff;
      norm2 += sum * sum;
      if (size > 0) e.worst = std::max(e.worst, diff / (size * counted_roundings(w.layout)));
      if (std::isnan(diff)) e.worst = INFINITY;
    }
  }
  e.rel_l2 = std::sqrt(diff2 / norm2);
  return e;
}

constexpr double kGemmBudget = 1e-5;  // DESIGN rule 12

// ---- packing ----

std::uint32_t code_in(Element e, const std::byte* step, CodePosition at) {
  const std::uint32_t low = std::uint32_t(step[at.byte]);
  if (formats::bits_of(e) == 4) return low >> (4 * at.nibble) & 0xf;
  return formats::bits_of(e) == 8 ? low : low | std::uint32_t(step[at.byte + 1]) << 8;
}

std::uint32_t code_of(const Matrix& m, std::int64_t r, std::int64_t k) {
  const std::byte* row = m.codes.data() + r * m.layout.row_bytes(m.cols);
  const int bits = formats::bits_of(m.layout.element);
  if (bits == 4) return std::uint32_t(row[k / 2]) >> (4 * (k % 2)) & 0xf;
  return bits == 8 ? std::uint32_t(row[k])
                   : std::uint32_t(row[2 * k]) | std::uint32_t(row[2 * k + 1]) << 8;
}

TEST(CodePosition, EveryBitOfAStepHoldsOneCode) {
  for (Element e : {Element::kBf16, Element::kFp16, Element::kE4m3, Element::kE2m1}) {
    std::set<std::pair<std::size_t, int>> seen;
    std::size_t last = 0;
    for (std::int64_t r = 0; r < kPanelRows; ++r)
      for (std::int64_t k = 0; k < kPanelStep; ++k) {
        const CodePosition at = code_position(e, r, k);
        EXPECT_TRUE(seen.insert({at.byte, at.nibble}).second) << to_string(e) << r << "," << k;
        last = std::max(last, at.byte);
      }
    EXPECT_EQ(seen.size(), 512u);
    EXPECT_LT(last, std::size_t(512 * formats::bits_of(e) / 8));
  }
}

void expect_codes(const Packed& p, const std::string& name) {
  for (std::int64_t r = 0; r < p.layout.panels() * kPanelRows; ++r)
    for (std::int64_t k = 0; k < p.layout.padded_cols(); ++k) {
      const std::byte* step = p.codes.data() +
                              r / kPanelRows * std::int64_t(p.layout.panel_code_bytes()) +
                              k / kPanelStep * std::int64_t(p.layout.step_bytes());
      const CodePosition at = code_position(p.layout.element, r % kPanelRows, k % kPanelStep);
      const bool valid = r < p.m.rows && k < p.m.cols;
      ASSERT_EQ(code_in(p.layout.element, step, at), valid ? code_of(p.m, r, k) : 0u)
          << name << " " << p.m.rows << "x" << p.m.cols << " at " << r << ", " << k;
    }
}

void expect_scales(const Packed& p, const std::string& name) {
  const std::size_t bytes = std::size_t(formats::bytes_of(p.layout.scale));
  const std::int64_t block_rows = p.m.layout.block_rows > 0 ? p.m.layout.block_rows : p.m.rows;
  const std::int64_t given = p.m.layout.scale_cols(p.m.cols);
  std::vector<std::byte> zero(4);
  for (std::int64_t r = 0; r < p.layout.panels() * kPanelRows && bytes > 0; ++r)
    for (std::int64_t b = 0; b < p.layout.blocks(); ++b) {
      const std::byte* got = p.scales.data() +
                             r / kPanelRows * std::int64_t(p.layout.panel_scale_bytes()) +
                             (b * kPanelRows + r % kPanelRows) * std::int64_t(bytes);
      const bool valid = r < p.m.rows && b < given;
      const std::byte* want =
          valid ? p.m.scales.data() + (r / block_rows * given + b) * std::int64_t(bytes)
                : zero.data();
      ASSERT_EQ(std::memcmp(got, want, bytes), 0) << name << " row " << r << ", block " << b;
    }
}

TEST(PackPanels, EveryCodeAndScaleLiesWhereTheLayoutSays) {
  for (const auto& [name, layout] : all_layouts())
    for (const Shape& s : all_shapes()) {
      const Packed p(test::make_matrix(layout, s.n, legal_cols(layout, s.k), 3));
      expect_codes(p, name);
      expect_scales(p, name);
      if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(PackPanels, IsRepeatable) {
  const Packed a(test::make_matrix(formats::kFp8BlockLayout, 33, 130, 3));
  std::vector<std::byte> codes(a.codes.size(), std::byte(1)), scales(a.scales.size());
  pack_panels(a.m, a.layout, codes, scales);
  EXPECT_EQ(codes, a.codes);
  EXPECT_EQ(scales, a.scales);
}

TEST(PackPanels, RefusesWhatNoCodecDecodes) {
  WeightLayout odd = formats::kFp8BlockLayout;
  odd.block_cols = 24;
  for (const WeightLayout& l : {odd, formats::kMxfp8Layout, WeightLayout{.element = Element::kF32}})
    EXPECT_THAT(test::usage_error_of([&] { make_panel_layout(l, 16, 64); }),
                testing::HasSubstr("no panel codec"));
  EXPECT_EQ(make_panel_layout(formats::kFp8BlockLayout, 16, 256).blocks(), 2);
}

// ---- the twins ----

struct Twin {
  std::string name;
  PanelGemm gemm;
  CpuIsa needs;
  FixRow fix_row = nullptr;  // null: it reads no fixed rows
};

class PanelGemmTwin : public testing::TestWithParam<Twin> {
 protected:
  void SetUp() override {
    if (GetParam().needs > test::runnable_tiers().back())
      GTEST_SKIP() << "this CPU has no " << to_string(GetParam().needs);
  }
  // The wide twin takes fp16 weights with float inputs only; its callers know.
  static std::vector<Form> inputs_of(const WeightLayout& l) {
    if (l.element == Element::kFp16) return {Form::kFloats};
    std::vector<Form> forms = {Form::kPairs, Form::kFloats};
    if (GetParam().fix_row != nullptr && l.element == Element::kE2m1)
      forms.insert(forms.end(), {Form::kFixed, Form::kFixedTwo});
    return forms;
  }
};

TEST_P(PanelGemmTwin, MatchesADoubleLoop) {
  double worst = 0, rel = 0;
  for (const auto& [name, layout] : all_layouts())
    for (const Shape& s : all_shapes())
      for (Form form : inputs_of(layout)) {
        const Packed w(test::make_matrix(layout, s.n, legal_cols(layout, s.k), 7));
        for (std::int64_t count : {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33}) {
          if (s.n * s.k > 60'000 && count != 3 && count != 17) continue;
          if (s.n * s.k > 5'000 && count % 2 == 0 && count > 2) continue;
          const Input x(w, count, form, GetParam().fix_row);
          const Rows rows = first_rows(w, count);
          const Error e = error_of(w, x, rows, run(GetParam().gemm, w, x, rows));
          if (count == 0) continue;
          worst = std::max(worst, e.worst);
          rel = std::max(rel, s.n > 8 ? e.rel_l2 : 0.0);
          ASSERT_LE(e.worst, 1) << name << " " << s.n << "x" << s.k << " rows " << count;
          ASSERT_LE(s.n > 8 ? e.rel_l2 : 0, kGemmBudget) << name << " " << s.n << "x" << s.k;
        }
      }
  RecordProperty("worst_of_bound", std::to_string(worst));
  RecordProperty("worst_rel_l2", std::to_string(rel));
}

TEST_P(PanelGemmTwin, TheBoundCatchesMisplacedCodesAndScales) {
  for (const auto& [name, layout] : all_layouts())
    for (const Fault fault : {Fault::kSwappedPairs, Fault::kShiftedScales, Fault::kSwappedHalves}) {
      const Packed good(test::make_matrix(layout, 48, 288, 9));
      const std::optional<Matrix> bad = test::damaged(good.m, fault);
      if (!bad) {
        EXPECT_EQ(fault, Fault::kShiftedScales) << name;
        continue;
      }
      const Packed wrong(*bad);
      for (Form form : inputs_of(layout)) {
        const Input x(good, 5, form, GetParam().fix_row);
        const Rows rows = first_rows(good, 5);
        const Error e = error_of(good, x, rows, run(GetParam().gemm, wrong, x, rows));
        EXPECT_GT(e.rel_l2, 1000 * kGemmBudget) << name << " fault " << int(fault);
        EXPECT_GT(e.worst, 10) << name << " fault " << int(fault);
      }
    }
}

// Row r holds the codes from 32 r on, so that all of an 8-bit element and all of a 4-bit one occur;
// of the 16-bit ones every 127th.
Matrix every_code(const WeightLayout& layout) {
  Matrix m = formats::quantize_matrix(std::vector<float>(16 * 32, 1.0f), 16, 32, layout);
  auto storage = std::make_shared<std::vector<std::byte>>(m.codes.begin(), m.codes.end());
  const int bits = formats::bits_of(layout.element);
  for (std::size_t i = 0; i < storage->size(); ++i) {
    const std::size_t code = bits == 16 ? i / 2 * 127 >> (8 * (i % 2)) : bits == 8 ? i : 37 * i;
    (*storage)[i] = std::byte(code & 0xff);
  }
  m.codes = *storage;
  // The scales stay where the quantiser put them.
  m.storage = std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
      m.storage, storage);
  m.global_scale = 1;  // one product, hence one rounding
  return m;
}

TEST_P(PanelGemmTwin, EveryCodeDecodes) {
  for (const auto& [name, layout] : all_layouts()) {
    Packed w(every_code(layout));
    std::fill(w.bias.begin(), w.bias.end(), 0.0f);
    Input x(w, 32, Form::kFloats);
    std::fill(x.floats.begin(), x.floats.end(), 0.0f);
    std::fill(x.row_scales.begin(), x.row_scales.end(), 1.0f);
    x.has_block_scales = false;
    for (std::int64_t k = 0; k < 32; ++k) x.floats[std::size_t(k * x.stride + k)] = 1;
    Rows rows{0, 1, {}};
    for (int k = 0; k < 32; ++k) rows.index.push_back(k);
    const std::vector<float> y = run(GetParam().gemm, w, x, rows);
    for (std::int64_t r = 0; r < 16; ++r) {
      bool finite = true;  // a row with a NaN or an infinity is NaN at every column but its own
      for (std::int64_t k = 0; k < 32; ++k) finite = finite && std::isfinite(w.m.value(r, k));
      for (std::int64_t k = 0; k < 32; ++k) {
        const float got = y[std::size_t(k * 16 + r)], want = float(w.m.value(r, k));
        EXPECT_EQ(std::isfinite(got), finite) << name << " row " << r << ", column " << k;
        EXPECT_TRUE(got == want || !finite) << name << " row " << r << ", column " << k;
      }
    }
  }
}

// A row alone equals the same row at any height, at any place, in any range of panels.
TEST_P(PanelGemmTwin, ARowKeepsItsBits) {
  constexpr std::int64_t kRows = 79;
  for (const auto& [name, layout] : all_layouts())
    for (Form form : inputs_of(layout)) {
      const Packed w(test::make_matrix(layout, 129, 290, 11));
      const Input x(w, kRows, form, GetParam().fix_row);
      const std::int64_t panels = w.layout.panels(), width = panels * kPanelRows;
      const std::vector<float> all = run(GetParam().gemm, w, x, first_rows(w, kRows));
      const Rows order = first_rows(w, kRows);
      for (std::int64_t height : {1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 49})
        for (std::int64_t begin : {std::int64_t{0}, std::int64_t{1}, panels - 1})
          for (std::int64_t end : {begin + 1, panels}) {
            const std::int64_t first = (height * 3 + begin) % (kRows - height + 1);
            Rows part{
                begin, end, {order.index.begin() + first, order.index.begin() + first + height}};
            const std::vector<float> got = run(GetParam().gemm, w, x, part);
            const std::size_t size = std::size_t((end - begin) * kPanelRows);
            for (std::int64_t i = 0; i < height; ++i)
              ASSERT_EQ(std::memcmp(&got[std::size_t(i) * size],
                                    &all[std::size_t((first + i) * width + begin * kPanelRows)],
                                    size * sizeof(float)),
                        0)
                  << name << " height " << height << " panels " << begin << ".." << end;
          }
    }
}

/// An MXFP4 matrix of 40 x 96.
template <class ScaleCode>
Matrix mx_matrix(ScaleCode&& scale_code) {
  return test::coded_matrix(formats::kMxfp4Layout, 40, 96, scale_code);
}

/// Every column apart: a row of bf16 pairs for each, `one` there and zeros elsewhere. The products
/// are the weights times `one`, exactly.
void expect_exact(PanelGemm gemm, const Matrix& m, float one) {
  Packed w(m);
  std::fill(w.bias.begin(), w.bias.end(), 0.0f);
  Input x(w, w.m.cols, Form::kPairs);
  std::fill(x.pairs.begin(), x.pairs.end(), std::uint16_t(0));
  std::fill(x.row_scales.begin(), x.row_scales.end(), 1.0f);
  Rows rows{0, w.layout.panels(), {}};
  for (std::int64_t k = 0; k < w.m.cols; ++k) {
    x.pairs[std::size_t(k * x.stride + k)] = float_to_bf16(one);
    rows.index.push_back(std::int32_t(k));
  }
  const std::vector<float> y = run(gemm, w, x, rows);
  const std::int64_t width = w.layout.panels() * kPanelRows;
  for (std::int64_t k = 0; k < w.m.cols; ++k)
    for (std::int64_t n = 0; n < w.m.rows; ++n)
      ASSERT_EQ(y[std::size_t(k * width + n)], float(w.m.value(n, k) * double(one)))
          << "row " << n << ", column " << k << ", times " << one;
}

// Scales that go into the exponents of the weights change no value, zeros included, however far
// apart they are; a panel whose scales are too far apart for that says the same.
TEST_P(PanelGemmTwin, EveryCodeOfMixedBlocksIsExact) {
  const auto near = [](std::int64_t r, std::int64_t b) { return 127 - r + 7 * b * (r % 3); };
  const auto edge = [](std::int64_t r, std::int64_t b) { return b == 1 ? 158 + r % 2 : 190; };
  const auto wide = [](std::int64_t r, std::int64_t b) { return r == 20 && b == 1 ? 157 : 190; };
  const auto far = [](std::int64_t r, std::int64_t b) { return r == 20 && b == 1 ? 64 : 190; };
  for (const Matrix& m : {mx_matrix(near), mx_matrix(edge), mx_matrix(wide), mx_matrix(far)})
    for (const float one : {1.0f, 0x1p-20f, 0x1p-60f, 0x1p-93f})
      expect_exact(GetParam().gemm, m, one);
}

// The ends of the scales' range: code 0 is 2^-127, which is no normal float.
TEST_P(PanelGemmTwin, ScalesAtTheEndsOfTheirRangeAreExact) {
  const auto least = [](std::int64_t, std::int64_t) { return 0; };
  const auto rising = [](std::int64_t r, std::int64_t b) { return b * (r % 2 == 0 ? 62 : 63); };
  const auto most = [](std::int64_t r, std::int64_t b) { return 248 + (r + b) % 3; };
  expect_exact(GetParam().gemm, mx_matrix(least), 0x1p20f);  // no product leaves the normal range
  expect_exact(GetParam().gemm, mx_matrix(rising), 0x1p20f);
  expect_exact(GetParam().gemm, mx_matrix(most), 0x1p-20f);
}

// Decoded panels are kept for other rows up to a width; beyond it nothing may be written past them.
TEST_P(PanelGemmTwin, WidePanelsMatchADoubleLoop) {
  for (const std::int64_t cols : {8192, 8224})
    for (const std::int64_t count : {9, 17}) {
      const Packed w(test::make_matrix(formats::kMxfp4Layout, 33, cols, 3));
      const Input x(w, count, Form::kPairs);
      const Rows rows = first_rows(w, count);
      const Error e = error_of(w, x, rows, run(GetParam().gemm, w, x, rows));
      EXPECT_LE(e.worst, 1) << cols << " columns, " << count << " rows";
      EXPECT_LE(e.rel_l2, kGemmBudget) << cols << " columns, " << count << " rows";
    }
}

// Whether a panel folds follows from its weights: a row keeps its bits beside any others.
TEST_P(PanelGemmTwin, ARowKeepsItsBitsWherePanelsDoNotFold) {
  const Packed w(mx_matrix([](std::int64_t r, std::int64_t b) {
    return r == 20 && b == 1 ? 30 : 120 + int((r + b) % 9);
  }));
  const Input x(w, 41, Form::kPairs);
  const Rows all_of_them = first_rows(w, 41);
  const std::vector<float> all = run(GetParam().gemm, w, x, all_of_them);
  const Error e = error_of(w, x, all_of_them, all);
  EXPECT_LE(e.worst, 1);
  const std::size_t width = std::size_t(w.layout.panels() * kPanelRows);
  for (const std::int64_t height : {1, 5, 8, 9, 17})
    for (std::int64_t first = 0; first + height <= 41; first += height) {
      const Rows part{
          0,
          w.layout.panels(),
          {all_of_them.index.begin() + first, all_of_them.index.begin() + first + height}};
      const std::vector<float> got = run(GetParam().gemm, w, x, part);
      ASSERT_EQ(std::memcmp(got.data(), &all[std::size_t(first) * width],
                            std::size_t(height) * width * sizeof(float)),
                0)
          << height << " rows from " << first;
    }
  EXPECT_EQ(run(GetParam().gemm, w, x, all_of_them, false), all) << "without memory to keep panels";
}

// FC2's form: without an index, row i of the output is of row i of the input.
TEST_P(PanelGemmTwin, RowsInOrderNeedNoIndex) {
  for (const auto& [name, layout] : all_layouts())
    for (Form form : inputs_of(layout))
      for (const int count : {1, 9, 17, 33, 50}) {
        const Packed w(test::make_matrix(layout, 33, legal_cols(layout, 291), 11));
        const Input x(w, count, form, GetParam().fix_row);
        Rows rows{0, w.layout.panels(), {}};
        for (int i = 0; i < count; ++i) rows.index.push_back(i);
        const std::vector<float> want = run(GetParam().gemm, w, x, rows);
        EXPECT_EQ(run(GetParam().gemm, w, x, rows, true, false), want) << name << " " << count;
        EXPECT_EQ(run(GetParam().gemm, w, x, rows, false, false), want) << name << " " << count;
        if (count == 1) continue;
        std::ranges::reverse(rows.index);
        EXPECT_NE(run(GetParam().gemm, w, x, rows), want) << "the control: an index is followed";
      }
}

INSTANTIATE_TEST_SUITE_P(
    Twins, PanelGemmTwin,
    testing::Values(Twin{"portable", panel_gemm_portable, CpuIsa::kPortable},
                    Twin{"avx2", panel_gemm_avx2, CpuIsa::kAvx2},
                    Twin{"avx512", panel_gemm_avx512, CpuIsa::kAvx512, fix_row_avx512},
                    Twin{"amx", panel_gemm_amx, CpuIsa::kAmx},
                    Twin{"amx_emulated", test::panel_gemm_amx_emulated, CpuIsa::kAvx512}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace switchyard::ops
