// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "switchyard/base/device_stream.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/random.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "tests/cases/moe_case.h"
#include "tests/support/device.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using test::OnDevice;

class GemmPrefillCuda : public test::NeedsGpu {};

/// Rows sorted by expert and weights as they lie on the device, with distinct biases and constants
/// of the activation for each expert.
struct PrefillCase {
  PrefillCase(std::vector<std::int32_t> rows_of, std::int64_t rows_out, std::int64_t cols)
      : counts(std::move(rows_of)), layout{.rows = rows_out, .cols = cols} {
    std::int32_t next = 0;
    for (std::int32_t c : counts) {
      offsets.push_back(next);
      next += (c + 7) / 8 * 8;
      rows += c;
    }
    capacity = sorted_capacity(rows, experts());
    const Random random(5, 1);
    const auto bf16 = [&](std::size_t i, float scale) {
      return float_to_bf16(scale * random.normal(std::uint64_t(i)));
    };
    const std::size_t of_expert = layout.bytes() / 2;
    for (std::size_t e = 0; e < counts.size(); ++e)
      for (std::size_t i = 0; i < of_expert; ++i)
        weights.push_back(bf16(weights.size(), 0.25f + 0.01f * float(e)));
    const RowTiles tiles{.data = nullptr, .capacity = capacity};
    x.assign(tiles.bytes(cols) / 2, 0xffff);  // NaN between experts
    for (std::size_t e = 0; e < counts.size(); ++e)
      for (std::int64_t r = offsets[e]; r < offsets[e] + counts[e]; ++r)
        for (std::int64_t g = 0; g < layout.col_tiles() * 8; ++g)
          for (std::int64_t c = 0; c < 8; ++c)
            x[std::size_t(tiles.at(r, g) - tiles.data) / 2 + std::size_t(c)] =
                bf16(std::size_t((r * 1000 + g) * 8 + c) + weights.size(), 0.5f);
    for (std::int64_t i = 0; i < experts() * layout.rows; ++i)
      bias.push_back(0.3f * random.normal(std::uint64_t(i) + 77));
  }
  std::int64_t experts() const { return std::int64_t(counts.size()); }
  /// Bytes from one expert's bias to the next one's.
  std::int64_t bias_stride() const { return layout.rows * 4; }

  std::vector<std::int32_t> counts, offsets;
  TileLayout layout;
  std::int64_t rows = 0, capacity = 0;
  std::vector<std::uint16_t> weights, x;
  std::vector<float> bias;
};

/// The case's arrays on the device.
struct OnGpu {
  explicit OnGpu(const PrefillCase& c)
      : of(c), weights(c.weights), x(c.x), offsets(c.offsets), counts(c.counts), bias(c.bias) {}

  DeviceGemm gemm() const {
    return {.weights = reinterpret_cast<const std::byte*>(weights.data()),
            .expert_stride = std::int64_t(of.layout.bytes()),
            .layout = of.layout,
            .x = {reinterpret_cast<std::byte*>(x.data()), of.capacity},
            .offsets = offsets.data(),
            .counts = counts.data(),
            .experts = of.experts(),
            .max_tokens = 1 << 20,
            .max_rows = of.rows};
  }
  const std::byte* biases() const { return reinterpret_cast<const std::byte*>(bias.data()); }

  const PrefillCase& of;
  OnDevice<std::uint16_t> weights, x;
  OnDevice<std::int32_t> offsets, counts;
  OnDevice<float> bias;
};

/// FC1's end: what all of its memory holds after a run on poison.
struct Fc1 {
  ActivationParams params;
  bool gated = true;
  bool biased = false;
  std::int64_t inter = 0;
};

