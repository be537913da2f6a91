// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "switchyard/base/device_stream.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/random.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/nvfp4.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "tests/cases/moe_case.h"
#include "tests/support/device.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using test::OnDevice;

class GroupedGemmCuda : public test::NeedsGpu {};

constexpr formats::WeightLayout kBf16Weights{.element = formats::Element::kBf16};

/// How a case's matrices are stored.
struct Stored {
  const char* name = "bf16";
  formats::WeightLayout weights = kBf16Weights;
  ActivationQuant inputs = ActivationQuant::kNone;

  bool block_inputs() const { return has_block_scales(inputs); }
};

/// Every tile code, E4M3 both ways.
std::vector<Stored> all_stored() {
  using formats::Element;
  using formats::ScaleType;
  formats::WeightLayout mxfp4{.element = Element::kE2m1, .scale = ScaleType::kE8m0};
  mxfp4.block_cols = 32;
  return {{},
          {"fp8 channels", formats::kFp8ChannelLayout},
          {"fp8 tensor", formats::kFp8TensorLayout},
          {"fp8 blocks", formats::kFp8BlockLayout},
          {"fp8 channels, codes", formats::kFp8ChannelLayout, ActivationQuant::kFp8Token},
          {"fp8 tensor, codes", formats::kFp8TensorLayout, ActivationQuant::kFp8Tensor},
          {"fp8 blocks, codes", formats::kFp8BlockLayout, ActivationQuant::kFp8Block128},
          {"fp8 channels, block codes", formats::kFp8ChannelLayout, ActivationQuant::kFp8Block128},
          {"mxfp4", mxfp4},
          {"nvfp4", formats::kNvfp4Layout},
          {"nvfp4 per 32", formats::kNvfp4WideLayout}};
}

/// Rows sorted by expert, with distinct weights for each expert, and FC2's end.
struct GemmCase {
  GemmCase(std::vector<std::int32_t> rows_of, std::int64_t rows_out, std::int64_t cols,
           const Stored& stored = {})
      : counts(std::move(rows_of)),
        n(rows_out),
        k(cols),
        layout{.rows = n, .cols = k, .code = tile_code(stored.weights, k, stored.inputs)} {
    std::int32_t next = 0;
    for (std::int32_t c : counts) {
      offsets.push_back(next);
      next += (c + 7) / 8 * 8;
      rows += c;
    }
    capacity = sorted_capacity(rows, std::int64_t(counts.size()));
    const Random random(3, 1);
    for (std::int64_t i = 0; i < capacity * k; ++i) {
      const float v = random.normal(std::uint64_t(i));
      x.push_back(float_to_bf16(codes() ? formats::round_e4m3(v) : v));  // either is exact
    }
    for (std::size_t e = 0; e < counts.size(); ++e) {
      weights.push_back(test::make_matrix(stored.weights, n, k, 100 + 7 * e));
      pack(e);
    }
    if (!stored.block_inputs()) return;
    for (std::int64_t i = 0; i < (k + 127) / 128 * capacity; ++i)
      block_scales.push_back(0.25f + random.uniform(std::uint64_t(1 << 30) + std::uint64_t(i)));
  }
  /// Packs expert `e`, for the first time or anew.
  void pack(std::size_t e) {
    const std::size_t bytes = expert_bytes();
    packed.resize(std::max(packed.size(), (e + 1) * bytes));
    std::byte* at = packed.data() + e * bytes;
    std::memset(at, 0, bytes);
    pack_tiles(weights[e], layout, RowPlace::kPlain, {at, layout.bytes()});
    std::vector<float> factors(layout.factor_bytes() / sizeof(float));
    if (factors.empty()) return;
    pack_factors(weights[e], layout, RowPlace::kPlain, factors);
    std::memcpy(at + layout.bytes(), factors.data(), layout.factor_bytes());
  }
  /// Sum of the products' magnitudes: what rounding is relative to.
  double magnitude(std::size_t e, std::int64_t row, std::int64_t col) const {
    double sum = 0;
    for (std::int64_t c = 0; c < k; ++c)
      sum += std::abs(
          weights[e].value(col, c) * double(bf16_to_float(x[std::size_t(row * k + c)])) *
          (block_scales.empty() ? 1 : block_scales[std::size_t(c / 128 * capacity + row)]));
    return sum;
  }
  /// Rows and weights are E4M3 on their way into the tensor cores.
  bool codes() const { return layout.code == TileCode::kE4m3Operand; }
  /// Of one GEMM fed its own input, on bf16 tensor cores and on those of FP8.
  double budget() const { return codes() ? 2e-3 : 1e-5; }
  std::size_t expert_bytes() const { return layout.bytes() + layout.factor_bytes(); }
  std::int64_t stride() const { return (n + 3) / 4 * 4; }

