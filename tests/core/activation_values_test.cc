// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "switchyard/base/errors.h"
#include "switchyard/core/activation.h"

namespace switchyard {
namespace {

PerExpert ramp(float from) { return PerExpert(std::vector<float>{from, from + 1, from + 2}); }

TEST(ActivationValues, TextsAreCanonicalAndDiffer) {
  const std::vector<std::pair<Activation, std::string>> cases = {
      {Swiglu{}, "swiglu"},
      {Swiglu{.clamp = 7.0f}, "swiglu(clamp=7)"},
      {Swiglu{.clamp = 7.0f, .clamp_after_silu = true}, "swiglu(clamp=7,after_silu)"},
      {Swiglu{.clamp_after_silu = true}, "swiglu(after_silu)"},
      {Swiglu{.clamp = ramp(1)}, "swiglu(clamp=[1,2,3])"},
      {SwigluBias{}, "swiglu_bias(gate_sigmoid_scale=1.702,linear_offset=1)"},
      {SwigluBias{.clamp = 7.0f}, "swiglu_bias(gate_sigmoid_scale=1.702,linear_offset=1,clamp=7)"},
      {SiTu{}, "situ(gate_softcap=4,linear_softcap=25)"},
      {Geglu{}, "geglu(tanh)"},
      {Geglu{GeluForm::kErf}, "geglu(erf)"},
      {Relu2{}, "relu2"},
      {Silu{}, "silu"},
      {Gelu{}, "gelu(tanh)"},
      {Gelu{GeluForm::kErf}, "gelu(erf)"},
      {Relu{}, "relu"},
      {Identity{}, "identity"},
  };
  std::set<std::string> texts;
  for (const auto& [activation, text] : cases) {
    EXPECT_EQ(describe(activation), text);
    EXPECT_NO_THROW(check(activation, 3));
    texts.insert(describe(activation));
  }
  EXPECT_EQ(texts.size(), cases.size());
  EXPECT_NE(describe(Swiglu{.clamp = 7.0f}), describe(Swiglu{.clamp = std::nextafter(7.0f, 8.0f)}));
}

TEST(ActivationValues, GatedKindsAreFour) {
  const std::set<ActivationType> gated = {ActivationType::kSwiglu, ActivationType::kSwigluBias,
                                          ActivationType::kSiTu, ActivationType::kGeglu};
  for (int i = 0; i < int(std::variant_size_v<Activation>); ++i)
    EXPECT_EQ(is_gated(ActivationType(i)), gated.count(ActivationType(i)) == 1) << i;
  EXPECT_EQ(to_string(type_of(SiTu{})), "situ");
  EXPECT_EQ(to_string(type_of(Identity{})), "identity");
}

TEST(ActivationValues, LoweringPutsEachConstantInItsRegister) {
  const ActivationParams bias = lower(
      SwigluBias{.gate_sigmoid_scale = ramp(10), .linear_offset = ramp(20), .clamp = ramp(30)}, 1);
  EXPECT_EQ(bias.type, ActivationType::kSwigluBias);
  EXPECT_EQ(bias.alpha, 11);
  EXPECT_EQ(bias.beta, 21);
  EXPECT_TRUE(bias.has_limit);
  EXPECT_EQ(bias.limit, 31);
  const ActivationParams situ = lower(SiTu{.gate_softcap = ramp(3), .linear_softcap = ramp(40)}, 2);
  EXPECT_EQ(situ.alpha, 5);
  EXPECT_EQ(situ.beta, 42);
  EXPECT_FALSE(situ.has_limit);
  const ActivationParams step = lower(Swiglu{.clamp = 7.0f, .clamp_after_silu = true}, 0);
  EXPECT_TRUE(step.limit_after);
  EXPECT_EQ(step.limit, 7);
  EXPECT_FALSE(lower(Swiglu{}, 0).has_limit);
  EXPECT_EQ(lower(Geglu{GeluForm::kErf}, 0).form, GeluForm::kErf);
  EXPECT_EQ(lower(Gelu{GeluForm::kErf}, 0).form, GeluForm::kErf);
  EXPECT_EQ(lower(Relu2{}, 0).type, ActivationType::kRelu2);
}

TEST(ActivationValues, CheckNamesConstantValueAndRule) {
  PerExpert third_is_nan = ramp(1);
  third_is_nan.values[2] = NAN;
  const std::vector<std::pair<Activation, std::string>> cases = {
      {Swiglu{.clamp = 0.0f},
       "activation swiglu: clamp of expert 0 is 0; it must be finite and > 0"},
      {Swiglu{.clamp = -7.0f}, "clamp of expert 0 is -7"},
      {Swiglu{.clamp = INFINITY}, "clamp of expert 0 is inf"},
      {Swiglu{.clamp = third_is_nan}, "clamp of expert 2 is nan"},
      {Swiglu{.clamp = PerExpert(std::vector<float>{1, 2})},
       "clamp has 2 values; give 1 or one for each of the 3 experts"},
      {Swiglu{.clamp = PerExpert(std::vector<float>{})}, "clamp has 0 values"},
      {SwigluBias{.gate_sigmoid_scale = NAN}, "gate_sigmoid_scale of expert 0 is nan"},
      {SwigluBias{.linear_offset = INFINITY}, "linear_offset of expert 0 is inf"},
      {SwigluBias{.clamp = 0.0f}, "activation swiglu_bias: clamp of expert 0 is 0"},
      {SiTu{.gate_softcap = 0.0f}, "activation situ: gate_softcap of expert 0 is 0"},
      {SiTu{.linear_softcap = -25.0f}, "linear_softcap of expert 0 is -25"},
  };
  for (const auto& [activation, text] : cases) {
    try {
      check(activation, 3);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(text));
    }
    EXPECT_NO_THROW(check(SwigluBias{.linear_offset = -1.0f, .clamp = ramp(1)}, 3));
  }
}

}  // namespace
}  // namespace switchyard