std::vector<std::uint16_t> run_fc1(const OnGpu& d, const Fc1& fc1, std::int64_t tile) {
  const RowTiles tiles{.data = nullptr, .capacity = d.of.capacity};
  const OnDevice<std::uint16_t> out(std::vector<std::uint16_t>(tiles.bytes(fc1.inter) / 2, 0xdead));
  std::vector<ActivationParams> each(d.of.counts.size(), fc1.params);
  for (std::size_t e = 0; e < each.size(); ++e) {
    each[e].alpha += 0.125f * float(e);
    each[e].limit += 0.25f * float(e);
  }
  const OnDevice<ActivationParams> params(each);
  const DeviceStream stream;
  gemm_activation_cuda(
      d.gemm(),
      {.scales = {},
       .gate_bias = fc1.biased && fc1.gated ? d.biases() : nullptr,
       // Behind the gate's, where there is a gate.
       .up_bias = fc1.biased ? d.biases() + (fc1.gated ? fc1.inter * 4 : 0) : nullptr,
       .stride = d.of.bias_stride(),
       .params = params.data(),
       .out = {reinterpret_cast<std::byte*>(out.data()), d.of.capacity},
       .inter = fc1.inter,
       .gated = fc1.gated},
      stream.get(), tile);
  stream.wait();
  return out.get();
}

std::vector<float> run_fc2(const OnGpu& d, std::int64_t hidden, bool biased, std::int64_t tile) {
  const std::int64_t stride = (hidden + 3) / 4 * 4;
  const OnDevice<float> out(std::vector<float>(std::size_t(d.of.capacity * stride), NAN));
  const DeviceStream stream;
  gemm_rows_cuda(d.gemm(),
                 {.scales = {},
                  .bias = biased ? d.biases() : nullptr,
                  .stride = d.of.bias_stride(),
                  .out = out.data(),
                  .out_stride = stride,
                  .hidden = hidden},
                 stream.get(), tile);
  stream.wait();
  return out.get();
}

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
std::uint16_t bits_of(std::uint16_t x) { return x; }

/// Elements whose bits differ.
template <class T>
std::int64_t differing(const std::vector<T>& a, const std::vector<T>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += bits_of(a[i]) != bits_of(b[i]);
  return count;
}

/// Both sides of every cut: one tile and two, one weight tile a warpgroup and two.
std::vector<std::int32_t> edges() {
  return {0, 1, 143, 144, 145, 255, 256, 257, 272, 273, 288, 289, 0, 577, 9};
}

TEST_F(GemmPrefillCuda, RowsHaveTheBitsOfTheOtherTiers) {
  for (const auto& [n, k] : {std::pair{64, 64}, {200, 160}, {330, 768}, {1216, 72}}) {
    const PrefillCase c(edges(), n, k);
    const OnGpu d(c);
    for (bool biased : {false, true}) {
      SCOPED_TRACE(testing::Message() << n << " x " << k << (biased ? " with bias" : ""));
      const std::vector<float> want = run_fc2(d, n, biased, 64);
      EXPECT_EQ(differing(run_fc2(d, n, biased, kPrefillTile), want), 0);
      EXPECT_GT(differing(run_fc2(d, n, !biased, kPrefillTile), want), c.rows) << "the control";
    }
  }
}

TEST_F(GemmPrefillCuda, ActivationsHaveTheBitsOfTheOtherTiers) {
  const auto of = [](ActivationType type, bool limited = false, bool after = false) {
    return ActivationParams{.type = type,
                            .has_limit = limited,
                            .limit_after = after,
                            .alpha = 1.5f,
                            .beta = 1,
                            .limit = 2};
  };
  const PrefillCase c(edges(), 2 * 320, 136);
  const OnGpu d(c);
  for (const auto& [params, gated] : {std::pair{of(ActivationType::kSwiglu), true},
                                      {of(ActivationType::kSwiglu, true), true},
                                      {of(ActivationType::kSwiglu, true, true), true},
                                      {of(ActivationType::kSwigluBias, true), true},
                                      {of(ActivationType::kSiTu), true},
                                      {of(ActivationType::kGeglu), true},
                                      {of(ActivationType::kRelu2), false},
                                      {of(ActivationType::kSilu), false},
                                      {of(ActivationType::kIdentity), false}})
    for (bool biased : {false, true}) {
      SCOPED_TRACE(testing::Message() << "kind " << int(params.type) << " limit "
                                      << params.has_limit << (biased ? " with bias" : ""));
      Fc1 fc1{.params = params, .gated = gated, .biased = biased, .inter = gated ? 290 : 610};
      const std::vector<std::uint16_t> want = run_fc1(d, fc1, 64);
      EXPECT_EQ(differing(run_fc1(d, fc1, kPrefillTile), want), 0);
      fc1.biased = !biased;
      EXPECT_GT(differing(run_fc1(d, fc1, kPrefillTile), want), c.rows) << "the control";
    }
}

