// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "switchyard/base/device_stream.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"
#include "tests/support/device.h"
#include "tests/support/held_recipes.h"
#include "tests/support/route_case.h"

namespace switchyard::ops {
namespace {

using test::OnDevice;
using test::RouteCase;
using test::Routed;
using Method = RoutingMethodType;

class RouteCuda : public test::NeedsGpu {};

/// Runs the CUDA twin on copies of the case; outputs start as the case's poison.
Routed run_cuda(RouteCase& c, RouterWish wish = RouterWish::kOwn) {
  return c.run([&](const RouteArgs& host) {
    const OnDevice<float> logits(c.logits), bias(c.bias), scale(c.scale), weights(c.got.weights);
    const OnDevice<std::int32_t> table(c.table), ids(c.got.ids);
    const OnDevice<std::int64_t> tokens(c.tokens);
    RouteArgs a = host;
    a.logits.data = logits.data();
    a.choice_bias = bias.data();
    a.per_expert_scale = scale.data();
    a.hash_table = table.data();
    a.token_ids = tokens.data();
    a.ids.data = ids.data();
    a.weights.data = weights.data();
    const DeviceStream stream;
    route_cuda(a, stream.get(), wish);
    stream.wait();
    c.got.ids = ids.get();
    c.got.weights = weights.get();
  });
}

/// Units in the last place between two weights.
std::int64_t ulps(float a, float b) {
  std::int32_t x, y;
  std::memcpy(&x, &a, 4);
  std::memcpy(&y, &b, 4);
  return std::abs(std::int64_t(x) - std::int64_t(y));
}

void expect_as_cpu(RouteCase& c) {
  SCOPED_TRACE(describe(c.spec));
  const Routed cpu = c.run_cpu(), cuda = run_cuda(c);
  ASSERT_EQ(cuda.ids, cpu.ids);
  std::int64_t worst = 0;
  for (std::size_t i = 0; i < cpu.weights.size(); ++i)
    worst = std::max(worst, ulps(cuda.weights[i], cpu.weights[i]));
  EXPECT_LE(worst, 4);
}

TEST_F(RouteCuda, GivesTheCpuTwinsChoice) {
  for (std::int64_t experts : {1, 2, 3, 8, 31, 33, 64, 128, 160, 256, 384, 2048})
    for (std::int64_t k : {1, 2, 8, 10, 32})
      for (const RoutingSpec& spec : test::all_recipes(experts, k)) {
        RouteCase c(spec, experts > 256 ? 3 : 7, unsigned(experts * 64 + k));
        expect_as_cpu(c);
      }
}

TEST_F(RouteCuda, GivesTheCpuTwinsGroups) {
  struct Grouping {
    Method method;
    std::int64_t e, k, groups, kept;
  };
  for (const Grouping& g :
       {Grouping{Method::kDeepSeekV3, 256, 8, 8, 4}, Grouping{Method::kDeepSeekV2, 160, 6, 8, 3},
        Grouping{Method::kDeepSeekV3, 8, 2, 8, 2}, Grouping{Method::kDefault, 60, 4, 6, 2},
        Grouping{Method::kSoftmaxBias, 64, 6, 4, 2}, Grouping{Method::kDeepSeekV4, 384, 22, 12, 5},
        Grouping{Method::kTopK, 2048, 32, 1024, 16}, Grouping{Method::kRenormalize, 6, 6, 3, 3}}) {
    RoutingSpec spec = make_routing(g.method, g.e, g.k);
    spec.n_group = g.groups;
    spec.topk_group = g.kept;
    RouteCase c(spec, 40, 7);
    expect_as_cpu(c);
  }
}

TEST_F(RouteCuda, SpecialLogitsAndTies) {
  for (const RoutingSpec& spec : test::all_recipes(9, 4)) {
    RouteCase c(spec, 6, 3);
    const float inf = HUGE_VALF, nan = NAN;
    c.set_row(0, {nan});
    c.set_row(1, {-inf, 1, -inf});
    c.set_row(2, {inf, inf, 3, nan, 0, -0.0f, 0, -0.0f, 1});
    c.set_row(3, {2});
    c.set_row(4, {-0.0f, 0, -0.0f, 0, -1});
    expect_as_cpu(c);
  }
}

/// The compiled router against the general one, bit for bit.
void expect_one_result(RouteCase& c) {
  SCOPED_TRACE(testing::Message() << describe(c.spec) << ", " << c.rows << " rows");
  ASSERT_NE(compiled_router(c.spec).kind, RouterKind::kGeneral);
  const Routed general = run_cuda(c, RouterWish::kGeneral),
               compiled = run_cuda(c, RouterWish::kCompiled);
  EXPECT_EQ(compiled.ids, general.ids);
  EXPECT_EQ(0, std::memcmp(compiled.weights.data(), general.weights.data(),
                           general.weights.size() * sizeof(float)));
}

TEST_F(RouteCuda, ACompiledRouterGivesTheBitsOfTheGeneralOne) {
  for (const RoutingSpec& spec : test::held_recipes())
    for (const auto& [rows, seed] : {std::pair{1, 1u}, {8, 2u}, {64, 3u}, {200, 4u}}) {
      RouteCase c(spec, rows, unsigned(spec.num_experts * 64 + spec.top_k) + seed);
      expect_one_result(c);
    }
}

TEST_F(RouteCuda, ACompiledRouterOrdersSpecialLogitsAndTies) {
  for (const RoutingSpec& spec : test::held_recipes()) {
    RouteCase c(spec, test::kSpecialRows, 3), other(spec, test::kSpecialRows, 3);
    test::set_special_rows(c);
    expect_one_result(c);
    if (spec.num_experts > 1) {
      EXPECT_NE(run_cuda(other, RouterWish::kCompiled).ids, run_cuda(c, RouterWish::kCompiled).ids)
          << "the control: the logits as they were";
    }
  }
}

TEST_F(RouteCuda, ZeroExpertsAndScales) {
  for (Method m : {Method::kDefault, Method::kRenormalize, Method::kSigmoidRenorm}) {
    RoutingSpec spec = make_routing(m, 12, 5);
    spec.zero_experts = 4;
    spec.per_expert_scale = true;
    RouteCase c(spec, 33, 5);
    expect_as_cpu(c);
  }
}

TEST_F(RouteCuda, ATokenOutsideTheTableIsSkippedAndTheNextCallIsGood) {
  RouteCase c(make_routing(Method::kHash, 16, 2), 5);
  RouteCase bad = c;
  bad.tokens[3] = 37;
  const Routed got = run_cuda(bad);
  EXPECT_EQ(got.ids[6], -1);
  EXPECT_EQ(got.ids[7], -1);
  EXPECT_EQ(got.weights[6], 0);
  expect_as_cpu(c);
}

TEST_F(RouteCuda, RouterGemmMatchesOracle) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kF32})
    for (const auto& [rows, hidden, experts] :
         {std::tuple{1, 70, 5}, {33, 160, 33}, {70, 2048, 128}}) {
      const std::int64_t stride = hidden + 6;
      std::vector<std::byte> x(std::size_t(rows * stride) * size_of(dtype));
      for (std::int64_t i = 0; i < rows * stride; ++i)
        store_element(dtype, x.data(), i, float(std::sin(0.37 * double(i))));
      std::vector<float> w(std::size_t(hidden * experts)), bias(static_cast<std::size_t>(experts));
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = float(std::cos(0.11 * double(i * i % 977)));
      for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = float(i) * 0.25f;
      std::vector<float> want(std::size_t(rows * experts)), got(want.size(), NAN);
      RouterGemmArgs a{.dtype = dtype,
                       .x = x.data(),
                       .x_stride = stride,
                       .hidden = hidden,
                       .weight = w.data(),
                       .bias = bias.data(),
                       .logits = {want.data(), rows, experts, experts}};
      router_gemm_ref(a);
      const OnDevice<std::byte> dx(x);
      const OnDevice<float> dw(w), db(bias), out(got);
      a.x = dx.data();
      a.weight = dw.data();
      a.bias = db.data();
      a.logits.data = out.data();
      const DeviceStream stream;
      router_gemm_cuda(a, stream.get());
      stream.wait();
      got = out.get();
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-6 * double(hidden) / 4) << to_string(dtype) << " " << i;
      std::swap(w[0], w[1]);  // the control: two weights exchanged
      const OnDevice<float> swapped(w);
      a.weight = swapped.data();
      router_gemm_cuda(a, stream.get());
      stream.wait();
      EXPECT_GT(std::fabs(out.get()[0] - want[0]), 1e-3);
    }
}