  /// The rows as the kernel reads them; what lies between experts is NaN.
  std::vector<std::byte> tiles() const {
    RowTiles t{.data = nullptr, .capacity = capacity, .codes = codes()};
    std::vector<std::byte> out(t.bytes(k), std::byte(0xff));
    t.data = out.data();
    for (std::size_t e = 0; e < counts.size(); ++e)
      for (std::int64_t r = offsets[e]; r < offsets[e] + counts[e]; ++r)
        for (std::int64_t c = 0; c < layout.col_tiles() * t.tile_cols(); ++c) {
          const std::uint16_t bits = c < k ? x[std::size_t(r * k + c)] : std::uint16_t(0);
          const std::uint8_t code = formats::encode_e4m3(bf16_to_float(bits));
          if (codes()) {
            std::memcpy(t.at(r, c / 16) + c % 16, &code, 1);
          } else {
            std::memcpy(t.at(r, c / 8) + c % 8 * 2, &bits, 2);
          }
        }
    return out;
  }
  /// Runs one tier on poisoned memory.
  std::vector<float> run(std::int64_t tile, std::int64_t max_tokens = 1 << 20) const {
    const OnDevice<std::byte> w(packed), rows_in(tiles());
    const OnDevice<std::int32_t> first(offsets), count(counts);
    const OnDevice<float> out(std::vector<float>(std::size_t(capacity * stride()), NAN));
    const OnDevice<float> scales(block_scales);
    const DeviceStream stream;
    gemm_rows_cuda(
        {.weights = w.data(),
         .expert_stride = std::int64_t(expert_bytes()),
         .layout = layout,
         .x = {.data = rows_in.data(), .capacity = capacity, .codes = codes()},
         .block_scales = scales.data(),
         .offsets = first.data(),
         .counts = count.data(),
         .experts = std::int64_t(counts.size()),
         .max_tokens = max_tokens,
         .max_rows = rows},
        {.scales = {.factors = layout.factor_bytes() > 0 ? w.data() + layout.bytes() : nullptr},
         .stride = std::int64_t(expert_bytes()),
         .out = out.data(),
         .out_stride = stride(),
         .hidden = n},
        stream.get(), tile);
    stream.wait();
    return out.get();
  }
  /// sum of products in double.
  double want(std::size_t e, std::int64_t row, std::int64_t col) const {
    double sum = 0;
    for (std::int64_t c = 0; c < k; ++c) {
      const double scale =
          block_scales.empty() ? 1 : double(block_scales[std::size_t(c / 128 * capacity + row)]);
      sum += weights[e].value(col, c) * double(bf16_to_float(x[std::size_t(row * k + c)])) * scale;
    }
    return sum;
  }

  std::vector<std::int32_t> counts, offsets;
  std::int64_t n, k, rows = 0, capacity = 0;
  TileLayout layout;
  std::vector<std::uint16_t> x;
  std::vector<formats::Matrix> weights;
  std::vector<std::byte> packed;
  std::vector<float> block_scales;
};

/// rel L2 to the double result over some rows; `shift` compares with another expert's weights.
double error_of(const GemmCase& c, const std::vector<float>& got, std::size_t shift = 0) {
  double diff = 0, norm = 0;
  for (std::size_t e = 0; e < c.counts.size(); ++e)
    for (std::int64_t r = 0; r < c.counts[e]; r += 1 + c.counts[e] / 11)
      for (std::int64_t col = 0; col < c.n; ++col) {
        const std::int64_t row = c.offsets[e] + r;
        const double want = c.want((e + shift) % c.counts.size(), row, col);
        const double off = double(got[std::size_t(row * c.stride() + col)]) - want;
        diff += off * off;
        norm += want * want;
      }
  return std::sqrt(diff / norm);
}

/// Elements of valid rows whose bits differ.
std::int64_t differing(const GemmCase& c, const std::vector<float>& a,
                       const std::vector<float>& b) {
  std::int64_t count = 0;
  for (std::size_t e = 0; e < c.counts.size(); ++e)
    for (std::int64_t r = c.offsets[e]; r < c.offsets[e] + c.counts[e]; ++r)
      for (std::int64_t col = 0; col < c.n; ++col) {
        const std::size_t i = std::size_t(r * c.stride() + col);
        count += std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]);
      }
  return count;
}

