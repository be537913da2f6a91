// SPDX-License-Identifier: Apache-2.0
// The shared calls give the bits of the plain ones with any number of threads.
#include <gtest/gtest.h>

#include <cmath>

#include "switchyard/base/random.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"
#include "tests/support/same_bits.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kHidden = 48, kExperts = 37, kTopK = 5;

std::vector<float> values(std::uint64_t stream, std::int64_t count) {
  const Random random(7, stream);
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(random.normal(std::uint64_t(i)));
  return out;
}

class Shared : public testing::TestWithParam<std::int64_t> {};

TEST_P(Shared, RouterGemmCoversEveryLogitOnce) {
  const std::int64_t tokens = GetParam();
  const std::vector<float> x = values(1, tokens * kHidden), w = values(2, kExperts * kHidden);
  const auto run = [&](int threads) {
    std::vector<float> logits(std::size_t(tokens * kExperts), std::nanf(""));
    const RouterGemmArgs args{.dtype = Dtype::kF32,
                              .x = x.data(),
                              .x_stride = kHidden,
                              .hidden = kHidden,
                              .weight = w.data(),
                              .logits = {logits.data(), tokens, kExperts, kExperts}};
    if (threads == 0) {
      router_gemm_cpu(args, {0, tokens, 0, kExperts});
    } else {
      ThreadPool pool(threads);
      router_gemm_cpu(args, pool);
    }
    return logits;
  };
  const std::vector<float> plain = run(0);
  for (int threads : {1, 2, 5}) {
    const std::vector<float> shared = run(threads);
    EXPECT_TRUE(test::same_bits(plain, shared)) << threads;
  }
}

TEST_P(Shared, RouteCoversEveryRowOnce) {
  const std::int64_t tokens = GetParam();
  const std::vector<float> logits = values(3, tokens * kExperts);
  const RoutingSpec spec = make_routing(RoutingMethodType::kRenormalize, kExperts, kTopK);
  const auto run = [&](int threads) {
    std::vector<std::int32_t> ids(std::size_t(tokens * kTopK), -7);
    std::vector<float> weights(ids.size(), std::nanf(""));
    const RouteArgs args{.logits = {logits.data(), tokens, kExperts, kExperts},
                         .spec = &spec,
                         .ids = {ids.data(), tokens, kTopK, kTopK},
                         .weights = {weights.data(), tokens, kTopK, kTopK}};
    if (threads == 0) {
      route_cpu(args, 0, tokens);
    } else {
      ThreadPool pool(threads);
      route_cpu(args, pool);
    }
    return std::pair(ids, weights);
  };
  const auto plain = run(0);
  for (int threads : {1, 2, 5}) EXPECT_EQ(run(threads), plain) << threads;
}

INSTANTIATE_TEST_SUITE_P(Tokens, Shared, testing::Values(0, 1, 15, 16, 17, 70));

TEST(SharedCalls, CheckTheirArguments) {
  ThreadPool pool(2);
  EXPECT_THROW(router_gemm_cpu(RouterGemmArgs{.logits = {nullptr, 2, 4, 4}}, pool), UsageError);
  RouteArgs none;
  EXPECT_THROW(route_cpu(none, pool), UsageError);
}

}  // namespace
}  // namespace switchyard::ops