/// Logits of the first `rows` rows of seeded tokens.
std::vector<float> gemm_logits(std::int64_t rows, std::int64_t hidden, std::int64_t experts,
                               float eps, bool cuda) {
  std::vector<float> x(std::size_t(rows * hidden)), w(std::size_t(experts * hidden));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(std::sin(0.37 * double(i)));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = float(std::cos(0.11 * double(i * i % 977)));
  std::vector<float> logits(std::size_t(rows * experts), NAN);
  RouterGemmArgs a{.dtype = Dtype::kF32,
                   .x = x.data(),
                   .x_stride = hidden,
                   .hidden = hidden,
                   .weight = w.data(),
                   .norm_eps = eps,
                   .logits = {logits.data(), rows, experts, experts}};
  if (!cuda) {
    router_gemm_ref(a);
    return logits;
  }
  const OnDevice<float> dx(x), dw(w), out(logits);
  a.x = dx.data();
  a.weight = dw.data();
  a.logits.data = out.data();
  const DeviceStream stream;
  router_gemm_cuda(a, stream.get());
  stream.wait();
  return out.get();
}

// The kernels differ between these batches; a row's bits do not.
TEST_F(RouteCuda, ALogitHasTheSameBitsInEveryBatch) {
  for (const auto& [hidden, experts] : {std::pair{2048, 128}, {2880, 32}, {130, 7}, {71, 65}}) {
    const std::vector<float> all = gemm_logits(1100, hidden, experts, 1e-6f, true);
    for (std::int64_t rows : {1, 7, 8, 9, 64, 65, 512, 1024}) {
      const std::vector<float> got = gemm_logits(rows, hidden, experts, 1e-6f, true);
      EXPECT_EQ(0, std::memcmp(got.data(), all.data(), got.size() * sizeof(float)))
          << rows << " rows of " << hidden;
    }
  }
}

TEST_F(RouteCuda, RouterGemmNormalisesItsInput) {
  for (std::int64_t rows : {3, 70}) {
    const std::vector<float> want = gemm_logits(rows, 160, 33, 0.5f, false),
                             got = gemm_logits(rows, 160, 33, 0.5f, true),
                             plain = gemm_logits(rows, 160, 33, 0, true);
    double worst = 0, control = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      worst = std::max(worst, std::fabs(double(got[i]) - double(want[i])));
      control = std::max(control, std::fabs(double(plain[i]) - double(want[i])));
    }
    EXPECT_LE(worst, 4e-5);
    EXPECT_GT(control, 1e-2) << "without the norm";
  }
}

}  // namespace
}  // namespace switchyard::ops
