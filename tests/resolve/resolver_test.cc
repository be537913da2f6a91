// SPDX-License-Identifier: Apache-2.0
#include "switchyard/resolve/resolver.h"

#include "switchyard/core/preset.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/backends.h"
#include "switchyard/resolve/warnings.h"
#include "tests/support/selection_cases.h"

namespace switchyard::resolve {
namespace {

using test::deployment_on;
using test::gpu_environment;
using test::plain_environment;
using test::problem_of;
using test::usage_error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kCpuNvfp4 = "switchyard.cpu.fused_moe.nvfp4",
                  kCudaNvfp4 = "switchyard.cuda.fused_moe.nvfp4";

std::vector<Reject> reasons(const Report& r) {
  std::vector<Reject> out;
  for (const Rejection& rejection : r.rejected) out.push_back(rejection.reason);
  return out;
}

const Rejection* rejection_of(const Report& r, const std::string& candidate) {
  for (const Rejection& rejection : r.rejected)
    if (rejection.candidate == candidate) return &rejection;
  return nullptr;
}

class Resolver : public testing::Test {
 protected:
  Resolver() {
    before_ = set_warning_sink([this](std::string_view text) { heard_.emplace_back(text); });
  }
  ~Resolver() override { set_warning_sink(before_); }

  std::vector<std::string> heard_;

 private:
  WarningSink before_;
};

TEST_F(Resolver, AsksEveryLeafAndReportsEveryAnswerInOrder) {
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu));
  EXPECT_EQ(r.winner, kCpuNvfp4);
  EXPECT_EQ(r.selected_by, SelectedBy::kDefault);
  EXPECT_THAT(r.eligible, ElementsAre(kCpuNvfp4));
  std::vector<std::string> asked;
  for (const leaves::Leaf* leaf : leaves::all_leaves_from(Device::kCpu))
    if (leaf->id.str() != kCpuNvfp4) asked.push_back(leaf->id.str());
  std::vector<std::string> rejected;
  for (const Rejection& rejection : r.rejected) {
    rejected.push_back(rejection.candidate);
    EXPECT_FALSE(rejection.detail.empty());
  }
  EXPECT_EQ(rejected, asked);
  EXPECT_FALSE(r.degraded);
  EXPECT_EQ(r.fingerprint, plain_environment().fingerprint());
  EXPECT_THAT(heard_, IsEmpty());
}

TEST_F(Resolver, APinnedIdWins) {
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu)) {
    Request request{.leaf = leaf->id.str()};
    Report r = resolve(problem_of(leaf->id.quant), deployment_on(Device::kCpu), request);
    EXPECT_EQ(r.winner, leaf->id.str());
    EXPECT_EQ(r.selected_by, SelectedBy::kPinned);
    EXPECT_EQ(r.requested, request);
    EXPECT_THAT(r.rejected, IsEmpty());
    EXPECT_EQ(make_plan(r).leaf, leaf->id.str());
  }
}

TEST_F(Resolver, APinnedLeafOfAnotherFormatFailsWithExactlyThat) {
  for (const leaves::Leaf* leaf : leaves::all_leaves_from(Device::kCpu)) {
    std::string other = leaf->id.quant == "fp8" ? "nvfp4" : "fp8";
    Report r = resolve(problem_of(other), deployment_on(Device::kCpu, gpu_environment(90)),
                       {.leaf = leaf->id.str()});
    EXPECT_EQ(r.winner, "");
    EXPECT_EQ(r.selected_by, SelectedBy::kFailed);
    EXPECT_THAT(reasons(r), ElementsAre(Reject::kQuantUnsupported));
    EXPECT_THAT(usage_error_of([&] { make_plan(r); }), HasSubstr("quant_unsupported"));
  }
}

