// SPDX-License-Identifier: Apache-2.0
// What FC1's end does for few tokens, against the launch behind it that does it for many, bit for
// bit.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "switchyard/base/device_stream.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/random.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"
#include "tests/support/device.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using test::OnDevice;

class FewTokensCuda : public test::NeedsGpu {};

/// FC1 of E4M3 codes under block scales; all rows of weights and of tokens have their own.
struct EndCase {
  explicit EndCase(bool gates) : gated(gates) {
    layout = {.rows = 256 * (gated ? 2 : 1), .cols = 256, .code = TileCode::kE4m3Operand};
    std::int32_t next = 0;
    for (std::int32_t count : counts) {
      offsets.push_back(next);
      next += (count + 7) / 8 * 8;
    }
    capacity = next;
    const Random random(4, 8);
    const auto code = [&](std::size_t i) {
      return std::byte(random.bits(std::uint64_t(i)) & 0xb7);  // finite, below 1
    };
    for (std::size_t e = 0; e < counts.size(); ++e) {
      std::vector<std::byte> expert(layout.bytes());
      for (std::size_t i = 0; i < expert.size(); ++i) expert[i] = code(e * 1000003 + i);
      for (std::int64_t i = 0; i < layout.row_tiles() * layout.col_tiles() * 2; ++i) {
        const float scale = 0.001f * (1 + random.uniform(std::uint64_t(i) + 77 * e));
        std::memcpy(&expert[std::size_t(layout.scales_at() + i * 4)], &scale, 4);
      }
      weights.insert(weights.end(), expert.begin(), expert.end());
    }
    for (std::int64_t i = 0; i < capacity * 256; ++i) x.push_back(code(std::size_t(i) + 99));
    for (std::int64_t i = 0; i < capacity * 2; ++i)
      x_scales.push_back(0.01f * (1 + random.uniform(std::uint64_t(i) + 5)));
  }

  const std::vector<std::int32_t> counts{0, 1, 3, 8, 5, 0, 7, 13};  // 13: two tiles of tokens
  const std::int64_t inter = 200, padded = 256;
  bool gated;
  TileLayout layout;
  std::int64_t capacity = 0;
  std::vector<std::int32_t> offsets;
  std::vector<std::byte> weights, x;
  std::vector<float> x_scales;
};

struct Ended {
  std::vector<std::byte> codes;
  std::vector<float> scales;

  bool operator==(const Ended&) const = default;
};

/// FC1, quantised by its end where `arrived` is a number, else by the pass behind it.
Ended end_fc1(const EndCase& c, ActivationQuant quant, std::optional<std::int32_t> arrived) {
  const OnDevice<std::byte> w(c.weights), x(c.x);
  const OnDevice<std::int32_t> offsets(c.offsets), counts(c.counts);
  const OnDevice<float> x_scales(c.x_scales), scales(std::vector<float>(c.x_scales.size(), -7));
  const OnDevice<float> rows(std::vector<float>(std::size_t(c.capacity * c.padded), NAN));
  const OnDevice<std::int32_t> arrivals(
      std::vector<std::int32_t>(std::size_t(c.capacity / 8 * 2), arrived.value_or(0)));
  RowTiles out{.data = nullptr, .capacity = c.capacity, .codes = true};
  const OnDevice<std::byte> codes(std::vector<std::byte>(out.bytes(c.inter), std::byte(0x55)));
  out.data = codes.data();
  std::vector<std::int32_t> choices(std::size_t(c.capacity), -1);
  for (std::size_t e = 0; e < c.counts.size(); ++e)
    std::fill_n(choices.begin() + c.offsets[e], c.counts[e], 0);
  const OnDevice<std::int32_t> source(choices), end(std::vector{std::int32_t(c.capacity)});
  const OnDevice<ActivationParams> params(std::vector<ActivationParams>(
      c.counts.size(), {.type = c.gated ? ActivationType::kSwiglu : ActivationType::kRelu2}));
  const DeviceStream stream;
  const bool written =
      gemm_activation_cuda({.weights = w.data(),
                            .expert_stride = std::int64_t(c.layout.bytes()),
                            .layout = c.layout,
                            .x = {.data = x.data(), .capacity = c.capacity, .codes = true},
                            .block_scales = x_scales.data(),
                            .offsets = offsets.data(),
                            .counts = counts.data(),
                            .experts = std::int64_t(c.counts.size()),
                            .max_tokens = 1 << 20,
                            .max_rows = c.capacity},
                           {.scales = {},
                            .params = params.data(),
                            .quant = quant,
                            .out = out,
                            .block_scales = scales.data(),
                            .rows = rows.data(),
                            .rows_stride = c.padded,
                            .arrivals = arrived ? arrivals.data() : nullptr,
                            .inter = c.inter,
                            .gated = c.gated},
                           stream.get(), kCountingTile);
  EXPECT_EQ(written, arrived.has_value());
  if (!written)
    quantize_rows_cuda({.rows = rows.data(),
                        .stride = c.padded,
                        .cols = c.inter,
                        .end = end.data(),
                        .source = source.data(),
                        .quant = quant,
                        .out = {out, nullptr, scales.data()}},
                       stream.get());
  stream.wait();
  return {codes.get(), scales.get()};
}

TEST_F(FewTokensCuda, TheLastRowTileQuantisesWithTheBitsOfThePass) {
  for (bool gated : {true, false})
    for (ActivationQuant quant :
         {ActivationQuant::kFp8Block128, ActivationQuant::kFp8Block128Ue8m0}) {
      SCOPED_TRACE(testing::Message() << to_string(quant) << (gated ? ", gated" : ""));
      const EndCase c(gated);
      const Ended pass = end_fc1(c, quant, std::nullopt);
      EXPECT_EQ(end_fc1(c, quant, 0), pass);
      EXPECT_NE(end_fc1(c, quant, 1000), pass) << "the control: nobody comes last";
    }
}

}  // namespace
}  // namespace switchyard::ops
