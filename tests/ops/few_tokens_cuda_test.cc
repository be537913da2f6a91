// SPDX-License-Identifier: Apache-2.0
// What few tokens do in fewer launches or with less code, against the launches that serve all, bit
// for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "switchyard/base/device_stream.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/errors.h"
#include "switchyard/base/random.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/grouped_ffn/routing_launch.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"
#include "tests/support/device.h"
#include "tests/support/held_recipes.h"
#include "tests/support/route_case.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using test::OnDevice;
using test::RouteCase;

class FewTokensCuda : public test::NeedsGpu {};

// ---- routing, sorting and quantising ----

/// All that the launches write.
struct Arranged {
  std::vector<std::int32_t> ids, offsets, counts, source, sorted_of, arrivals;
  std::vector<float> weights, token_scales, block_scales;
  std::vector<std::byte> tiles;

  bool operator==(const Arranged&) const = default;
};

struct Gathered {
  ActivationQuant quant = ActivationQuant::kNone;
  bool codes = false;
  std::int64_t hidden = 200;
  std::int64_t offset = 0;  // of the first token, in elements: 1 is no multiple of 16 bytes
};

enum class Way { kGeneral, kCompiled, kJoined };

/// Poisons everything, routes and arranges.
Arranged arrange(RouteCase& c, const Gathered& g, Way way) {
  const std::int64_t tokens = c.rows, k = c.spec.top_k, experts = c.spec.num_experts;
  const std::int64_t capacity = sorted_capacity(tokens * k, experts);
  const auto ints = [](std::int64_t n) { return std::vector<std::int32_t>(std::size_t(n), -77); };
  const auto floats = [](std::int64_t n) { return std::vector<float>(std::size_t(n), -7); };
  std::vector<std::uint16_t> hidden(std::size_t(g.offset));
  const Random random(9, 2);
  for (std::int64_t i = 0; i < tokens * g.hidden; ++i)
    hidden.push_back(float_to_bf16(random.normal(std::uint64_t(i))));
  RowTiles tiles{.data = nullptr, .capacity = capacity, .codes = g.codes};
  const OnDevice<std::uint16_t> x(hidden);
  const OnDevice<float> logits(c.logits), bias(c.bias), weights(floats(tokens * k));
  const OnDevice<std::int32_t> ids(ints(tokens * k)), offsets(ints(experts + 1));
  const OnDevice<std::int32_t> counts(ints(experts)), source(ints(capacity));
  const OnDevice<std::int32_t> sorted_of(ints(tokens * k)), arrivals(ints(1000));
  const OnDevice<float> of_token(floats(capacity));
  const OnDevice<float> of_block(floats((g.hidden + 127) / 128 * capacity));
  const OnDevice<std::byte> out(std::vector<std::byte>(tiles.bytes(g.hidden), std::byte(0x55)));
  tiles.data = out.data();
  RouteArgs route = c.args();
  route.logits.data = logits.data();
  route.choice_bias = c.spec.choice_bias ? bias.data() : nullptr;
  route.ids = {ids.data(), tokens, k, k};
  route.weights = {weights.data(), tokens, k, k};
  const DeviceSort sort{.ids = ids.data(),
                        .tokens = tokens,
                        .top_k = k,
                        .experts = experts,
                        .offsets = offsets.data(),
                        .counts = counts.data(),
                        .source = source.data(),
                        .sorted_of = sorted_of.data(),
                        .arrivals = arrivals.data(),
                        .num_arrivals = 999};
  const bool scales = g.quant == ActivationQuant::kFp8Token || formats::is_static(g.quant);
  const DeviceGather gather{.x = x.data() + g.offset,
                            .x_stride = g.hidden,
                            .hidden = g.hidden,
                            .quant = g.quant,
                            .static_scale = 0.037f,
                            .out = {tiles, scales ? of_token.data() : nullptr,
                                    has_block_scales(g.quant) ? of_block.data() : nullptr}};
  const DeviceStream stream;
  if (way == Way::kJoined) {
    route_and_arrange_cuda(route, sort, gather, stream.get());
  } else {
    const bool compiled = way == Way::kCompiled;
    route_cuda(route, stream.get(), compiled ? RouterWish::kCompiled : RouterWish::kGeneral);
    sort_and_gather_cuda(sort, gather, stream.get());
  }
  stream.wait();
  return {ids.get(),      offsets.get(), counts.get(),   source.get(),   sorted_of.get(),
          arrivals.get(), weights.get(), of_token.get(), of_block.get(), out.get()};
}