// The same question: a preference degrades and says so, a pin does not.
TEST_F(Resolver, APreferenceDegradesWhereAPinFails) {
  Problem p = problem_of("nvfp4");
  Deployment d = deployment_on(Device::kCpu, gpu_environment(89));
  Report preferred = resolve(p, d, {.prefer = "TRTLLM"});
  EXPECT_EQ(preferred.winner, kCpuNvfp4);
  EXPECT_EQ(preferred.selected_by, SelectedBy::kDefault);
  EXPECT_TRUE(preferred.degraded);
  EXPECT_EQ(preferred.degraded_from, kCudaNvfp4) << "the leaf whose format matched";
  ASSERT_EQ(heard_.size(), 1u);
  EXPECT_THAT(heard_[0], testing::AllOf(HasSubstr("TRTLLM"), HasSubstr("sm_unsupported"),
                                        HasSubstr(kCpuNvfp4)));
  EXPECT_THAT(preferred.warnings, ElementsAre(heard_[0]));

  Report pinned = resolve(p, d, {.device = Device::kCuda});
  EXPECT_EQ(pinned.winner, "");
  EXPECT_EQ(pinned.selected_by, SelectedBy::kFailed);
  EXPECT_EQ(rejection_of(pinned, kCudaNvfp4)->reason, Reject::kSmUnsupported);
  EXPECT_EQ(heard_.size(), 1u) << "a failed pin is no substitution";
}

TEST_F(Resolver, AKeptPreferenceIsNoDegradation) {
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCuda), {.prefer = "cpu"});
  EXPECT_EQ(r.winner, kCpuNvfp4);
  EXPECT_EQ(r.selected_by, SelectedBy::kPreferred);
  EXPECT_FALSE(r.degraded);
  EXPECT_THAT(heard_, IsEmpty());
}

TEST_F(Resolver, ADeploymentOnAnotherDeviceDegradesLoudlyWithoutAPin) {
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCuda));
  EXPECT_EQ(r.winner, kCpuNvfp4);
  EXPECT_TRUE(r.degraded);
  EXPECT_EQ(r.degraded_from, kCudaNvfp4);
  EXPECT_EQ(heard_.size(), 1u);
  EXPECT_EQ(make_plan(r).deployment.device, Device::kCpu);
}

TEST_F(Resolver, AFormatTokenAloneIsDisambiguatedByTheGates) {
  for (const char* text : {"nvfp4", "*.*.*.nvfp4", "nvfp4.switchyard", "NVFP4_AWQ"}) {
    Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu), {.leaf = text});
    EXPECT_EQ(r.winner, kCpuNvfp4) << text;
    EXPECT_EQ(r.selected_by, SelectedBy::kPinned) << text;
    EXPECT_EQ(r.rejected.size(), 1u) << text;
  }
  EXPECT_EQ(resolve(problem_of("none"), deployment_on(Device::kCpu), {.leaf = "cpu.bf16"}).winner,
            "switchyard.cpu.fused_moe.none");
}

TEST_F(Resolver, ABareProviderIsDisambiguatedByTheGates) {
  Report r = resolve(problem_of("fp8"), deployment_on(Device::kCpu), {.leaf = "switchyard"});
  EXPECT_EQ(r.winner, "switchyard.cpu.fused_moe.fp8");
  EXPECT_EQ(r.rejected.size(), leaves::all_leaves_from(Device::kCpu).size() - 1);
}

TEST_F(Resolver, PinsThatContradictAreAnError) {
  EXPECT_THAT(usage_error_of([] {
                resolve(problem_of("nvfp4"), deployment_on(Device::kCpu),
                        {.leaf = "cuda.nvfp4", .device = Device::kCpu});
              }),
              HasSubstr("cuda.nvfp4"));
  EXPECT_THAT(usage_error_of([] {
                resolve(problem_of("nvfp4"), deployment_on(Device::kCpu), {.leaf = "cpu.nvfp5"});
              }),
              HasSubstr("nvfp4"));
}

TEST_F(Resolver, APinOverrulesAPreferenceAndSaysSo) {
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu),
                     {.device = Device::kCpu, .prefer = "CUTLASS"});
  EXPECT_EQ(r.winner, kCpuNvfp4);
  EXPECT_EQ(r.selected_by, SelectedBy::kPinned);
  EXPECT_FALSE(r.degraded);
  ASSERT_EQ(heard_.size(), 1u);
  EXPECT_THAT(heard_[0], HasSubstr("CUTLASS"));
}

