// SPDX-License-Identifier: Apache-2.0
// The worked examples of docs/formats.md: every byte is made anew from the values that stand there.
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "switchyard/base/dtype.h"
#include "switchyard/core/problem.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/ops/quantize/quantize.h"
#include "tests/cases/moe_case.h"
#include "tests/support/slow_codec.h"

namespace switchyard::test {
namespace {

using formats::ActivationQuant;
using formats::Element;
using formats::Matrix;
using formats::ScaleType;
using formats::WeightLayout;

/// A fenced block of the page that starts with ```bytes: its title and its lines.
struct Example {
  std::string title, body;
  std::vector<std::vector<float>> rows;  // what its "values" lines hold
  float static_scale = 1;                // its "static scale" line
};

std::vector<float> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<float> out;
  for (float v; in >> v;) out.push_back(v);
  return out;
}

Example parse(const std::string& title, const std::string& body) {
  Example out{title, body, {}, 1};
  std::istringstream lines(body);
  const std::regex row("row (\\d+), columns.*"), values("  values +(.*)");
  const std::regex scale("static scale +([0-9.]+)");
  std::smatch found;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, found, row)) out.rows.resize(std::stoul(found[1]) + 1);
    if (std::regex_match(line, found, scale)) out.static_scale = std::stof(found[1]);
    if (!std::regex_match(line, found, values)) continue;
    for (float v : numbers(found[1])) out.rows.back().push_back(v);
  }
  return out;
}

std::map<std::string, Example> examples() {
  std::ostringstream page;
  page << std::ifstream(SWITCHYARD_SOURCE_ROOT "/docs/formats.md").rdbuf();
  std::string text = page.str();
  std::map<std::string, Example> out;
  const std::regex block("```bytes ([^\n]*)\n([^`]*)```");
  for (std::sregex_iterator at(text.begin(), text.end(), block), end; at != end; ++at)
    out[(*at)[1]] = parse((*at)[1], (*at)[2]);
  return out;
}

std::string hex(const std::uint8_t* bytes, std::int64_t count) {
  std::string out;
  for (std::int64_t i = 0; i < count; ++i) out += fmt::format(" {:02x}", bytes[i]);
  return out;
}

template <class T>
std::string list(const T* values, std::int64_t count) {
  std::string out;
  for (std::int64_t i = 0; i < count; ++i) out += fmt::format(" {}", float(values[i]));
  return out;
}

double scale_of(ScaleType type, const std::uint8_t* bytes) {
  float value = 0;
  if (type == ScaleType::kF32) std::memcpy(&value, bytes, 4);
  if (type == ScaleType::kE8m0) return slow_e8m0(bytes[0]);
  if (type == ScaleType::kE4m3) return slow_decode_e4m3(bytes[0]);
  return type == ScaleType::kNone ? 1 : value;
}

double code_of(Element element, const std::uint8_t* row, std::int64_t c) {
  if (element == Element::kE2m1) return slow_decode_e2m1(row[c / 2] >> (c % 2 * 4) & 0xf);
  if (element == Element::kE4m3) return slow_decode_e4m3(row[c]);
  Dtype dtype = element == Element::kF32    ? Dtype::kF32
                : element == Element::kBf16 ? Dtype::kBf16
                                            : Dtype::kFp16;
  return load_element(dtype, row, c);
}

/// What lies where: the page's index formulas, written once more without the library.
struct Stored {
  WeightLayout layout;
  std::int64_t rows, cols;
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  double factor = 1;  // the global or static scale

  std::int64_t width() const { return layout.block_cols == 0 ? cols : layout.block_cols; }
  std::int64_t blocks() const { return (cols + width() - 1) / width(); }
  std::int64_t row_bytes() const { return cols * bits_of(layout.element) / 8; }
  std::int64_t code_at(std::int64_t r, std::int64_t c) const {
    return r * row_bytes() + c * bits_of(layout.element) / 8;
  }
  std::int64_t scale_at(std::int64_t r, std::int64_t c) const {
    std::int64_t block_row = layout.block_rows == 0 ? 0 : r / layout.block_rows;
    return (block_row * blocks() + c / width()) * bytes_of(layout.scale);
  }
  double value(std::int64_t r, std::int64_t c) const {
    return code_of(layout.element, codes + r * row_bytes(), c) *
           scale_of(layout.scale, scales + scale_at(r, c)) * factor;
  }

  /// The lines of one block of one row.
  std::string block_text(std::int64_t r, std::int64_t c0, const std::vector<float>& row) const {
    std::int64_t count = std::min(width(), cols - c0);
    std::vector<double> decoded;
    for (std::int64_t c = c0; c < c0 + count; ++c) decoded.push_back(value(r, c));
    std::string out = fmt::format("row {}, columns {} to {}\n  values  {}\n", r, c0, c0 + count - 1,
                                  list(row.data() + c0, count));
    std::int64_t at = code_at(r, c0), bytes = count * bits_of(layout.element) / 8;
    out += fmt::format("  codes    at byte {}:{}\n", at, hex(codes + at, bytes));
    if (layout.scale != ScaleType::kNone) {
      const std::uint8_t* scale = scales + scale_at(r, c0);
      out += fmt::format("  scale    at byte {}:{} = {}\n", scale_at(r, c0),
                         hex(scale, bytes_of(layout.scale)), float(scale_of(layout.scale, scale)));
    }
    return out + fmt::format("  decoded {}\n", list(decoded.data(), count));
  }
  std::string text(const std::vector<std::vector<float>>& values) const {
    std::string out;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; c += width())
        out += block_text(r, c, values[std::size_t(r)]);
    return out;
  }
};