// Gates far from 0, infinite sums and NaN leave the fast formula; rows beside them stay as they
// are.
TEST_F(GemmPrefillCuda, ExtremeSumsHaveTheBitsOfTheOtherTiers) {
  PrefillCase c({300, 40}, 256, 64);
  const RowTiles tiles{.data = nullptr, .capacity = c.capacity};
  const auto put = [&](std::int64_t row, float value) {
    c.x[std::size_t(tiles.at(row, 0) - tiles.data) / 2] = float_to_bf16(value);
  };
  put(3, 3e38f), put(50, 1e3f), put(100, NAN), put(151, -INFINITY), put(310, 1e-38f);
  const OnGpu d(c);
  const Fc1 fc1{.params = {}, .inter = 128};
  const std::vector<std::uint16_t> want = run_fc1(d, fc1, 64);
  EXPECT_EQ(differing(run_fc1(d, fc1, kPrefillTile), want), 0);
  std::int64_t nan = 0;
  for (std::size_t i = 0; i < want.size(); ++i) nan += (want[i] & 0x7fff) > 0x7f80;
  EXPECT_GE(nan, 128) << "the case holds what it is about";
}

TEST_F(GemmPrefillCuda, ManyExpertsAndNone) {
  std::vector<std::int32_t> counts(kPrefillExperts, 0);
  for (std::size_t e = 0; e < counts.size(); e += 3) counts[e] = std::int32_t(e * 7 % 23);
  counts[500] = 700;
  const PrefillCase c(counts, 64, 64);
  const OnGpu d(c);
  const std::vector<float> want = run_fc2(d, 64, true, 64);
  EXPECT_EQ(differing(run_fc2(d, 64, true, kPrefillTile), want), 0);
  DeviceGemm empty = d.gemm();
  empty.experts = 1;  // the first one has no rows, though the call allows for some
  empty.max_rows = 9;
  const OnDevice<float> out(std::vector<float>(64, NAN));
  const DeviceStream stream;
  gemm_rows_cuda(empty, {.scales = {}, .out = out.data(), .out_stride = 64, .hidden = 64},
                 stream.get(), kPrefillTile);
  stream.wait();
  for (float v : out.get()) EXPECT_TRUE(std::isnan(v)) << "nothing is written";
  EXPECT_EQ(differing(run_fc2(d, 64, true, kPrefillTile), want), 0) << "three calls, same bits";
}