TEST_F(Resolver, CudaLeavesServeWhereTheirKernelsAreBuilt) {
  for (const std::string& preset : preset_names())
    for (const std::string& format : leaves::format_names())
      for (int sm : {90, 100}) {
        Problem p = make_preset(preset);
        p.format = format;
        Report r = resolve(p, deployment_on(Device::kCuda, gpu_environment(sm)),
                           {.device = Device::kCuda});
        const std::string own = "switchyard.cuda.fused_moe." + format;
        const bool built = leaves::find_leaf(format, Device::kCuda).leaf->ffn != nullptr;
        const bool serves = built && sm == 90;
        EXPECT_EQ(r.winner, serves ? own : "");
        ASSERT_EQ(r.rejected.size(), leaves::all_leaves(Device::kCuda).size() - (serves ? 1 : 0));
        const Reject own_reason = built ? Reject::kSmUnsupported : Reject::kPathNotEnabled;
        for (const Rejection& rejection : r.rejected)
          EXPECT_EQ(rejection.reason,
                    rejection.candidate == own ? own_reason : Reject::kQuantUnsupported);
      }
}

TEST_F(Resolver, EveryPresetInEveryFormatWinsOnTheCpu) {
  for (const std::string& preset : preset_names())
    for (const std::string& format : leaves::format_names()) {
      Problem p = make_preset(preset);
      p.format = format;
      Report r = resolve(p, deployment_on(Device::kCpu), {.device = Device::kCpu});
      EXPECT_EQ(r.winner, "switchyard.cpu.fused_moe." + format);
      EXPECT_EQ(r.selected_by, SelectedBy::kPinned);
    }
}

TEST_F(Resolver, OffTheMachineAPinFailsWithTheMissingPart) {
  Environment bare = plain_environment();
  bare.deps.clear();
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu, bare), {.leaf = kCudaNvfp4});
  EXPECT_THAT(reasons(r), ElementsAre(Reject::kDepMissing));
  r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu), {.leaf = kCudaNvfp4});
  EXPECT_THAT(reasons(r), ElementsAre(Reject::kSmUnsupported));
}

TEST_F(Resolver, RetiredWordsAreDeprecatedAndDegrade) {
  for (const char* word : {"WIDEEP", "wideep", "FlashInfer"}) {
    heard_.clear();
    Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu), {.prefer = word});
    EXPECT_EQ(r.winner, kCpuNvfp4);
    EXPECT_TRUE(r.degraded);
    EXPECT_EQ(r.degraded_from, word);
    EXPECT_EQ(r.rejected[0].candidate, word);
    EXPECT_EQ(r.rejected[0].reason, Reject::kBackendDeprecated);
    EXPECT_EQ(heard_.size(), 1u);
  }
}

TEST_F(Resolver, TheOracleIsNeverSubstituted) {
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu), {.prefer = "VANILLA"});
  EXPECT_EQ(r.winner, "");
  EXPECT_THAT(r.eligible, IsEmpty());
  EXPECT_EQ(r.selected_by, SelectedBy::kFailed);
  EXPECT_EQ(r.rejected[0].reason, Reject::kNotAnImpl);
}

TEST_F(Resolver, EveryBackendWordIsRead) {
  for (const std::string& word : preference_words()) EXPECT_NO_THROW(to_preference(word)) << word;
  EXPECT_EQ(to_preference("AUTO").device, std::nullopt);
  EXPECT_FALSE(to_preference("AUTO").rejection);
  EXPECT_EQ(to_preference("DeepGEMM").device, Device::kCuda);
  EXPECT_THAT(usage_error_of([] { to_preference("CUTLAS"); }), HasSubstr("did you mean cutlass"));
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu), {.prefer = "AUTO"});
  EXPECT_FALSE(r.degraded);
  EXPECT_EQ(r.selected_by, SelectedBy::kDefault);
}

TEST_F(Resolver, AliasesAreFoldedOnceForAll) {
  Problem p = problem_of("nvfp4");
  p.format = "NVFP4_ARC";
  Report r = resolve(p, deployment_on(Device::kCpu), {.leaf = kCpuNvfp4});
  EXPECT_EQ(r.winner, kCpuNvfp4);
  EXPECT_EQ(r.problem.format, "nvfp4");
  p.format = "MIXED_PRECISION";
  EXPECT_THAT(usage_error_of([&] { resolve(p, deployment_on(Device::kCpu)); }),
              HasSubstr("each layer"));
}

