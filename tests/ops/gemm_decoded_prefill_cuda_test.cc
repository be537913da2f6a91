// SPDX-License-Identifier: Apache-2.0
// FC1 of 4-bit weights in the prefill tier; its FC2 is among the tiers of grouped_gemm_cuda_test.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "switchyard/base/device_stream.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/random.h"
#include "switchyard/formats/nvfp4.h"
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "tests/cases/moe_case.h"
#include "tests/support/device.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using test::OnDevice;

class GemmDecodedPrefillCuda : public test::NeedsGpu {};

formats::WeightLayout mxfp4() {
  formats::WeightLayout l{.element = formats::Element::kE2m1, .scale = formats::ScaleType::kE8m0};
  l.block_cols = 32;
  return l;
}

/// Both sides of every cut: one tile of tokens and two, one weight tile a warpgroup and two.
std::vector<std::int32_t> edges() { return {0, 1, 127, 128, 129, 255, 256, 257, 150, 0, 513, 9}; }

/// Experts with gate and up (or up alone) of their own, their factors, biases and scales; rows, and
/// the rows' scales.
struct Fc1Case {
  Fc1Case(const formats::WeightLayout& weights, bool is_gated,
          std::vector<std::int32_t> rows_of = edges())
      : gated(is_gated), counts(std::move(rows_of)) {
    std::int32_t next = 0;
    for (std::int32_t c : counts) {
      offsets.push_back(next);
      next += (c + 7) / 8 * 8;
      rows += c;
    }
    capacity = sorted_capacity(rows, experts());
    layout = {.rows = kPadded * (gated ? 2 : 1),
              .cols = kHidden,
              .code = tile_code(weights, kHidden, ActivationQuant::kNone)};
    packed.resize(counts.size() * bytes());
    for (std::size_t e = 0; e < counts.size(); ++e) pack(weights, e);
    const Random random(9, 3);
    const RowTiles tiles{.data = nullptr, .capacity = capacity};
    for (std::size_t i = 0; i < tiles.bytes(kHidden) / 2; ++i)
      x.push_back(float_to_bf16(0.7f * random.normal(i)));
    for (std::int64_t i = 0; i < capacity; ++i)
      scales.push_back(0.5f + random.uniform(std::uint64_t(i)));
  }
  std::int64_t experts() const { return std::int64_t(counts.size()); }
  void pack(const formats::WeightLayout& weights, std::size_t e) {
    std::byte* at = packed.data() + e * bytes();
    const auto add = [&](RowPlace place, std::size_t seed) {
      const formats::Matrix m = test::make_matrix(weights, kInter, kHidden, seed);
      pack_tiles(m, layout, place, {at, layout.bytes()});
      auto* factors = reinterpret_cast<float*>(at + layout.bytes());
      pack_factors(m, layout, place, {factors, layout.factor_bytes() / 4});
    };
    if (gated) add(RowPlace::kGate, 100 + 7 * e);
    add(gated ? RowPlace::kUp : RowPlace::kPlain, 103 + 7 * e);
    auto* floats = reinterpret_cast<float*>(at + bias_at());
    const Random random(2, 4 + e);
    for (std::size_t i = 0; i < 2 * kPadded; ++i) floats[i] = 0.3f * random.normal(i);
    floats[2 * kPadded] = 0.02f + 0.001f * float(e);  // of FC2's input
    floats[2 * kPadded + 1] = 0.9f + 0.01f * float(e);
  }
  /// Behind the weights and their factors: of gate, then of up, then two scales.
  std::size_t bias_at() const { return layout.bytes() + layout.factor_bytes(); }
  std::size_t bytes() const { return bias_at() + (2 * kPadded + 16) * 4; }

  static constexpr std::int64_t kInter = 290, kPadded = 320, kHidden = 1096;
  bool gated;
  std::vector<std::int32_t> counts, offsets;
  std::int64_t rows = 0, capacity = 0;
  TileLayout layout;
  std::vector<std::byte> packed;
  std::vector<std::uint16_t> x;
  std::vector<float> scales;
};

/// What a call asks for beside its weights.
struct End {
  ActivationQuant quant = ActivationQuant::kNone;
  ActivationParams params{};
  bool biased = false;
};

