// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/activation/activation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "switchyard/base/errors.h"
#include "switchyard/base/float_math.h"
#include "switchyard/ops/activation/activation_math.h"
#include "tests/cases/moe_case.h"
#include "tests/support/activation_case.h"

namespace switchyard::ops {
namespace {

using test::ActivationCase;
using test::kActivationKinds;
using test::worst_error;

void run_cpu(ActivationCase& c) { activation_cpu(c.args(), 0, c.rows); }

struct Golden {
  float gate, up;
  double want[7];  // swiglu, swiglu_bias, clamp before, clamp after, situ, geglu erf, geglu tanh
};

// Six significant digits, derived by hand from the published definitions.
constexpr Golden kGolden[] = {
    {-8, 2, {-.0053656, -2.92993e-5, -.0053656, -.0053656, -.00258079, -9.77e-15, 0}},
    {-1, 2, {-.537883, -.462613, -.537883, -.537883, -.525829, -.317311, -.317616}},
    {1, -9, {-6.57953, -5.07477, -6.57953, -5.11741, -6.18105, -7.5721, -7.57073}},
    {1, 2, {1.46212, 2.53739, 1.46212, 1.46212, 1.42935, 1.68269, 1.68238}},
    {8, 2, {15.9946, 20.9999, 15.9946, 14, 7.69323, 16, 16}},
    {20, -9, {-180, -41.9997, -89.9959, -49, -34.5183, -180, -180}},
};

TEST(Activation, GoldenValues) {
  const Activation kinds[7] = {Swiglu{},
                               SwigluBias{.clamp = 7.0f},
                               Swiglu{.clamp = 10.0f},
                               Swiglu{.clamp = 7.0f, .clamp_after_silu = true},
                               SiTu{},
                               Geglu{GeluForm::kErf},
                               Geglu{GeluForm::kTanh}};
  for (const Golden& g : kGolden)
    for (int i = 0; i < 7; ++i) {
      SCOPED_TRACE(describe(kinds[i]) + " of " + std::to_string(g.gate));
      const ActivationParams p = lower(kinds[i], 0);
      const double tolerance = 6e-6 * std::fabs(g.want[i]) + 1e-10;
      EXPECT_NEAR(activate_ref(p, g.gate, g.up), g.want[i], tolerance);
      EXPECT_NEAR(activate(p, g.gate, g.up), g.want[i], tolerance);
      if (std::fabs(g.want[i]) < 1e-6) continue;  // both orders are next to nothing
      EXPECT_GT(std::fabs(activate(p, g.up, g.gate) - g.want[i]), tolerance);
    }
}

TEST(Activation, CpuMatchesOracleForEveryKindAndShape) {
  for (const auto& kind : kActivationKinds)
    for (const auto& [rows, inter] : test::kActivationShapes) {
      SCOPED_TRACE(describe(kind.activation) + " rows " + std::to_string(rows) + " inter " +
                   std::to_string(inter));
      ActivationCase c(kind.activation, rows, inter);
      const std::vector<float> want = c.oracle();
      for (int call = 0; call < 3; ++call) {
        c.poison();
        run_cpu(c);
        EXPECT_LE(worst_error(c.result(), want), kind.bound);
        EXPECT_TRUE(c.padding_is_intact());
      }
    }
}

TEST(Activation, BoundCatchesGateAndUpSwapped) {
  for (const auto& kind : kActivationKinds) {
    if (!is_gated(type_of(kind.activation))) continue;
    ActivationCase c(kind.activation, 5, 96);
    const std::vector<float> want = c.oracle();
    std::swap(c.gate, c.up);
    run_cpu(c);
    EXPECT_GT(worst_error(c.result(), want), 1000 * kind.bound) << describe(kind.activation);
  }
}

TEST(Activation, BoundCatchesConstantsOfAnotherExpert) {
  for (const auto& kind : kActivationKinds) {
    if (!kind.per_expert) continue;
    ActivationCase c(kind.activation, 6, 96);
    const std::vector<float> want = c.oracle();
    for (std::int32_t& id : c.expert_ids)
      if (id >= 0) id = (id + 1) % test::kActivationExperts;
    run_cpu(c);
    EXPECT_GT(worst_error(c.result(), want), 1000 * kind.bound) << describe(kind.activation);
  }
}

TEST(Activation, BoundCatchesTheNeighbouringKind) {
  for (std::size_t i = 0; i < std::size(kActivationKinds); ++i) {
    const auto& kind = kActivationKinds[i];
    const auto& other = kActivationKinds[(i + 1) % std::size(kActivationKinds)];
    ActivationCase c(kind.activation, 6, 96), d(other.activation, 6, 96);
    run_cpu(d);
    EXPECT_GT(worst_error(d.result(), c.oracle()), 1000 * kind.bound) << describe(kind.activation);
  }
}

TEST(Activation, ScalarFunctionHasTheTwinsBits) {
  for (const auto& kind : kActivationKinds) {
    ActivationCase c(kind.activation, 7, 53);
    run_cpu(c);
    const std::vector<float> got = c.result();
    for (std::int64_t i = 0; i < c.rows * c.inter; ++i) {
      const std::int64_t r = i / c.inter, at = r * c.stride + i % c.inter;
      if (c.expert_ids[r] < 0) continue;
      const float want = activate(c.params_of_row(r), c.gate[at], c.up[at]);
      ASSERT_EQ(bits_of(got[i]), bits_of(want)) << describe(kind.activation) << " element " << i;
    }
  }
}

TEST(Activation, EveryTierHasTheSameBits) {
  // Else the comparison below would be one of a twin with itself.
  ASSERT_EQ(activation_twin(CpuIsa::kPortable), &activation_cpu);
  ASSERT_EQ(activation_twin(CpuIsa::kAvx2), &activation_avx2);
  for (const CpuIsa isa : {CpuIsa::kAvx512, CpuIsa::kZen4, CpuIsa::kAmx})
    ASSERT_EQ(activation_twin(isa), &activation_avx512);
  for (const auto& kind : kActivationKinds)
    for (const std::int64_t inter : {1, 16, 67}) {
      ActivationCase c(kind.activation, 9, inter);
      const auto at = [&](std::int64_t row) { return std::size_t(row * c.stride + inter / 2); };
      c.up[at(0)] = c.gate[at(1)] = NAN;
      c.up[at(2)] = c.gate[at(4)] = -INFINITY;
      c.gate[at(3)] = c.up[at(5)] = 1e-42f;
      run_cpu(c);
      const std::vector<float> want = c.result();
      for (const CpuIsa isa : test::runnable_tiers()) {
        c.poison();
        activation_twin(isa)(c.args(), 0, c.rows);
        const std::vector<float> got = c.result();
        ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
            << describe(kind.activation) << " on " << to_string(isa) << ", " << inter << " columns";
      }
    }
}

TEST(Activation, RowsAreIndependentOfTheCallThatHoldsThem) {
  ActivationCase c(SwigluBias{.clamp = 7.0f}, 9, 67);
  run_cpu(c);
  const std::vector<float> together = c.result();
  c.poison();
  for (std::int64_t r = c.rows; r-- > 0;) activation_cpu(c.args(), r, r + 1);
  EXPECT_EQ(c.result(), together);
}

TEST(Activation, OutputMayOverwriteAnInput) {
  ActivationCase c(Swiglu{}, 3, 37);
  const std::vector<float> want = c.oracle();
  ActivationArgs in_place = c.args();
  in_place.out.data = c.gate.data();
  activation_cpu(in_place, 0, c.rows);
  std::copy(c.gate.begin(), c.gate.end(), c.out.begin());
  EXPECT_LE(worst_error(c.result(), want), kActivationKinds[0].bound);
}

TEST(Activation, SkippedRowsAreZeroEvenWhenTheyHoldNan) {
  ActivationCase c(Swiglu{}, 3, 20);
  c.expert_ids = {0, -1, 1};
  std::fill(c.gate.begin() + c.stride, c.gate.begin() + 2 * c.stride, NAN);
  run_cpu(c);
  const std::vector<float> got = c.result();
  for (int i = 20; i < 40; ++i) EXPECT_EQ(bits_of(got[std::size_t(i)]), 0u);
  EXPECT_NE(got[0], 0);
}

TEST(Activation, NanInGivesNanOut) {
  for (const auto& kind : kActivationKinds) {
    const ActivationParams p = lower(kind.activation, 0);
    const bool gated = is_gated(p.type);
    for (float other : {-30.0f, 0.0f, 2.0f, 30.0f}) {
      EXPECT_TRUE(std::isnan(activate(p, other, NAN))) << describe(kind.activation);
      EXPECT_TRUE(std::isnan(activate_ref(p, other, NAN))) << describe(kind.activation);
      EXPECT_EQ(std::isnan(activate(p, NAN, other)), gated) << describe(kind.activation);
      EXPECT_EQ(std::isnan(activate_ref(p, NAN, other)), gated) << describe(kind.activation);
    }
  }
}

TEST(Activation, GateIsClampedFromAboveOnlyAndUpOnBothSides) {
  const ActivationParams p = lower(Swiglu{.clamp = 3.0f}, 0), free = lower(Swiglu{}, 0);
  EXPECT_EQ(activate(p, 50, 1), activate(free, 3, 1));
  EXPECT_EQ(activate(p, -5, 1), activate(free, -5, 1));
  EXPECT_NE(activate(p, -5, 1), activate(free, -3, 1));
  EXPECT_EQ(activate(p, 1, 50), activate(free, 1, 3));
  EXPECT_EQ(activate(p, 1, -50), activate(free, 1, -3));
}

TEST(Activation, ClampBeforeAndAfterSiluDifferByLessThanTheSigmoidTail) {
  const double limit = 7, tail = limit * (1 - 1 / (1 + std::exp(-limit)));
  const ActivationParams before = lower(Swiglu{.clamp = 7.0f}, 0);
  const ActivationParams after = lower(Swiglu{.clamp = 7.0f, .clamp_after_silu = true}, 0);
  const double difference = activate(after, 30, 1) - activate(before, 30, 1);
  EXPECT_NEAR(difference, tail, 1e-6);
  EXPECT_GT(difference, .006);
  EXPECT_EQ(activate(after, 6, 2), activate(before, 6, 2));
}

TEST(Activation, TinyInputsKeepTheirRelativeAccuracy) {
  for (const auto& kind : kActivationKinds) {
    const ActivationParams p = lower(kind.activation, 0);
    for (float x : {1e-3f, -1e-4f, 3e-6f, -1e-8f}) {
      const double want = activate_ref(p, x, x);
      EXPECT_LE(std::fabs(activate(p, x, x) - want), kind.bound * std::fabs(want))
          << describe(kind.activation) << " at " << x;
    }
  }
}

TEST(Activation, CheckNamesWhatIsWrongAndAGoodCallFollows) {
  ActivationCase c(SwigluBias{}, 4, 24);
  const auto refused = [&](const ActivationArgs& args, const std::string& text) {
    try {
      activation_ref(args);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(text));
    }
    EXPECT_NO_THROW(activation_ref(c.args()));
  };
  ActivationArgs bad = c.args();
  bad.gate.rows = 3;
  refused(bad, "gate is [3, 24] but out is [4, 24]");
  bad = c.args();
  bad.up.stride = 23;
  refused(bad, "row stride of up is 23");
  bad = c.args();
  bad.gate.data = nullptr;
  refused(bad, "gate is null");
  bad = c.args();
  bad.num_params = 0;
  refused(bad, "params holds 0 sets");
  bad = c.args();
  bad.kind.type = ActivationType::kSwiglu;
  refused(bad, "the constants of expert 0 are of swiglu_bias, the call is of swiglu");
  for (std::int32_t id : {-2, int(test::kActivationExperts)}) {
    const std::int32_t good = std::exchange(c.expert_ids[2], id);
    EXPECT_THROW(activation_ref(c.args()), UsageError) << id;
    c.expert_ids[2] = good;
  }
}

TEST(Activation, OneSetOfConstantsServesAllRowsWithoutIds) {
  ActivationCase c(SiTu{}, 3, 33);
  const std::vector<float> want = [&] {
    std::fill(c.expert_ids.begin(), c.expert_ids.end(), 0);
    return c.oracle();
  }();
  ActivationArgs args = c.args();
  args.num_params = 1;
  args.expert_ids = nullptr;
  activation_cpu(args, 0, c.rows);
  EXPECT_LE(worst_error(c.result(), want), 1e-6);
}

}  // namespace
}  // namespace switchyard::ops