TEST_F(Resolver, IncompleteQuestionsAreErrorsAndAGoodOneWorksAfter) {
  Problem p = problem_of("nvfp4");
  p.hidden = 0;
  EXPECT_THAT(usage_error_of([&] { resolve(p, deployment_on(Device::kCpu)); }),
              HasSubstr("hidden = 0"));
  Deployment d = deployment_on(Device::kCpu);
  d.tp = 0;
  EXPECT_THAT(usage_error_of([&] { resolve(problem_of("nvfp4"), d); }), HasSubstr("tp = 0"));
  EXPECT_EQ(resolve(problem_of("nvfp4"), deployment_on(Device::kCpu)).winner, kCpuNvfp4);
}

TEST_F(Resolver, AssumptionsAreReported) {
  ProblemSketch sketch{.format = "nvfp4", .hidden = 512, .num_experts = 8};
  Report r = resolve(sketch, deployment_on(Device::kCpu));
  EXPECT_EQ(r.winner, kCpuNvfp4);
  EXPECT_THAT(r.assumed, testing::Contains(Assumption{"inter", "768"}));
  EXPECT_THAT(r.assumed, testing::Contains(Assumption{"top_k", "8"}));
  for (const Assumption& a : r.assumed) EXPECT_NE(a.field, "hidden");
  EXPECT_THAT(to_text(r), HasSubstr("inter = 768"));
}

TEST_F(Resolver, KnobsShowAskedAndEffective) {
  Problem p = problem_of("w4a8_mxfp4_mxfp8");
  auto knob = [](const Report& r, std::string_view name) {
    for (const Knob& k : r.knobs)
      if (k.name == name) return k.requested + " -> " + k.effective;
    return std::string("absent");
  };
  Deployment d = deployment_on(Device::kCpu);
  EXPECT_EQ(knob(resolve(p, d), "activations"), "format -> mxfp8");
  p.activations = ActivationMode::kBf16;
  EXPECT_EQ(knob(resolve(p, d), "activations"), "bf16 -> none");
  p.activations = ActivationMode::kF32;
  EXPECT_EQ(knob(resolve(p, d), "activations"), "f32 -> f32");
  p.combine = CombinePrecision::kFp8;
  EXPECT_EQ(knob(resolve(p, d), "combine"), "fp8 -> none (one rank)");
  d.ep = 2;
  EXPECT_EQ(knob(resolve(p, d), "combine"), "fp8 -> fp8");
  EXPECT_EQ(knob(resolve(p, d), "slots"), "0 -> 12");
  EXPECT_EQ(knob(resolve(p, d), "cpu_isa"), "auto -> avx512");
  EXPECT_THAT(resolve(p, d, {.leaf = kCudaNvfp4}).knobs, IsEmpty());
}

TEST_F(Resolver, TextNamesWinnerHowAndEveryRejection) {
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu, gpu_environment(90)));
  std::string text = to_text(r);
  EXPECT_THAT(text, HasSubstr(kCpuNvfp4));
  EXPECT_THAT(text, HasSubstr(r.fingerprint));
  for (const Rejection& rejection : r.rejected) {
    EXPECT_THAT(text, HasSubstr(rejection.candidate));
    EXPECT_THAT(text, HasSubstr(rejection.detail));
  }
  Report none = resolve(problem_of("fp8"), deployment_on(Device::kCpu), {.leaf = kCpuNvfp4});
  EXPECT_THAT(to_text(none), HasSubstr("none"));
  EXPECT_THAT(to_text(Report{}), HasSubstr("nothing was considered"));
}

TEST_F(Resolver, AFailureIsOneLineThatNamesTheMatchingLeafFirst) {
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu, gpu_environment(89)),
                     {.device = Device::kCuda});
  std::string text = usage_error_of([&] { make_plan(r); });
  EXPECT_THAT(text, HasSubstr("no leaf can serve format nvfp4: " + kCudaNvfp4));
  EXPECT_THAT(text, HasSubstr("7 leaves of other formats"));
}

}  // namespace
}  // namespace switchyard::resolve
