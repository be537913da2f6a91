// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "switchyard/base/nearest.h"
#include "switchyard/base/sha256.h"
#include "switchyard/core/preset.h"
#include "switchyard/core/shard.h"
#include "switchyard/core/shared_fusion.h"
#include "switchyard/core/sketch.h"
#include "tests/support/selection_cases.h"

namespace switchyard {
namespace {

using test::plain_environment;
using test::problem_of;
using test::usage_error_of;
using testing::HasSubstr;

TEST(Format, AliasesFoldAndOthersAreLowerCased) {
  for (const char* alias : {"NVFP4", "nvfp4", " NVFP4_AWQ ", "NVFP4_ARC", "nvfp4_arc"})
    EXPECT_EQ(fold_format(alias), "nvfp4") << alias;
  for (const char* alias :
       {"NO_QUANT", "no_quant", "bf16", "BF16", "", "  ", "unquantized", "none"})
    EXPECT_EQ(fold_format(alias), "none") << alias;
  EXPECT_EQ(fold_format("FP8_BLOCK_SCALES"), "fp8_block_scales");
  EXPECT_EQ(fold_format("W4A16_NVFP4"), "w4a16_nvfp4") << "no alias: it differs from nvfp4";
  EXPECT_EQ(fold_format("MIXED_PRECISION"), kMixedPrecision) << "must not pass for unquantised";
  EXPECT_EQ(fold_format(fold_format("NVFP4_AWQ")), "nvfp4");
}

TEST(Format, UnquantisedIsShownAsBf16) {
  EXPECT_EQ(show_format("none"), "bf16");
  EXPECT_EQ(show_format("nvfp4"), "nvfp4");
}

// Every word that an enum prints is the word that it parses.
template <class E, class Parse>
void expect_words(std::initializer_list<const char*> words, Parse parse) {
  int value = 0;
  for (const char* word : words) {
    EXPECT_EQ(to_string(E(value)), word);
    EXPECT_EQ(parse(word), E(value++));
  }
  EXPECT_THAT(usage_error_of([&] { parse("nonsense"); }), HasSubstr("'nonsense'"));
}

TEST(Words, RoundTrip) {
  expect_words<CpuIsa>({"portable", "avx2", "avx512", "zen4", "amx"}, to_cpu_isa);
  expect_words<Parallel>({"dep", "dtp", "tep", "ttp"}, to_parallel);
  expect_words<ActivationMode>({"format", "bf16", "f32"}, to_activation_mode);
  expect_words<CombinePrecision>({"bf16", "fp8", "nvfp4"}, to_combine_precision);
}

TEST(Words, RejectReasonsAreTheClosedSet) {
  expect_words<Reject>(
      {"quant_unsupported", "dtype_unsupported", "sm_unsupported", "dep_missing", "shape_unaligned",
       "slots_not_divisible_by_ep", "topology_unsupported", "lora_unsupported",
       "activation_unsupported", "routing_unsupported", "eplb_unsupported",
       "finalize_fusion_required", "path_not_enabled", "backend_deprecated", "not_an_impl"},
      to_reject);
  EXPECT_THROW(to_string(Reject(15)), InternalError) << "a new reason needs a text and a test";
}

TEST(Eligibility, HasAReasonExactlyWhenItIsANo) {
  EXPECT_THROW(Eligibility::yes().reason(), InternalError);
  EXPECT_THROW(Eligibility::no(Reject::kDepMissing, ""), InternalError);
  Eligibility first = first_reject({Eligibility::yes(), Eligibility::no(Reject::kDepMissing, "a"),
                                    Eligibility::no(Reject::kSmUnsupported, "b")});
  EXPECT_EQ(first.reason(), Reject::kDepMissing);
  EXPECT_EQ(first.detail(), "a");
}

TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, EveryLengthAroundABlockDiffers) {
  std::set<std::string> seen;
  for (std::size_t n = 0; n <= 130; ++n) seen.insert(sha256_hex(std::string(n, 'x')));
  EXPECT_EQ(seen.size(), 131u);
}

TEST(Fingerprint, OrderOfListsDoesNotMatter) {
  Environment a = plain_environment();
  a.deps = {"cuda", "mpi", "nccl"};
  Environment b = a;
  std::reverse(b.deps.begin(), b.deps.end());
  std::reverse(b.flags.begin(), b.flags.end());
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  EXPECT_EQ(a.fingerprint().size(), 16u);
  EXPECT_EQ(a.fingerprint().find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(Fingerprint, EveryFactOfAVerdictChangesItAndNoOther) {
  const std::string base = plain_environment().fingerprint();
  auto changed = [](auto change) {
    Environment env = plain_environment();
    change(env);
    return env.fingerprint();
  };
  EXPECT_NE(changed([](Environment& e) { e.sm = 90; }), base);
  EXPECT_NE(changed([](Environment& e) { e.num_gpus = 2; }), base);
  EXPECT_NE(changed([](Environment& e) { e.isa = CpuIsa::kAvx2; }), base);
  EXPECT_NE(changed([](Environment& e) { e.deps.push_back("mpi"); }), base);
  EXPECT_NE(changed([](Environment& e) { e.flags[0].second += "x"; }), base);
  EXPECT_NE(changed([](Environment& e) { e.build += "x"; }), base);
  EXPECT_EQ(changed([](Environment& e) { e.memory_bytes = 1; }), base);
  EXPECT_EQ(changed([](Environment& e) { e.num_cpus = 64; }), base);
  EXPECT_EQ(changed([](Environment& e) { e.cpu_model = "other"; }), base);
  EXPECT_EQ(changed([](Environment& e) { e.l3_bytes = 1; }), base);
  EXPECT_EQ(changed([](Environment& e) { e.warnings.push_back("w"); }), base);
  EXPECT_EQ(changed([](Environment& e) { e.best_isa = CpuIsa::kAvx512; }), base);
  EXPECT_EQ(changed([](Environment& e) { e.local_flags[0].second = "77"; }), base);
}

TEST(Fingerprint, NeighbouringPartsCannotBeConfused) {
  Environment a, b;
  a.flags = {{"ab", "c"}};
  b.flags = {{"a", "bc"}};
  EXPECT_NE(a.fingerprint(), b.fingerprint());
  a.flags.clear(), b.flags.clear();
  a.deps = {"a", "b"};
  b.deps = {"a1:b"};
  EXPECT_NE(a.fingerprint(), b.fingerprint());
}

struct BadProblem {
  const char* field;
  void (*spoil)(Problem&);
};

TEST(Problem, CheckNamesFieldAndValue) {
  const BadProblem cases[] = {
      {"hidden = 0", [](Problem& p) { p.hidden = 0; }},
      {"hidden = 16777217", [](Problem& p) { p.hidden = kMaxWidth + 1; }},
      {"inter = -4", [](Problem& p) { p.inter = -4; }},
      {"latent = -1", [](Problem& p) { p.latent = -1; }},
      {"top_k", [](Problem& p) { p.routing.top_k = 13; }},
      {"clamp", [](Problem& p) { p.activation = Swiglu{.clamp = PerExpert(-1.0f)}; }},
      {"routed_scaling_factor = 0", [](Problem& p) { p.routed_scaling_factor = 0; }},
      {"routed_scaling_factor = inf",
       [](Problem& p) { p.routed_scaling_factor = std::numeric_limits<float>::infinity(); }},
      {"num_shared = 1", [](Problem& p) { p.num_shared = 1; }},
      {"shared_inter = 7", [](Problem& p) { p.shared_inter = 7; }},
      {"shared_gate", [](Problem& p) { p.shared_gate = true; }},
      {"'NVFP4_AWQ'", [](Problem& p) { p.format = "NVFP4_AWQ"; }},
      {"'mixed_precision'", [](Problem& p) { p.format = kMixedPrecision; }},
  };
  for (const BadProblem& c : cases) {
    Problem p = problem_of("nvfp4");
    c.spoil(p);
    EXPECT_THAT(usage_error_of([&] { p.check(); }), HasSubstr(c.field));
    EXPECT_NO_THROW(problem_of("nvfp4").check());
  }
}

TEST(Deployment, CheckNamesFieldAndValue) {
  Deployment d;
  EXPECT_NO_THROW(d.check());
  d.ep = 0;
  EXPECT_THAT(usage_error_of([&] { d.check(); }), HasSubstr("ep = 0"));
  d = {}, d.tp = kMaxRanks + 1;
  EXPECT_THAT(usage_error_of([&] { d.check(); }), HasSubstr("tp = 4097"));
  d = {}, d.ep = 128, d.tp = 64;
  EXPECT_THAT(usage_error_of([&] { d.check(); }), HasSubstr("8192"));
  d = {}, d.slots = -1;
  EXPECT_THAT(usage_error_of([&] { d.check(); }), HasSubstr("slots = -1"));
}

TEST(Shard, TpCutsAreEqualRoundedUpAndCoverTheWidth) {
  EXPECT_EQ(tp_shard_width(2880, 4), 736);
  EXPECT_EQ(tp_shard_width(2880, 1), 2880) << "one rank is not padded";
  EXPECT_EQ(tp_shard_width(97, 1), 97);
  for (std::int64_t inter : {1, 31, 32, 33, 96, 97, 1408, 2880})
    for (std::int64_t tp : {1, 2, 3, 4, 7, 8}) {
      std::int64_t end = 0;
      for (std::int64_t r = 0; r < tp; ++r) {
        Shard s = tp_shard(inter, tp, r);
        EXPECT_EQ(s.begin, end);
        EXPECT_GE(s.size, 0);
        end = s.begin + s.size;
      }
      EXPECT_EQ(end, inter) << inter << " over " << tp;
    }
}

TEST(Shard, UnevenExpertsGoToTheFirstRanks) {
  EXPECT_EQ(ep_shard(10, 4, 0), (Shard{0, 3}));
  EXPECT_EQ(ep_shard(10, 4, 1), (Shard{3, 3}));
  EXPECT_EQ(ep_shard(10, 4, 2), (Shard{6, 2}));
  EXPECT_EQ(ep_shard(10, 4, 3), (Shard{8, 2}));
}

TEST(Sketch, ListsEveryFieldThatNobodyStated) {
  CompletedProblem c = complete({}, {});
  std::vector<std::string> fields;
  for (const Assumption& a : c.assumed) fields.push_back(a.field);
  EXPECT_EQ(fields,
            (std::vector<std::string>{"format", "dtype", "activations", "hidden", "latent", "inter",
                                      "expert_bias", "activation", "routing", "num_experts",
                                      "top_k", "routed_scaling_factor", "num_shared",
                                      "shared_inter", "shared_gate", "combine"}));
  EXPECT_NO_THROW(c.problem.check());
}

TEST(Sketch, StatedFieldsAreKeptAndNotListed) {
  ProblemSketch s{.format = "NVFP4_ARC",
                  .dtype = Dtype::kFp16,
                  .activations = ActivationMode::kBf16,
                  .hidden = 320,
                  .latent = 64,
                  .inter = 48,
                  .expert_bias = true,
                  .activation = Relu2{},
                  .routing = RoutingMethodType::kDeepSeekV3,
                  .num_experts = 20,
                  .top_k = 5,
                  .routed_scaling_factor = 2.5f,
                  .num_shared = 3,
                  .shared_inter = 144,
                  .shared_gate = true,
                  .combine = CombinePrecision::kFp8};
  CompletedProblem c = complete(s, {});
  EXPECT_TRUE(c.assumed.empty());
  Problem expected{.format = "nvfp4",
                   .dtype = Dtype::kFp16,
                   .activations = ActivationMode::kBf16,
                   .hidden = 320,
                   .latent = 64,
                   .inter = 48,
                   .expert_bias = true,
                   .activation = Relu2{},
                   .routing = make_routing(RoutingMethodType::kDeepSeekV3, 20, 5),
                   .routed_scaling_factor = 2.5f,
                   .num_shared = 3,
                   .shared_inter = 144,
                   .shared_gate = true,
                   .combine = CombinePrecision::kFp8};
  EXPECT_EQ(c.problem, expected);
}

TEST(Preset, PublishedShapes) {
  struct Row {
    const char* name;
    std::int64_t h, i, e, k, shared;
    float factor;
  };
  const Row rows[] = {{"mixtral-8x7b", 4096, 14336, 8, 2, 0, 1},
                      {"qwen3-30b-a3b", 2048, 768, 128, 8, 0, 1},
                      {"qwen3-235b-a22b", 4096, 1536, 128, 8, 0, 1},
                      {"deepseek-v3", 7168, 2048, 256, 8, 1, 2.5f},
                      {"kimi-k2", 7168, 2048, 384, 8, 1, 2.827f},
                      {"gpt-oss-20b", 2880, 2880, 32, 4, 0, 1},
                      {"gpt-oss-120b", 2880, 2880, 128, 4, 0, 1},
                      {"llama4-maverick", 5120, 8192, 128, 1, 1, 1},
                      {"minimax-m2", 3072, 1536, 256, 8, 0, 1},
                      {"glm-4.5", 5120, 1536, 160, 8, 1, 2.5f},
                      {"tiny", 128, 96, 8, 2, 0, 1}};
  ASSERT_EQ(preset_names().size(), std::size(rows));
  for (const Row& row : rows) {
    Problem p = make_preset(row.name);
    EXPECT_NO_THROW(p.check()) << row.name;
    EXPECT_EQ(p.hidden, row.h) << row.name;
    EXPECT_EQ(p.inter, row.i) << row.name;
    EXPECT_EQ(p.num_experts(), row.e) << row.name;
    EXPECT_EQ(p.top_k(), row.k) << row.name;
    EXPECT_EQ(p.num_shared, row.shared) << row.name;
    EXPECT_EQ(p.shared_inter, row.shared * row.i) << row.name;
    EXPECT_EQ(p.routed_scaling_factor, row.factor) << row.name;
  }
}

TEST(Preset, RecipesAndActivations) {
  EXPECT_EQ(make_preset("deepseek-v3").routing.n_group, 8);
  EXPECT_EQ(make_preset("deepseek-v3").routing.topk_group, 4);
  EXPECT_EQ(make_preset("kimi-k2").routing.n_group, 1);
  EXPECT_TRUE(make_preset("kimi-k2").routing.choice_bias);
  EXPECT_EQ(make_preset("llama4-maverick").routing.placement, WeightPlacement::kInput);
  EXPECT_EQ(make_preset("minimax-m2").routing.method, RoutingMethodType::kMiniMax2);
  EXPECT_EQ(make_preset("Tiny").routing.method, RoutingMethodType::kRenormalize);
  Problem oss = make_preset("gpt-oss-20b");
  EXPECT_TRUE(oss.expert_bias);
  EXPECT_EQ(oss.activation, Activation(SwigluBias{1.702f, 1.0f, PerExpert(7.0f)}));
  EXPECT_FALSE(make_preset("tiny").expert_bias);
}

TEST(Preset, UnknownNamesTheNearAndTheKnown) {
  std::string text = usage_error_of([] { make_preset("deepseek-v2"); });
  EXPECT_THAT(text, HasSubstr("did you mean deepseek-v3"));
  EXPECT_THAT(text, HasSubstr("mixtral-8x7b"));
}

TEST(Nearest, OffersAtMostThreeAndNothingFar) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(nearest("nvfp5", {"fp8", "nvfp4", "none"}), std::vector<std::string>{"nvfp4"});
  EXPECT_EQ(nearest("aaa1", {"aaa2", "aaa3", "aaa4", "aaa5"}).size(), 3u);
  EXPECT_TRUE(nearest("zebra", {"nvfp4", "fp8"}).empty());
}

Problem fusable() {
  Problem p = problem_of("nvfp4");
  p.num_shared = 2;
  p.shared_inter = 2 * p.inter;
  return p;
}

Reject why_not_fused(const Problem& p, const Deployment& d, SharedFusionQuestion q) {
  return can_fuse_shared(p, d, q).reason();
}

TEST(SharedFusion, AdmitsItsOwnCaseByFieldOrSwitch) {
  SharedFusionQuestion same{.format = "NVFP4_AWQ", .activation = Swiglu{}};
  Deployment d;
  d.fuse_shared = true;
  EXPECT_TRUE(can_fuse_shared(fusable(), d, same).eligible());
  d.fuse_shared = false;
  d.env.flags = {{"SWITCHYARD_SHARED_EXPERT_FUSION", "1"}};
  EXPECT_TRUE(can_fuse_shared(fusable(), d, same).eligible());
  d.tp = 4;  // attention TP: all ranks hold the same tokens
  EXPECT_TRUE(can_fuse_shared(fusable(), d, same).eligible());
}

TEST(SharedFusion, EachConditionRefuses) {
  SharedFusionQuestion same{.format = "nvfp4", .activation = Swiglu{}};
  Deployment on;
  on.fuse_shared = true;
  EXPECT_EQ(why_not_fused(fusable(), {}, same), Reject::kPathNotEnabled);
  Deployment d = on;
  d.ep = 2, d.parallel = Parallel::kTep;
  EXPECT_EQ(why_not_fused(fusable(), d, same), Reject::kTopologyUnsupported);
  d = on, d.tp = 2, d.parallel = Parallel::kDtp;
  EXPECT_EQ(why_not_fused(fusable(), d, same), Reject::kTopologyUnsupported);
  Problem p = problem_of("nvfp4");
  EXPECT_EQ(why_not_fused(p, on, same), Reject::kShapeUnaligned);
  p = fusable(), p.shared_inter += 32;
  EXPECT_EQ(why_not_fused(p, on, same), Reject::kShapeUnaligned);
  p = fusable(), p.shared_gate = true;
  EXPECT_EQ(why_not_fused(p, on, same), Reject::kActivationUnsupported);
  EXPECT_EQ(why_not_fused(fusable(), on, {"none", Swiglu{}}), Reject::kQuantUnsupported);
  EXPECT_EQ(why_not_fused(fusable(), on, {"nvfp4", Geglu{}}), Reject::kActivationUnsupported);
  EXPECT_EQ(why_not_fused(fusable(), on, {"nvfp4", Swiglu{}, false}), Reject::kQuantUnsupported);
  same.slice_multiple = 128;  // two shared experts would be cut inside a scale block
  EXPECT_EQ(why_not_fused(fusable(), on, same), Reject::kShapeUnaligned);
  same.slice_multiple = 1;
  p = fusable(), p.routing.zero_experts = 1;
  EXPECT_EQ(why_not_fused(p, on, same), Reject::kRoutingUnsupported);
  p = fusable(), p.routing = make_routing(RoutingMethodType::kRenormalize, 64, 31);
  EXPECT_EQ(why_not_fused(p, on, same), Reject::kRoutingUnsupported);
  p.routing.top_k = 30;
  EXPECT_TRUE(can_fuse_shared(p, on, same).eligible()) << "30 + 2 is the limit itself";
}

}  // namespace
}  // namespace switchyard
