// SPDX-License-Identifier: Apache-2.0
// The unquantised projection: every twin and dtype against the oracle, its bits, its mistakes.
#include "switchyard/ops/projection/projection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "switchyard/base/host_buffer.h"
#include "switchyard/base/random.h"
#include "tests/cases/moe_case.h"
#include "tests/support/usage_error.h"

namespace switchyard::ops {
namespace {

using test::usage_error_of;
using testing::HasSubstr;

constexpr double kGemmBudget = 1e-5;  // one GEMM fed its own input, fp32 sums

// One call with everything that it needs; the fields may be changed before run().
struct Case {
  explicit Case(ProjectionShape s, std::int64_t t = 7)
      : shape(s),
        tokens(t),
        weight(test::make_matrix(s.weights, s.out, s.in, 11)),
        packed(s.layout().code_bytes()),
        pool(2) {
    const Random random(3, 1);
    for (std::int64_t i = 0; i < t * s.in; ++i) x.push_back(random.normal(std::uint64_t(i)));
    for (std::int64_t i = 0; i < s.in; ++i) norm.push_back(0.5f + random.uniform(std::uint64_t(i)));
    for (std::int64_t i = 0; i < t * s.out; ++i)
      addend.push_back(0.3f * random.normal(std::uint64_t(i + 99)));
    pack_projection(shape, "weight", weight, packed.bytes());
  }

  ProjectionArgs args() {
    out.assign(std::size_t(tokens * shape.out), std::nanf(""));
    workspace = HostBuffer(projection_workspace_bytes(shape, tokens, pool.size()));
    std::ranges::fill(workspace.bytes(), std::byte(0xff));
    ProjectionArgs a;
    a.shape = &shape;
    a.packed = packed.data();
    a.tokens = tokens;
    a.x_dtype = a.out_dtype = Dtype::kF32;
    a.x = x.data();
    a.x_stride = shape.in;
    a.norm = normed ? norm.data() : nullptr;
    a.norm_eps = 0.25f;
    a.out = out.data();
    a.out_stride = shape.out;
    a.pool = &pool;
    a.isa = isa;
    a.workspace = workspace.bytes();
    return a;
  }

  std::vector<float> run() {
    projection_cpu(args());
    return out;
  }

  double error(const ProjectionShape& as) const {
    const std::vector<double> wide(x.begin(), x.end());
    std::vector<double> r(out.size(), std::nan(""));
    projection_ref({.shape = &as,
                    .weight = &weight,
                    .tokens = tokens,
                    .x = wide.data(),
                    .norm = normed ? norm.data() : nullptr,
                    .norm_eps = 0.25f,
                    .out = r.data()});
    double diff = 0, size = 0;
    for (std::size_t i = 0; i < r.size(); ++i) {
      diff += (out[i] - r[i]) * (out[i] - r[i]);
      size += r[i] * r[i];
    }
    return std::sqrt(diff / size);
  }

  ProjectionShape shape;
  std::int64_t tokens;
  formats::Matrix weight;
  HostBuffer packed, workspace;
  ThreadPool pool;
  bool normed = false;
  CpuIsa isa = test::runnable_tiers().back();
  std::vector<float> x, norm, addend, out;
};

ProjectionShape shape_of(std::int64_t in, std::int64_t out,
                         formats::Element element = formats::Element::kBf16) {
  ProjectionShape s{.in = in, .out = out, .weights = {}};
  s.weights.element = element;
  return s;
}

TEST(Projection, EveryTwinAndDtypeAgreesWithTheOracle) {
  for (CpuIsa isa : test::runnable_tiers())
    for (formats::Element element : {formats::Element::kBf16, formats::Element::kFp16})
      for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kF32})
        for (bool normed : {false, true}) {
          ProjectionShape s = shape_of(98, 130, element);
          s.dtype = dtype;
          Case c(s);
          c.isa = isa, c.normed = normed;
          c.run();
          EXPECT_LE(c.error(s), kGemmBudget) << to_string(isa) << " " << to_string(dtype);
          ProjectionShape exact = s;
          exact.rounds = false;
          if (dtype != Dtype::kF32) {
            EXPECT_GT(c.error(exact), kGemmBudget) << "a rounding left out shows";
          }
          c.normed = !normed;
          EXPECT_GT(c.error(s), 100 * kGemmBudget) << "a norm left out shows";
        }
}