void expect_tiers_agree(const Stored& stored) {
  for (const auto& [n, k] : {std::pair{64, 64}, {200, 160}, {129, 1024}, {72, 24}}) {
    SCOPED_TRACE(stored.name);
    const GemmCase c({0, 1, 70, 0, 300, 9, 257, 31, 5}, n, k, stored);
    const std::vector<float> first = c.run(kTokenTiles[0]);
    EXPECT_LE(error_of(c, first), c.budget()) << n << " " << k;
    EXPECT_GT(error_of(c, first, 1), 0.5) << "the control: the next expert's weights";
    // 64 has two tiers: one row of weight tiles where an expert's rows fit one tile, else two.
    std::vector<std::pair<std::int64_t, std::int64_t>> tiers{{64, 64}};
    for (std::int64_t tile : kTokenTiles) tiers.emplace_back(tile, 1 << 20);
    if (decodes_whole(c.layout.code)) tiers.emplace_back(kWholeTile, 1 << 20);
    if (c.codes()) tiers.emplace_back(kPrefillTile, 1 << 20);
    for (const auto& [tile, max_tokens] : tiers) {
      const std::vector<float> got = c.run(tile, max_tokens);
      EXPECT_LE(error_of(c, got), c.budget()) << "tier " << tile << ": " << n << " x " << k;
      EXPECT_EQ(differing(c, got, first), 0) << "tier " << tile << ": " << n << " x " << k;
    }
  }
}

TEST_F(GroupedGemmCuda, EveryTierMatchesOracleWithTheSameBits) {
  for (const Stored& stored : all_stored()) expect_tiers_agree(stored);
}

// Scale codes of both ends of their ranges, and a NaN, which takes its row and no other.
TEST_F(GroupedGemmCuda, ScalesOfAllSizesAndNan) {
  for (const Stored& stored : all_stored()) {
    SCOPED_TRACE(stored.name);
    if (stored.weights.element == formats::Element::kBf16) continue;
    GemmCase c({3, 20}, 64, 128, stored);
    formats::Matrix m = c.weights[1];
    std::vector<std::byte> codes(m.codes.begin(), m.codes.end());
    std::vector<std::byte> scales(m.scales.begin(), m.scales.end());
    const bool mx = stored.weights.scale == formats::ScaleType::kE8m0;
    for (std::size_t i = 0; mx && i < scales.size(); ++i)
      scales[i] = std::byte(i / 4 % 3 == 0 ? 150 + i % 4 : i / 4 % 3 == 1 ? 60 - i % 4 : 127);
    for (std::size_t i = 0; stored.weights.scale == formats::ScaleType::kE4m3 && i < scales.size();
         ++i)
      scales[i] = std::byte(i % 5 == 0 ? 0x7e : i % 5 == 1 ? 1 : i % 5 == 2 ? 0 : 0x38);
    constexpr std::int64_t kNanRow = 13;
    const bool nan = stored.weights.element == formats::Element::kE4m3;
    if (nan) codes[kNanRow * 128 + 77] = std::byte(0xff);
    m.codes = codes, m.scales = scales;
    c.weights[1] = m;
    c.pack(1);
    const std::vector<float> got = c.run(0);
    for (std::int64_t col = 0; col < c.n; ++col)
      for (std::int64_t row = c.offsets[1]; row < c.offsets[1] + 20; ++row) {
        const float v = got[std::size_t(row * c.stride() + col)];
        if (nan && col == kNanRow) {
          EXPECT_TRUE(std::isnan(v));
          continue;
        }
        const double want = c.want(1, row, col), size = c.magnitude(1, row, col);
        EXPECT_LE(std::abs(double(v) - want), c.budget() * size) << col << " of " << row;
      }
  }
}

TEST_F(GroupedGemmCuda, OneExpertTakesAll) {
  for (std::int32_t rows : {1, 8, 64, 65, 511, 1024}) {
    const GemmCase c({0, rows, 0}, 96, 128);
    EXPECT_LE(error_of(c, c.run(0)), c.budget()) << rows;
  }
  const GemmCase none({0, 0}, 96, 128);
  for (float v : none.run(0)) EXPECT_TRUE(std::isnan(v)) << "nothing is written";
}