const std::uint8_t* data(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

Stored stored(const Matrix& m) {
  return {m.layout, m.rows, m.cols, data(m.codes), data(m.scales), m.global_scale};
}

std::vector<float> flat(const std::vector<std::vector<float>>& rows) {
  std::vector<float> out;
  for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
  return out;
}

std::string weights_text(const leaves::Leaf& leaf, const Example& e) {
  std::int64_t rows = std::int64_t(e.rows.size()), cols = std::int64_t(e.rows[0].size());
  Matrix m = formats::quantize_matrix(flat(e.rows), rows, cols, leaf.weights);
  std::string out = stored(m).text(e.rows);
  if (leaf.weights.global_scale) {
    std::uint8_t bytes[4];
    std::memcpy(bytes, &m.global_scale, 4);
    out += fmt::format("global scale:{} = {}\n", hex(bytes, 4), m.global_scale);
  }
  return out;
}

/// How the codes of an activation quantiser lie: the geometry of ops/quantize.
WeightLayout activation_layout(ActivationQuant q) {
  switch (q) {
    case ActivationQuant::kFp8Block128:
    case ActivationQuant::kFp8Block128Ue8m0:
      return {Element::kE4m3, ScaleType::kF32, 1, 128};
    case ActivationQuant::kFp8Token:
      return {Element::kE4m3, ScaleType::kF32, 1, 0};
    case ActivationQuant::kFp8Tensor:
      return {Element::kE4m3, ScaleType::kNone, 1, 0};
    case ActivationQuant::kMxfp8:
      return {Element::kE4m3, ScaleType::kE8m0, 1, 32};
    case ActivationQuant::kNvfp4:
      return {Element::kE2m1, ScaleType::kE4m3, 1, 16};
    default:
      return {Element::kBf16, ScaleType::kNone, 1, 0};
  }
}

std::string activations_text(ActivationQuant kind, const Example& e) {
  std::int64_t rows = std::int64_t(e.rows.size()), cols = std::int64_t(e.rows[0].size());
  std::vector<float> x = flat(e.rows);
  std::vector<std::uint8_t> codes(std::size_t(rows * ops::activation_code_bytes(kind, cols)), 0xee);
  std::vector<std::uint8_t> scales(std::size_t(rows * ops::activation_scale_bytes(kind, cols)),
                                   0xee);
  ops::quantize_rows_to_codes({.kind = kind,
                               .x = x.data(),
                               .rows = rows,
                               .cols = cols,
                               .static_scale = e.static_scale,
                               .codes = codes.data(),
                               .scales = scales.data()});
  Stored s{activation_layout(kind), rows, cols, codes.data(), scales.data(), e.static_scale};
  std::string out;
  if (is_static(kind)) out += fmt::format("static scale {}\n", e.static_scale);
  return out + s.text(e.rows);
}

TEST(FormatPages, WeightsAreWhatTheLibraryWrites) {
  auto page = examples();
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu)) {
    std::string name = "weights of " + std::string(show_format(leaf->id.quant));
    ASSERT_TRUE(page.contains(name)) << "docs/formats.md has no ```bytes " << name;
    const Example& e = page[name];
    ASSERT_GE(e.rows.size(), 2u) << name;
    EXPECT_EQ(weights_text(*leaf, e), e.body) << "```bytes " << name;
  }
}

TEST(FormatPages, ActivationsAreWhatTheLibraryWrites) {
  auto page = examples();
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu)) {
    std::string name = "activations of " + std::string(show_format(leaf->id.quant));
    bool quantised = leaf->activation != ActivationQuant::kNone;
    ASSERT_EQ(page.contains(name), quantised) << name;
    if (!quantised) continue;
    const Example& e = page[name];
    ASSERT_GE(e.rows.size(), 2u) << name;
    EXPECT_EQ(activations_text(leaf->activation, e), e.body) << "```bytes " << name;
  }
}

TEST(FormatPages, NoExampleIsLeftOver) {
  std::size_t expected = 0;
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu))
    expected += leaf->activation == ActivationQuant::kNone ? 1 : 2;
  EXPECT_EQ(examples().size(), expected);
}

// The formulas hold beyond the small examples: several blocks each way, the last ones partial.
TEST(FormatPages, IndexFormulasFindEveryWeight) {
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu)) {
    const std::int64_t rows = 130, cols = 262;
    Matrix m = make_matrix(leaf->weights, rows, cols, 7);
    Stored s = stored(m);
    std::int64_t shifted = 0;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(s.value(r, c), m.value(r, c)) << leaf->id.str() << " at " << r << ", " << c;
        shifted += s.value(r, c ^ 1) != m.value(r, c);
      }
    EXPECT_GT(shifted, rows * cols / 2) << "the control: a neighbour's code is another one";
  }
}

}  // namespace
}  // namespace switchyard::test