TEST_F(FewTokensCuda, EveryWayRoutesAndSortsWithTheSameBits) {
  for (const RoutingSpec& spec : test::held_recipes())
    for (std::int64_t tokens : {1, 3, 8}) {
      SCOPED_TRACE(testing::Message() << describe(spec) << ", " << tokens << " tokens");
      RouteCase c(spec, tokens, unsigned(spec.top_k + tokens)), other(spec, tokens, 99);
      const Arranged general = arrange(c, {}, Way::kGeneral);
      EXPECT_EQ(arrange(c, {}, Way::kCompiled), general);
      EXPECT_EQ(arrange(c, {}, Way::kJoined), general);
      EXPECT_EQ(general.arrivals[998], 0);
      EXPECT_EQ(general.arrivals[999], -77) << "the canary behind them";
      if (spec.num_experts > 1) {
        EXPECT_NE(arrange(other, {}, Way::kJoined), general) << "the control: other logits";
      }
    }
}

TEST_F(FewTokensCuda, EveryWayOrdersSpecialLogitsAndTies) {
  for (const RoutingSpec& spec : test::held_recipes()) {
    SCOPED_TRACE(describe(spec));
    RouteCase c(spec, test::kSpecialRows);
    test::set_special_rows(c);
    const Arranged general = arrange(c, {}, Way::kGeneral);
    EXPECT_EQ(arrange(c, {}, Way::kCompiled), general);
    EXPECT_EQ(arrange(c, {}, Way::kJoined), general);
  }
}

TEST_F(FewTokensCuda, EveryWayQuantisesWithTheSameBits) {
  using enum ActivationQuant;
  for (RoutingMethodType method : {RoutingMethodType::kRenormalize, RoutingMethodType::kDeepSeekV3})
    for (const auto& [quant, codes] : {std::pair{kNone, false},
                                       {kFp8Block128, true},
                                       {kFp8Block128, false},
                                       {kFp8Block128Ue8m0, true},
                                       {kFp8Token, true},
                                       {kFp8Token, false},
                                       {kFp8Tensor, true},
                                       {kFp8Tensor, false},
                                       {kMxfp8, false},
                                       {kNvfp4, false}})
      for (const auto& [hidden, offset] : {std::pair{72, 0}, {2304, 0}, {2880, 0}, {321, 1}}) {
        SCOPED_TRACE(testing::Message() << to_string(quant) << ", " << hidden << " columns");
        RouteCase c(make_routing(method, 20, 3), 5);
        const Gathered g{quant, codes, hidden, offset};
        const Arranged general = arrange(c, g, Way::kGeneral);
        EXPECT_EQ(arrange(c, g, Way::kJoined), general);
        const Gathered less{quant, codes, hidden - 1, offset};
        EXPECT_NE(arrange(c, less, Way::kJoined).tiles, general.tiles) << "the control: a column";
      }
}

TEST_F(FewTokensCuda, ACallThatTheJoinedLaunchDoesNotServeIsRefused) {
  RouteCase many(make_routing(RoutingMethodType::kRenormalize, 20, 3), 9),
      plain(make_routing(RoutingMethodType::kTopK, 20, 3), 2);
  EXPECT_THROW(arrange(many, {}, Way::kJoined), InternalError);
  EXPECT_THROW(arrange(plain, {}, Way::kJoined), InternalError);
  RouteCase good(make_routing(RoutingMethodType::kRenormalize, 20, 3), 8);
  EXPECT_EQ(arrange(good, {}, Way::kJoined), arrange(good, {}, Way::kGeneral));
}

// ---- FC1's end ----

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