TEST(Projection, ExactModeRoundsNothing) {
  ProjectionShape s = shape_of(96, 64);
  s.rounds = false;
  Case c(s);
  c.run();
  EXPECT_LE(c.error(s), kGemmBudget);
}

TEST(Projection, TheEdgesOfItsShapes) {
  for (std::int64_t in : {1, 31, 32, 33})
    for (std::int64_t out : {1, 15, 16, 17, 65})
      for (std::int64_t tokens : {1, 64, 65}) {
        Case c(shape_of(in, out), tokens);
        c.run();
        EXPECT_LE(c.error(c.shape), kGemmBudget) << in << " -> " << out << ", " << tokens;
      }
}

TEST(Projection, TheAddendJoinsInFp32BeforeTheOutputsRounding) {
  Case c(shape_of(64, 48));
  const std::vector<float> plain = c.run();
  ProjectionArgs a = c.args();
  a.addend = c.addend.data();
  projection_cpu(a);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(c.out[i], plain[i] + c.addend[i]);
  std::vector<std::uint16_t> rounded(std::size_t(c.tokens * 50), 0xffff);
  a = c.args();
  a.addend = c.addend.data();
  a.out_dtype = Dtype::kBf16, a.out = rounded.data(), a.out_stride = 50;
  projection_cpu(a);
  for (std::size_t i = 0; i < rounded.size(); ++i)
    EXPECT_EQ(rounded[i], i % 50 < 48 ? float_to_bf16(plain[i / 50 * 48 + i % 50] +
                                                      c.addend[i / 50 * 48 + i % 50])
                                      : 0xffff);
}

TEST(Projection, ARowsBitsAreItsOwn) {
  for (bool normed : {false, true}) {
    Case many(shape_of(98, 130), 70), one(shape_of(98, 130), 1);
    many.normed = one.normed = normed;
    const std::vector<float> all = many.run();
    for (std::int64_t t : {0, 63, 64, 69}) {
      std::copy_n(many.x.begin() + t * 98, 98, one.x.begin());
      const std::vector<float> alone = one.run();
      EXPECT_EQ(std::memcmp(alone.data(), all.data() + t * 130, 130 * sizeof(float)), 0) << t;
    }
    ThreadPool single(1);
    ProjectionArgs a = many.args();
    a.pool = &single;
    projection_cpu(a);
    EXPECT_EQ(many.out, all) << "one thread";
  }
}

TEST(Projection, MistakesAreNamedAndAGoodCallFollows) {
  Case c(shape_of(64, 48));
  const std::vector<float> good = c.run();
  auto refused = [&](auto change) {
    return usage_error_of([&] {
      ProjectionArgs a = c.args();
      change(a);
      projection_cpu(a);
    });
  };
  EXPECT_THAT(refused([](ProjectionArgs& a) { a.tokens = -1; }), HasSubstr("tokens = -1"));
  EXPECT_THAT(refused([](ProjectionArgs& a) { a.x_stride = 63; }), HasSubstr("stride 63"));
  EXPECT_THAT(refused([](ProjectionArgs& a) { a.out_stride = 47; }), HasSubstr("stride 47"));
  EXPECT_THAT(refused([](ProjectionArgs& a) { a.x = nullptr; }), HasSubstr("null"));
  EXPECT_THAT(refused([](ProjectionArgs& a) { a.pool = nullptr; }), HasSubstr("thread pool"));
  EXPECT_THAT(refused([](ProjectionArgs& a) { a.workspace = a.workspace.first(64); }),
              HasSubstr("workspace"));
  EXPECT_EQ(c.run(), good);
  ProjectionArgs none = c.args();
  none.tokens = 0, none.x = nullptr;
  EXPECT_NO_THROW(projection_cpu(none));
}

TEST(Projection, QuantisedOrMisshapedWeightsAreRefused) {
  ProjectionShape s = shape_of(64, 48);
  HostBuffer packed(s.layout().code_bytes());
  EXPECT_THAT(usage_error_of([&] {
                pack_projection(s, "up", test::make_matrix(s.weights, 47, 64, 1), packed.bytes());
              }),
              HasSubstr("up is [47, 64], this layer needs [48, 64]"));
  s.weights.element = formats::Element::kE4m3;
  s.weights.scale = formats::ScaleType::kF32;
  EXPECT_THAT(usage_error_of([&] { static_cast<void>(s.layout()); }), HasSubstr("bf16 and fp16"));
}

}  // namespace
}  // namespace switchyard::ops
