// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "switchyard/base/device_stream.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/random.h"
#include "tests/support/device.h"

namespace switchyard::ops {
namespace {

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
  gemm_activation_cuda(d.gemm(),
                       {.scales = {},
                        .gate_bias = fc1.biased && fc1.gated ? d.biases() : nullptr,
                        .up_bias = fc1.biased ? d.biases() + fc1.inter * 4 : nullptr,
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
std::vector<std::int32_t> edges() { return {0, 1, 143, 144, 145, 255, 256, 257, 289, 0, 513, 9}; }

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

}  // namespace
}  // namespace switchyard::ops