/// Sorts and gathers on the device; sizes around the limit of the one-launch form.
struct SortCase {
  SortCase(std::int64_t t, std::int64_t h, bool on_input) : tokens(t), hidden(h), stride(h + 3) {
    const Random random(8, 2);
    for (std::int64_t i = 0; i < tokens * stride; ++i)
      x.push_back(float_to_bf16(random.normal(std::uint64_t(i))));
    for (std::int64_t i = 0; i < tokens * kTopK; ++i) {
      const std::int32_t id = std::int32_t(random.bits(std::uint64_t(i)) % 9) - 1;
      ids.push_back(id == 3 ? 99 : id);  // an id outside counts as -1, expert 3 stays empty
      weights.push_back(0.5f + random.uniform(std::uint64_t(i)));
    }
    capacity = sorted_capacity(tokens * kTopK, kExperts);
    weigh = on_input;
  }
  static constexpr std::int64_t kTopK = 3, kExperts = 7;
  std::int64_t tokens, hidden, stride, capacity = 0;
  bool weigh = false;
  std::vector<std::uint16_t> x;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

void expect_sorted(const SortCase& c) {
  const OnDevice<std::uint16_t> x(c.x);
  const OnDevice<std::int32_t> ids(c.ids);
  const OnDevice<float> weights(c.weights);
  const auto ints = [](std::int64_t n) { return std::vector<std::int32_t>(std::size_t(n), -77); };
  const OnDevice<std::int32_t> offsets(ints(c.kExperts + 1)), counts(ints(c.kExperts));
  const OnDevice<std::int32_t> source(ints(c.capacity)), sorted_of(ints(c.tokens * c.kTopK));
  RowTiles tiles{.data = nullptr, .capacity = c.capacity};
  const OnDevice<std::byte> out(std::vector<std::byte>(tiles.bytes(c.hidden), std::byte(0xff)));
  tiles.data = out.data();
  const DeviceStream stream;
  sort_and_gather_cuda({.ids = ids.data(),
                        .tokens = c.tokens,
                        .top_k = c.kTopK,
                        .experts = c.kExperts,
                        .offsets = offsets.data(),
                        .counts = counts.data(),
                        .source = source.data(),
                        .sorted_of = sorted_of.data()},
                       {.x = x.data(),
                        .x_stride = c.stride,
                        .hidden = c.hidden,
                        .weights = c.weigh ? weights.data() : nullptr,
                        .out = {.tiles = tiles}},
                       stream.get());
  stream.wait();
  std::vector<std::byte> rows = out.get();
  tiles.data = rows.data();
  const std::vector<std::int32_t> sorted = sorted_of.get();
  std::int32_t next = 0;
  for (std::int32_t e = 0; e < c.kExperts; ++e) {
    EXPECT_EQ(offsets.get()[std::size_t(e)], next);
    std::int32_t count = 0;
    for (std::size_t i = 0; i < c.ids.size(); ++i) {
      if (c.ids[i] != e) continue;
      const std::int64_t row = next + count++;
      ASSERT_EQ(sorted[i], row) << "stable order";
      ASSERT_EQ(source.get()[std::size_t(row)], std::int32_t(i));
      for (std::int64_t col = 0; col < (c.hidden + 63) / 64 * 64; ++col) {
        std::uint16_t bits, want = 0;
        std::memcpy(&bits, tiles.at(row, col / 8) + col % 8 * 2, 2);
        if (col < c.hidden) want = c.x[std::size_t(std::int64_t(i) / 3 * c.stride + col)];
        if (c.weigh) want = float_to_bf16(bf16_to_float(want) * c.weights[i]);
        ASSERT_EQ(bits, want) << row << " " << col;
      }
    }
    EXPECT_EQ(counts.get()[std::size_t(e)], count);
    next += (count + 7) / 8 * 8;
  }
  EXPECT_EQ(offsets.get()[std::size_t(c.kExperts)], next);
  for (std::size_t i = 0; i < c.ids.size(); ++i)
    EXPECT_EQ(sorted[i] < 0, c.ids[i] < 0 || c.ids[i] >= c.kExperts);
}

TEST_F(GroupedGemmCuda, SortsAndGathersStably) {
  for (std::int64_t tokens : {1, 7, 64, 65, 1000, 1500})
    for (std::int64_t hidden : {64, 70, 200})
      for (bool weigh : {false, true}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens of " << hidden);
        expect_sorted(SortCase(tokens, hidden, weigh));
      }
}

}  // namespace
}  // namespace switchyard::ops