/// FC1 on E4M3 codes: experts with gate and up (or up alone) of their own, rows, and all scales.
struct CodesCase {
  CodesCase(const formats::WeightLayout& weights, ActivationQuant quant, bool is_gated)
      : kind(quant), gated(is_gated), counts(edges()) {
    for (std::int32_t c : counts) {
      offsets.push_back(std::int32_t(source.size()));
      for (std::int32_t r = 0; r < (c + 7) / 8 * 8; ++r) source.push_back(r < c ? r : -1);
    }
    capacity = sorted_capacity(std::int64_t(source.size()), std::int64_t(counts.size()));
    offsets.push_back(std::int32_t(source.size()));
    source.resize(std::size_t(capacity), -1);
    layout = {.rows = kPadded * (gated ? 2 : 1), .cols = kHidden, .code = TileCode::kE4m3Operand};
    for (std::size_t e = 0; e < counts.size(); ++e) pack(weights, e);
    const Random random(9, 3);
    const RowTiles tiles{.data = nullptr, .capacity = capacity, .codes = true};
    for (std::size_t i = 0; i < tiles.bytes(kHidden); ++i)
      x.push_back(std::byte(formats::encode_e4m3(20 * random.normal(i))));
    for (std::int64_t i = 0; i < 2 * capacity; ++i)
      scales.push_back(0.01f + 0.01f * random.uniform(std::uint64_t(i)));
  }
  void pack(const formats::WeightLayout& weights, std::size_t e) {
    packed.resize((e + 1) * bytes());
    std::byte* at = packed.data() + e * bytes();
    const auto add = [&](RowPlace place, std::size_t seed) {
      const formats::Matrix m = test::make_matrix(weights, kInter, kHidden, seed);
      pack_tiles(m, layout, place, {at, layout.bytes()});
      auto* factors = reinterpret_cast<float*>(at + layout.bytes());
      pack_factors(m, layout, place, {factors, layout.factor_bytes() / 4});
    };
    if (gated) add(RowPlace::kGate, 100 + 7 * e);
    add(gated ? RowPlace::kUp : RowPlace::kPlain, 103 + 7 * e);
    auto* bias = reinterpret_cast<float*>(at + bias_at());
    const Random random(2, 4 + e);
    for (std::size_t i = 0; i < 2 * kPadded; ++i) bias[i] = 0.3f * random.normal(i);
  }
  /// Behind the weights and their factors: of gate, then of up.
  std::size_t bias_at() const { return layout.bytes() + layout.factor_bytes(); }
  std::size_t bytes() const { return bias_at() + 2 * kPadded * 4; }

  static constexpr std::int64_t kInter = 290, kPadded = 384, kHidden = 136;
  ActivationQuant kind;
  bool gated;
  std::vector<std::int32_t> counts, offsets, source;
  std::int64_t capacity = 0;
  TileLayout layout;
  std::vector<std::byte> packed, x;
  std::vector<float> scales;
};

/// All that FC2 reads, after a run on poison.
struct Input {
  std::vector<std::byte> codes;
  std::vector<float> block_scales, token_scales;
  bool operator==(const Input& o) const {
    return codes == o.codes && differing(block_scales, o.block_scales) == 0 &&
           differing(token_scales, o.token_scales) == 0;
  }
};

