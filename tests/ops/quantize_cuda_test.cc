// SPDX-License-Identifier: Apache-2.0
// The activation quantisers of the device against those of the CPU, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "switchyard/base/device_stream.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/random.h"
#include "switchyard/formats/bits.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/quantize/quantize.h"
#include "tests/support/device.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using test::OnDevice;

class QuantizeCuda : public test::NeedsGpu {};

constexpr float kStatic = 0.037f;

/// Rows of different sizes; some hold zero blocks, huge, tiny, infinite and NaN values.
std::vector<float> make_rows(std::int64_t rows, std::int64_t cols) {
  const Random random(5, 4);
  std::vector<float> x(std::size_t(rows * cols));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t i = r * cols + c;
      float v =
          random.normal(std::uint64_t(i)) * std::ldexp(1.0f, int(r % 9) - 4 + int(c / 16 % 3));
      if (r % 7 == 3 && c / 32 % 2 == 0) v = 0;
      if (r % 7 == 4 && c == cols / 2) v = INFINITY;
      if (r % 7 == 5 && c == cols / 3) v = NAN;
      if (r % 7 == 6) v *= 0x1p-118f;
      x[std::size_t(i)] = v;
    }
  return x;
}

/// What the device wrote of one row.
struct Written {
  std::vector<std::byte> tiles;
  std::vector<float> token_scales, block_scales;
};

bool is_nan(std::uint16_t bits) { return std::isnan(bf16_to_float(bits)); }

/// The bf16 of a stored value: both forms hold it exactly.
std::uint16_t stored_bits(const RowTiles& tiles, std::int64_t r, std::int64_t c) {
  std::uint16_t bits;
  if (tiles.codes)
    return float_to_bf16(formats::decode_e4m3(std::uint8_t(*(tiles.at(r, c / 16) + c % 16))));
  std::memcpy(&bits, tiles.at(r, c / 8) + c % 8 * 2, 2);
  return bits;
}

