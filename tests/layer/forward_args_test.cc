// SPDX-License-Identifier: Apache-2.0
// Each field of ForwardArgs on every leaf, set to what a plain call does not have, against the
// oracle.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <map>

#include "switchyard/base/random.h"
#include "switchyard/layer/oracle.h"
#include "switchyard/tune/tape.h"
#include "tests/cases/leaf_case.h"
#include "tests/support/same_bits.h"
#include "tests/support/usage_error.h"

namespace switchyard::layer {
namespace {

using test::Call;
using test::GivenRouting;
using test::LeafCase;
using test::rel;

constexpr std::int64_t kTokens = 9;

// Hidden states in fp32, so that no rounding of the output hides anything; a gated shared expert;
// a factor of 2, which moves between weights and finalize without a rounding.
LeafCase plain_case(const leaves::Leaf& leaf) {
  LeafCase c{test::small_problem(leaf), {}, kTokens};
  c.problem.routed_scaling_factor = 2;
  c.problem.num_shared = 1;
  c.problem.shared_inter = 64;
  c.problem.shared_gate = true;
  c.options.dtype = Dtype::kF32;
  return c;
}

MoeLayer build(const LeafCase& c, const leaves::Leaf& leaf) {
  return test::build_layer(test::make_weights(c.problem, leaf), c.options,
                           test::runnable_tiers().back());
}

// One leaf, its plain layer, and what every field's case compares with.
struct Bench {
  explicit Bench(const leaves::Leaf& l) : leaf(l), layer(build(plain_case(l), l)) {}
  double budget() const { return test::budgets_of(layer).oracle; }
  std::int64_t hidden() const { return layer.problem().hidden; }
  const leaves::Leaf& leaf;
  MoeLayer layer;
};

OracleResult oracle(const Call& call, OracleArgs ask = {}) {
  ask.tokens = call.tokens;
  ask.hidden = call.exact.data();
  return run_oracle(call.layer, ask);
}

std::vector<float> floats(const std::vector<std::byte>& bytes) {
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// `dense` [rows, h] in rows of `stride` floats; the rest is a NaN of its own.
std::vector<float> spread(const std::vector<float>& dense, std::int64_t h, std::int64_t stride) {
  std::vector<float> out(dense.size() / std::size_t(h) * std::size_t(stride), std::nanf("0x5a5"));
  for (std::size_t i = 0; i < dense.size(); ++i)
    out[i / std::size_t(h) * std::size_t(stride) + i % std::size_t(h)] = dense[i];
  return out;
}

void tokens(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  const std::vector<std::byte> all = call.run();
  EXPECT_LE(rel(call.values(), oracle(call).out), b.budget());
  const std::vector<std::byte> five = call.run([](ForwardArgs& a) { a.tokens = 5; });
  const auto end = std::ptrdiff_t(5 * b.hidden() * 4);
  EXPECT_TRUE(std::equal(five.begin(), five.begin() + end, all.begin()));
  EXPECT_THAT(std::vector(five.begin() + end, five.end()), testing::Each(std::byte(0xff)));
}

void hidden(const Bench& b) {
  Call call(b.layer.impl(), kTokens), other(b.layer.impl(), kTokens, 2);
  call.run([&](ForwardArgs& a) { a.hidden = other.hidden.data(); });
  EXPECT_LE(rel(call.values(), oracle(other).out), b.budget());
  EXPECT_GT(rel(call.values(), oracle(call).out), 2 * b.budget());
}

void hidden_stride(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  const std::vector<std::byte> dense = call.run();
  const std::vector<float> x = spread(call.exact, b.hidden(), b.hidden() + 24);
  EXPECT_EQ(call.run([&](ForwardArgs& a) {
    a.hidden = x.data();
    a.hidden_stride = b.hidden() + 24;
  }),
            dense);
}

void logits(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  const std::int64_t experts = b.layer.problem().num_experts(), stride = experts + 3;
  const Random random(77, 1);
  std::vector<float> z(std::size_t(kTokens * stride), std::nanf(""));
  for (std::int64_t i = 0; i < kTokens * experts; ++i)
    z[std::size_t(i / experts * stride + i % experts)] = random.normal(std::uint64_t(i));
  const Span2d<const float> given{z.data(), kTokens, experts, stride};
  call.run([&](ForwardArgs& a) { a.logits = given; });
  EXPECT_LE(rel(call.values(), oracle(call, {.logits = given}).out), b.budget());
  EXPECT_GT(rel(call.values(), oracle(call).out), 2 * b.budget()) << "the router's own logits";
}

void token_ids(const Bench& b) {
  LeafCase hashed = plain_case(b.leaf);
  hashed.problem.routing = make_routing(RoutingMethodType::kHash, 6, 3);
  const MoeLayer layer = build(hashed, b.leaf);
  Call call(layer.impl(), kTokens);
  std::vector<std::int64_t> ids;
  for (std::int64_t t = 0; t < kTokens; ++t) ids.push_back((t * 131 + 900) % 1024);
  call.run([&](ForwardArgs& a) { a.token_ids = ids.data(); });
  EXPECT_LE(rel(call.values(), oracle(call, {.token_ids = ids.data(), .logits = {}}).out),
            b.budget());
  EXPECT_GT(
      rel(call.values(), oracle(call, {.token_ids = call.token_ids.data(), .logits = {}}).out),
      2 * b.budget());
}

// What routing chose is given back: the same bits, whoever multiplies the factor.
void expect_round_trip(const MoeLayer& layer) {
  Call call(layer.impl(), kTokens);
  std::vector<std::int32_t> ids(kTokens * 3, -7);
  std::vector<float> weights(kTokens * 3, std::nanf(""));
  const std::vector<std::byte> own = call.run([&](ForwardArgs& a) {
    a.ids_out = ids.data();
    a.weights_out = weights.data();
  });
  EXPECT_LE(rel(call.values(), oracle(call).out), test::budgets_of(layer).oracle);
  auto given = [&](CallerRouting r) { return call.run([&](ForwardArgs& a) { a.routing = r; }); };
  EXPECT_EQ(given({ids.data(), weights.data(), nullptr}), own);
  std::vector<float> factored = weights;
  for (float& w : factored) w *= layer.problem().routed_scaling_factor;
  EXPECT_EQ(given({ids.data(), nullptr, factored.data()}), own);
  EXPECT_NE(given({ids.data(), factored.data(), nullptr}), own) << "a factor applied twice";
  std::rotate(ids.begin(), ids.begin() + 1, ids.end());
  EXPECT_NE(given({ids.data(), weights.data(), nullptr}), own) << "other experts";
}

void routing(const Bench& b) {
  expect_round_trip(b.layer);
  LeafCase fused = plain_case(b.leaf);
  fused.problem.shared_gate = false;
  fused.problem.num_shared = 2;
  fused.problem.inter = 128, fused.problem.shared_inter = 256;
  fused.options.fuse_shared = true;
  const MoeLayer joint = build(fused, b.leaf);
  EXPECT_EQ(joint.impl().routed().shape.top_k, formats::is_static(b.leaf.activation) ? 3 : 5);
  expect_round_trip(joint);
}

void out(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  const std::vector<std::byte> dense = call.run();
  std::vector<std::byte> elsewhere(dense.size() + 64, std::byte(0xa5));
  const std::vector<std::byte> untouched =
      call.run([&](ForwardArgs& a) { a.out = elsewhere.data() + 32; });
  EXPECT_THAT(untouched, testing::Each(std::byte(0xff)));
  EXPECT_TRUE(std::equal(dense.begin(), dense.end(), elsewhere.begin() + 32));
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(elsewhere[i], std::byte(0xa5));
    EXPECT_EQ(elsewhere[dense.size() + 32 + i], std::byte(0xa5));
  }
}

void out_stride(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  const std::vector<float> want = spread(floats(call.run()), b.hidden(), b.hidden() + 8);
  std::vector<float> got(want.size(), std::nanf("0x5a5"));
  call.run([&](ForwardArgs& a) { a.out = got.data(), a.out_stride = b.hidden() + 8; });
  EXPECT_TRUE(test::same_bits(got, want));
}

// A caller's finalize in double over whatever the call left open.
void unfinalised(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  const std::int64_t h = b.hidden();
  GivenRouting r(b.layer.problem(), kTokens);
  r.ids[4] = r.ids[11] = -1;
  call.run([&](ForwardArgs& a) { a.routing = {r.ids.data(), r.weights.data(), nullptr}; });
  const std::vector<double> want = call.values();
  std::vector<float> factored = r.weights;
  for (float& w : factored) w *= 2;
  for (bool given_factor : {false, true}) {
    std::vector<float> rows(std::size_t(kTokens * 3 * h), std::nanf("")), weights(kTokens * 3),
        shared(std::size_t(kTokens * h));
    std::vector<std::int32_t> index(kTokens * 3, -7);
    Unfinalised u{rows.data(), weights.data(), index.data(), shared.data()};
    call.run([&](ForwardArgs& a) {
      a.routing = {r.ids.data(), given_factor ? nullptr : r.weights.data(),
                   given_factor ? factored.data() : nullptr};
      a.out = nullptr, a.unfinalised = &u;
    });
    EXPECT_EQ(u.pending_factor, given_factor ? 1 : 2);
    std::vector<double> sum(shared.begin(), shared.end());
    for (std::int64_t i = 0; i < kTokens * 3; ++i) {
      EXPECT_EQ(index[std::size_t(i)] < 0, r.ids[std::size_t(i)] < 0) << i;
      for (std::int64_t c = 0; c < h && index[std::size_t(i)] >= 0; ++c)
        sum[std::size_t(i / 3 * h + c)] += double(u.pending_factor) * weights[std::size_t(i)] *
                                           rows[std::size_t(index[std::size_t(i)] * h + c)];
    }
    EXPECT_LE(rel(sum, want), 1e-6);
  }
}

void expert_counts(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  GivenRouting r(b.layer.problem(), kTokens);
  for (std::size_t i = 0; i < r.ids.size(); i += 4) r.ids[i] = -1;
  std::vector<std::int64_t> counts(8, 40), want(8, 40);
  for (std::int32_t id : r.ids)
    if (id >= 0) ++want[std::size_t(id) + 1];
  call.run([&](ForwardArgs& a) {
    a.routing = {r.ids.data(), r.weights.data(), nullptr};
    a.expert_counts = counts.data() + 1;  // six experts, and a canary on either side
  });
  EXPECT_EQ(counts, want);
}

void ids_out(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  std::vector<std::int32_t> ids(kTokens * 3 + 1, -7);
  call.run([&](ForwardArgs& a) { a.ids_out = ids.data(); });
  EXPECT_EQ(ids.back(), -7);
  EXPECT_EQ(oracle(call, {.logits = {}, .leaf_ids = ids.data()}).ids_differing, 0);
  std::swap(ids[0], ids[1]);
  EXPECT_EQ(oracle(call, {.logits = {}, .leaf_ids = ids.data()}).ids_differing, 1)
      << "the order is compared";
}

void weights_out(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  std::vector<float> weights(kTokens * 3 + 1, -7);
  call.run([&](ForwardArgs& a) { a.weights_out = weights.data(); });
  EXPECT_EQ(weights.back(), -7);
  for (std::size_t t = 0; t < kTokens; ++t) {
    EXPECT_NEAR(weights[3 * t] + weights[3 * t + 1] + weights[3 * t + 2], 1, 1e-6);
    EXPECT_GT(weights[3 * t], weights[3 * t + 1]);
    EXPECT_GT(weights[3 * t + 1], weights[3 * t + 2]);
  }
  const GivenRouting r(b.layer.problem(), kTokens);
  weights.pop_back();
  call.run([&](ForwardArgs& a) {
    a.routing = {r.ids.data(), r.weights.data(), nullptr};
    a.weights_out = weights.data();
  });
  EXPECT_EQ(weights, r.weights);
}

void capture(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  const OracleResult want = oracle(call);
  std::vector<double> inter(want.inter.size(), -777);
  StageCapture stages{inter.data()};
  call.run([&](ForwardArgs& a) { a.capture = &stages; });
  std::int64_t differing = 0;  // a value beside a rounding boundary may fall either way
  for (std::size_t i = 0; i < inter.size(); ++i)
    differing += !(std::abs(inter[i] - want.inter[i]) <= 1e-3 * std::abs(want.inter[i]) + 1e-9);
  EXPECT_LE(differing, 1);
  GivenRouting r(b.layer.problem(), kTokens);
  r.ids[0] = -1;
  inter.assign(inter.size(), -777);
  call.run([&](ForwardArgs& a) {
    a.capture = &stages;
    a.routing = {r.ids.data(), r.weights.data(), nullptr};
  });
  const std::int64_t width = b.layer.problem().inter;
  EXPECT_THAT(std::vector(inter.begin(), inter.begin() + width), testing::Each(-777.0));
  EXPECT_THAT(std::vector(inter.begin() + width, inter.end()),
              testing::Not(testing::Contains(-777.0)));
}

void trace(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  Trace t;
  call.run([&](ForwardArgs& a) { a.trace = &t; });
  EXPECT_EQ(t.leaf, b.leaf.id.str());
  EXPECT_TRUE(t.routed_here);
}

void tape(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  const std::vector<std::byte> without = call.run();
  tune::Tape record;
  EXPECT_EQ(call.run([&](ForwardArgs& a) { a.tape = &record; }), without);
  ASSERT_EQ(record.calls().size(), 2u);
  tune::Tape wrong(record.calls(), {record.calls()[0].candidates.front(), TileTactic{}});
  EXPECT_THAT(test::usage_error_of([&] { call.run([&](ForwardArgs& a) { a.tape = &wrong; }); }),
              testing::HasSubstr("replay: call 2, the experts"));
}

// A stream belongs to cuda; on the CPU it changes nothing.
void stream(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  const std::vector<std::byte> without = call.run();
  int handle = 0;
  EXPECT_EQ(call.run([&](ForwardArgs& a) { a.stream = {&handle}; }), without);
}

void workspace(const Bench& b) {
  Call call(b.layer.impl(), kTokens);
  const std::vector<std::byte> want = call.run();
  HostBuffer other(b.layer.workspace_bytes(kTokens) + 128);
  std::ranges::fill(other.bytes(), std::byte(0x7f));
  EXPECT_EQ(call.run([&](ForwardArgs& a) {
    a.workspace = other.bytes().subspan(64, other.bytes().size() - 128);
    std::ranges::fill(call.workspace.bytes(), std::byte(0xc3));
  }),
            want);
  EXPECT_THAT(other.bytes().last(64), testing::Each(std::byte(0x7f)));
  EXPECT_THAT(other.bytes().first(64), testing::Each(std::byte(0x7f)));
  EXPECT_THAT(call.workspace.bytes(), testing::Each(std::byte(0xc3))) << "it used its own memory";
}

const std::map<std::string, void (*)(const Bench&)> kFields = {
    {"tokens", tokens},
    {"hidden", hidden},
    {"hidden_stride", hidden_stride},
    {"logits", logits},
    {"token_ids", token_ids},
    {"routing", routing},
    {"out", out},
    {"out_stride", out_stride},
    {"unfinalised", unfinalised},
    {"expert_counts", expert_counts},
    {"ids_out", ids_out},
    {"weights_out", weights_out},
    {"capture", capture},
    {"trace", trace},
    {"tape", tape},
    {"stream", stream},
    {"workspace", workspace},
};

TEST(ForwardArgsFields, EachHasACase) {
  // A structured binding compiles only with the exact number of members: a field that joins the
  // struct stops here until it has a case above.
  [[maybe_unused]] auto [f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16,
                         f17] = ForwardArgs{};
  EXPECT_EQ(kFields.size(), 17u);
}

using ForwardArgsOf = test::EveryLeaf;

TEST_P(ForwardArgsOf, EachFieldReachesTheKernels) {
  const Bench bench(leaf());
  for (const auto& [field, run] : kFields) {
    SCOPED_TRACE(field);
    run(bench);
  }
}

INSTANTIATE_TEST_SUITE_P(Leaves, ForwardArgsOf, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard::layer