/// One tier, and the quantiser where the tier leaves it rows.
Input run_codes(const CodesCase& c, const ActivationParams& kind, bool biased, std::int64_t tile) {
  RowTiles out{.data = nullptr, .capacity = c.capacity, .codes = true};
  const OnDevice<std::byte> weights(c.packed), x(c.x);
  const OnDevice<std::byte> codes(std::vector<std::byte>(out.bytes(c.kInter), std::byte(0x55)));
  const OnDevice<float> scales(c.scales);
  const OnDevice<float> blocks(std::vector<float>(std::size_t(3 * c.capacity), -7));
  const OnDevice<float> tokens(std::vector<float>(std::size_t(c.capacity), -7));
  const OnDevice<float> rows(std::vector<float>(std::size_t(c.capacity * c.kPadded), NAN));
  const OnDevice<std::int32_t> offsets(c.offsets), counts(c.counts), source(c.source);
  const OnDevice<ActivationParams> params(std::vector<ActivationParams>(c.counts.size(), kind));
  const bool blocked = has_block_scales(c.kind), fp32 = ends_in_rows(c.kind);
  const std::byte* biases = weights.data() + c.bias_at();
  out.data = codes.data();
  const DeviceStream stream;
  const bool written =
      gemm_activation_cuda({.weights = weights.data(),
                            .expert_stride = std::int64_t(c.bytes()),
                            .layout = c.layout,
                            .x = {.data = x.data(), .capacity = c.capacity, .codes = true},
                            .block_scales = blocked ? scales.data() : nullptr,
                            .offsets = offsets.data(),
                            .counts = counts.data(),
                            .experts = std::int64_t(c.counts.size()),
                            .max_tokens = 1 << 20,
                            .max_rows = c.offsets.back()},
                           {.scales = {.factors = weights.data() + c.layout.bytes(),
                                       .tokens = blocked ? nullptr : scales.data()},
                            .gate_bias = biased && c.gated ? biases : nullptr,
                            .up_bias = biased ? biases + c.kPadded * 4 : nullptr,
                            .stride = std::int64_t(c.bytes()),
                            .params = params.data(),
                            .quant = c.kind,
                            .out = out,
                            .block_scales = blocks.data(),
                            .rows = fp32 ? rows.data() : nullptr,
                            .rows_stride = c.kPadded,
                            .inter = c.kInter,
                            .gated = c.gated},
                           stream.get(), tile);
  if (!written)
    quantize_rows_cuda(
        {.rows = rows.data(),
         .stride = c.kPadded,
         .cols = c.kInter,
         .end = offsets.data() + c.counts.size(),
         .source = source.data(),
         .quant = c.kind,
         .out = {out, blocked ? nullptr : tokens.data(), blocked ? blocks.data() : nullptr}},
        stream.get());
  stream.wait();
  return {codes.get(), blocks.get(), tokens.get()};
}

TEST_F(GemmPrefillCuda, CodesOfFc1HaveTheBitsOfTheOtherTiers) {
  ActivationParams clamped{.type = ActivationType::kSwigluBias, .has_limit = true, .alpha = 1.5f};
  clamped.beta = 1, clamped.limit = 2;
  for (ActivationQuant kind : {ActivationQuant::kFp8Block128, ActivationQuant::kFp8Block128Ue8m0,
                               ActivationQuant::kFp8Token, ActivationQuant::kFp8Tensor})
    for (const auto& weights : {formats::kFp8BlockLayout, formats::kFp8ChannelLayout})
      for (bool gated : {true, false}) {
        const CodesCase c(weights, kind, gated);
        const ActivationParams plain{.type =
                                         gated ? ActivationType::kSwiglu : ActivationType::kRelu2};
        SCOPED_TRACE(testing::Message() << to_string(kind) << (gated ? " gated" : ""));
        for (const auto& [params, biased] : {std::pair{plain, false}, {plain, true}}) {
          const Input want = run_codes(c, params, biased, 64);
          EXPECT_TRUE(run_codes(c, params, biased, kPrefillTile) == want);
          EXPECT_FALSE(run_codes(c, params, !biased, kPrefillTile) == want) << "the control";
        }
        if (gated) {
          EXPECT_TRUE(run_codes(c, clamped, true, kPrefillTile) == run_codes(c, clamped, true, 64));
        }
      }
}

// Rows that leave the fast formula, and tokens whose scale is NaN or infinite.
TEST_F(GemmPrefillCuda, ExtremeCodesHaveTheBitsOfTheOtherTiers) {
  CodesCase c(formats::kFp8BlockLayout, ActivationQuant::kFp8Block128, true);
  const float values[] = {3e4f, NAN, INFINITY, 1e-30f, 0};
  for (std::int64_t i = 0; i < 2 * c.capacity; i += 3)
    c.scales[std::size_t(i)] = values[std::size_t(i / 3 % 5)];
  const Input want = run_codes(c, {}, false, 64);
  EXPECT_TRUE(run_codes(c, {}, false, kPrefillTile) == want);
  std::int64_t nan = 0;
  for (float s : want.block_scales) nan += std::isnan(s);
  EXPECT_GE(nan, 100) << "the case holds what it is about";
}

}  // namespace
}  // namespace switchyard::ops