/// All that is written, as bits, after a run on poison.
std::vector<std::uint32_t> run(const Fc1Case& c, const End& end, std::int64_t tile) {
  RowTiles out{.data = nullptr, .capacity = c.capacity};
  const OnDevice<std::byte> weights(c.packed);
  const OnDevice<std::uint16_t> x(c.x);
  const OnDevice<std::uint32_t> written(
      std::vector<std::uint32_t>(out.bytes(c.kInter) / 4, 0x55aa1234));
  const OnDevice<float> scales(c.scales);
  const OnDevice<float> rows(std::vector<float>(std::size_t(c.capacity * c.kPadded), NAN));
  const OnDevice<std::int32_t> offsets(c.offsets), counts(c.counts);
  const OnDevice<ActivationParams> params(
      std::vector<ActivationParams>(c.counts.size(), end.params));
  const bool fp32 = ends_in_rows(end.quant);
  const std::byte* biases = weights.data() + c.bias_at();
  const std::byte* fixed = biases + 2 * c.kPadded * 4;
  out.data = reinterpret_cast<std::byte*>(written.data());
  const DeviceStream stream;
  const bool done = gemm_activation_cuda(
      {.weights = weights.data(),
       .expert_stride = std::int64_t(c.bytes()),
       .layout = c.layout,
       .x = {.data = reinterpret_cast<std::byte*>(x.data()), .capacity = c.capacity},
       .offsets = offsets.data(),
       .counts = counts.data(),
       .experts = c.experts(),
       .max_tokens = 1 << 20,
       .max_rows = c.rows},
      {.scales = {.factors = weights.data() + c.layout.bytes(),
                  .tokens = scales.data(),
                  .experts = fixed + 4},
       .gate_bias = end.biased && c.gated ? biases : nullptr,
       .up_bias = end.biased ? biases + c.kPadded * 4 : nullptr,
       .stride = std::int64_t(c.bytes()),
       .params = params.data(),
       .quant = end.quant,
       .static_scale = formats::is_static(end.quant) ? fixed : nullptr,
       .out = out,
       .rows = fp32 ? rows.data() : nullptr,
       .rows_stride = c.kPadded,
       .inter = c.kInter,
       .gated = c.gated},
      stream.get(), tile);
  stream.wait();
  EXPECT_EQ(done, !fp32);
  std::vector<std::uint32_t> bits = written.get();
  for (float v : rows.get()) bits.push_back(std::bit_cast<std::uint32_t>(v));
  return bits;
}

std::int64_t differing(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

TEST_F(GemmDecodedPrefillCuda, EveryCodeAndQuantiserHasTheBitsOfTheOtherTiers) {
  for (const auto& weights : {mxfp4(), formats::kNvfp4Layout, formats::kNvfp4WideLayout})
    for (bool gated : {true, false}) {
      const Fc1Case c(weights, gated);
      for (ActivationQuant quant :
           {ActivationQuant::kNone, ActivationQuant::kMxfp8, ActivationQuant::kNvfp4,
            ActivationQuant::kFp8Tensor, ActivationQuant::kFp8Token})
        for (bool biased : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << "code " << int(c.layout.code) << " " << to_string(quant)
                       << (gated ? " gated" : "") << (biased ? " with bias" : ""));
          End end{.quant = quant,
                  .params = {.type = gated ? ActivationType::kSwiglu : ActivationType::kRelu2},
                  .biased = biased};
          const std::vector<std::uint32_t> want = run(c, end, 64);
          EXPECT_EQ(differing(run(c, end, kPrefillTile), want), 0);
          end.biased = !biased;
          EXPECT_GT(differing(run(c, end, kPrefillTile), want), c.rows) << "the control";
        }
    }
}

// Of gpt-oss, which runs inline, and one that does not.
TEST_F(GemmDecodedPrefillCuda, OtherActivationsHaveTheBitsOfTheOtherTiers) {
  const Fc1Case c(mxfp4(), true);
  for (ActivationType type : {ActivationType::kSwigluBias, ActivationType::kGeglu}) {
    End end{.params = {.type = type, .has_limit = true, .alpha = 1.5f}, .biased = true};
    end.params.beta = 1, end.params.limit = 2;
    const std::vector<std::uint32_t> want = run(c, end, 64);
    EXPECT_EQ(differing(run(c, end, kPrefillTile), want), 0) << "kind " << int(type);
    end.biased = false;
    EXPECT_GT(differing(run(c, end, kPrefillTile), want), c.rows) << "the control";
  }
}

// More tiles than the grid has places: rings go round.
TEST_F(GemmDecodedPrefillCuda, ManyTilesThreeTimes) {
  std::vector<std::int32_t> counts(300, 0);
  for (std::size_t e = 0; e < counts.size(); e += 2) counts[e] = std::int32_t(e * 37 % 211);
  const Fc1Case c(formats::kNvfp4Layout, true, counts);
  End end{.quant = ActivationQuant::kNvfp4};
  const std::vector<std::uint32_t> want = run(c, end, 64);
  for (int call = 0; call < 3; ++call)
    EXPECT_EQ(differing(run(c, end, kPrefillTile), want), 0) << "call " << call;
}

// The first experts have no rows, though the call allows for some: codes are asked for early, and
// none come.
TEST_F(GemmDecodedPrefillCuda, NoRowsAtAll) {
  const Fc1Case none(mxfp4(), true, {0, 0, 0});
  Fc1Case c = none;
  c.rows = 9, c.capacity = 16;
  c.x.assign(RowTiles{.data = nullptr, .capacity = 16}.bytes(c.kHidden) / 2, 0x7fc0);
  c.scales.assign(16, 1);
  for (std::uint32_t v : run(c, {}, kPrefillTile))
    EXPECT_TRUE(v == 0x55aa1234 || std::isnan(std::bit_cast<float>(v))) << "nothing is written";
}

}  // namespace
}  // namespace switchyard::ops