/// Whether rows are stored as bf16, and as codes where the kind has them.
std::vector<bool> forms_of(ActivationQuant kind) {
  return has_e4m3_codes(kind) ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

/// The values and scales of row `r` are the CPU's. Columns up to whole tiles are those of a row
/// that goes on with zeros: 0 or, beside a NaN scale, NaN.
void expect_row(const RowTiles& tiles, const Written& w, ActivationQuant kind, const float* x,
                std::int64_t r, std::int64_t cols) {
  const std::int64_t width = (cols + kTileCols - 1) / kTileCols * kTileCols;
  std::vector<float> wide(x, x + cols);
  wide.resize(std::size_t(width));
  std::vector<std::uint16_t> values(std::size_t(width), 0x1234);
  std::vector<float> blocks(std::size_t(cols + 127) / 128, -1.0f);
  float row_scale = -1;
  quantize_row_cpu({.kind = kind,
                    .x = wide.data(),
                    .cols = width,
                    .static_scale = kStatic,
                    .values = values.data(),
                    .block_scales = blocks.data(),
                    .row_scale = &row_scale});
  const auto same = [](float a, float b) {
    return formats::float_bits(a) == formats::float_bits(b) || (std::isnan(a) && std::isnan(b));
  };
  for (std::int64_t c = 0; c < width; ++c) {
    const std::uint16_t bits = stored_bits(tiles, r, c);
    const std::uint16_t want = values[std::size_t(c)];
    if (c >= cols) {
      EXPECT_TRUE(want == 0 || is_nan(want)) << "the padding of the CPU's row";
    }
    if (is_nan(bits) && is_nan(want)) continue;  // a GPU's NaN has other bits
    ASSERT_EQ(bits, want) << to_string(kind) << " row " << r << " col " << c;
  }
  if (!w.token_scales.empty()) {
    EXPECT_TRUE(same(w.token_scales[std::size_t(r)], row_scale))
        << w.token_scales[std::size_t(r)] << " " << row_scale;
  }
  for (std::int64_t b = 0; !w.block_scales.empty() && b < (cols + 127) / 128; ++b)
    EXPECT_TRUE(same(w.block_scales[std::size_t(b * tiles.capacity + r)], blocks[std::size_t(b)]))
        << to_string(kind) << " row " << r << " block " << b;
}

void expect_quantised_rows(ActivationQuant kind, bool codes) {
  for (std::int64_t cols : {8, 96, 130, 384, 2880}) {
    constexpr std::int64_t kRows = 40;
    const std::vector<float> x = make_rows(kRows, cols);
    const std::int64_t stride = (cols + 3) / 4 * 4;
    std::vector<float> padded(std::size_t(kRows * stride), NAN);
    for (std::int64_t r = 0; r < kRows; ++r)
      std::copy_n(&x[std::size_t(r * cols)], cols, &padded[std::size_t(r * stride)]);
    std::vector<std::int32_t> source(kRows, 0);
    source[11] = -1;  // a row between experts
    RowTiles tiles{.data = nullptr, .capacity = kRows, .codes = codes};
    const OnDevice<float> rows(padded);
    const OnDevice<std::int32_t> from(source), end(std::vector<std::int32_t>{kRows - 3});
    const OnDevice<std::byte> out(std::vector<std::byte>(tiles.bytes(cols), std::byte(0x55)));
    const OnDevice<float> token(std::vector<float>(kRows, -7));
    const OnDevice<float> blocks(std::vector<float>(std::size_t((cols + 127) / 128 * kRows), -7));
    tiles.data = out.data();
    const DeviceStream stream;
    const bool per_token = kind == ActivationQuant::kFp8Token;
    quantize_rows_cuda({.rows = rows.data(),
                        .stride = stride,
                        .cols = cols,
                        .end = end.data(),
                        .source = from.data(),
                        .quant = kind,
                        .out = {tiles, per_token ? token.data() : nullptr, blocks.data()}},
                       stream.get());
    stream.wait();
    const bool in_blocks =
        kind == ActivationQuant::kFp8Block128 || kind == ActivationQuant::kFp8Block128Ue8m0;
    const Written w{out.get(), per_token ? token.get() : std::vector<float>{},
                    in_blocks ? blocks.get() : std::vector<float>{}};
    tiles.data = const_cast<std::byte*>(w.tiles.data());
    for (std::int64_t r = 0; r < kRows; ++r) {
      if (r != 11 && r < kRows - 3) {
        expect_row(tiles, w, kind, &x[std::size_t(r * cols)], r, cols);
        continue;
      }
      const std::int64_t groups = (cols + tiles.tile_cols() - 1) / tiles.tile_cols() * 8;
      for (std::int64_t g = 0; g < groups; ++g)  // untouched
        ASSERT_EQ(*tiles.at(r, g), std::byte(0x55)) << r << " " << g;
    }
  }
}

// FC2's static quantisers are FC1's end.
TEST_F(QuantizeCuda, RowsHaveTheBitsOfTheCpu) {
  for (ActivationQuant kind :
       {ActivationQuant::kFp8Block128, ActivationQuant::kFp8Block128Ue8m0,
        ActivationQuant::kFp8Token, ActivationQuant::kMxfp8, ActivationQuant::kNone})
    for (bool codes : forms_of(kind)) expect_quantised_rows(kind, codes);
}

/// Tokens of both dtypes on their way to the sorted rows, weighted and not.
void expect_gathered_rows(ActivationQuant kind, bool codes) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16})
    for (std::int64_t tokens : {5, 80})
      for (bool weigh : {false, true}) {
        constexpr std::int64_t kCols = 272, kTopK = 2;
        const std::vector<float> exact = make_rows(tokens, kCols);
        std::vector<std::uint16_t> x(exact.size());
        for (std::size_t i = 0; i < x.size(); ++i)
          store_element(dtype, x.data(), std::int64_t(i), exact[i]);
        std::vector<std::int32_t> ids;
        std::vector<float> weights;
        for (std::int64_t i = 0; i < tokens * kTopK; ++i) {
          ids.push_back(std::int32_t(i * 5 % 3));
          weights.push_back(0.5f + 0.01f * float(i));
        }
        const std::int64_t capacity = sorted_capacity(tokens * kTopK, 3);
        const auto ints = [](std::int64_t n) {
          return std::vector<std::int32_t>(std::size_t(n), -77);
        };
        RowTiles tiles{.data = nullptr, .capacity = capacity, .codes = codes};
        const OnDevice<std::uint16_t> in(x);
        const OnDevice<std::int32_t> chosen(ids), offsets(ints(4)), counts(ints(3));
        const OnDevice<std::int32_t> source(ints(capacity)), sorted_of(ints(tokens * kTopK));
        const OnDevice<float> w(weights), token(std::vector<float>(std::size_t(capacity), -7));
        const OnDevice<float> blocks(std::vector<float>(std::size_t(3 * capacity), -7));
        const OnDevice<std::byte> out(std::vector<std::byte>(tiles.bytes(kCols), std::byte(0x55)));
        tiles.data = out.data();
        const DeviceStream stream;
        const bool scaled = kind == ActivationQuant::kFp8Token || formats::is_static(kind);
        sort_and_gather_cuda({.ids = chosen.data(),
                              .tokens = tokens,
                              .top_k = kTopK,
                              .experts = 3,
                              .offsets = offsets.data(),
                              .counts = counts.data(),
                              .source = source.data(),
                              .sorted_of = sorted_of.data()},
                             {.x = in.data(),
                              .dtype = dtype,
                              .x_stride = kCols,
                              .hidden = kCols,
                              .weights = weigh ? w.data() : nullptr,
                              .quant = kind,
                              .static_scale = kStatic,
                              .out = {tiles, scaled ? token.data() : nullptr, blocks.data()}},
                             stream.get());
        stream.wait();
        const bool in_blocks = kind == ActivationQuant::kFp8Block128;
        const Written got{out.get(), scaled ? token.get() : std::vector<float>{},
                          in_blocks ? blocks.get() : std::vector<float>{}};
        tiles.data = const_cast<std::byte*>(got.tiles.data());
        const std::vector<std::int32_t> place = sorted_of.get();
        for (std::size_t i = 0; i < ids.size(); ++i) {
          std::vector<float> row(kCols);
          for (std::int64_t c = 0; c < kCols; ++c) {
            row[std::size_t(c)] =
                load_element(dtype, x.data(), std::int64_t(i) / kTopK * kCols + c);
            if (weigh) row[std::size_t(c)] *= weights[i];
          }
          expect_row(tiles, got, kind, row.data(), place[i], kCols);
        }
      }
}

TEST_F(QuantizeCuda, GatheredTokensHaveTheBitsOfTheCpu) {
  for (ActivationQuant kind :
       {ActivationQuant::kFp8Block128, ActivationQuant::kFp8Token, ActivationQuant::kFp8Tensor,
        ActivationQuant::kMxfp8, ActivationQuant::kNvfp4})
    for (bool codes : forms_of(kind)) expect_gathered_rows(kind, codes);
}

}  // namespace
}  // namespace switchyard::ops
