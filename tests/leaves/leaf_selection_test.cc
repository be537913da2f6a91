// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "switchyard/core/preset.h"
#include "switchyard/core/shard.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/resolver.h"
#include "tests/support/selection_cases.h"

namespace switchyard::leaves {
namespace {

using formats::ActivationQuant;
using formats::Element;
using formats::ScaleType;
using test::deployment_on;
using test::gpu_environment;
using test::plain_environment;
using test::problem_of;
using test::usage_error_of;
using testing::HasSubstr;

// Written out by hand, so that a leaf that vanishes or changes its name fails.
const std::vector<std::string> kRegistered = {
    "switchyard.cpu.fused_moe.none",
    "switchyard.cpu.fused_moe.fp8_block_scales",
    "switchyard.cpu.fused_moe.nvfp4",
    "switchyard.cpu.fused_moe.w4a16_mxfp4",
    "switchyard.cpu.fused_moe.w4a8_mxfp4_mxfp8",
    "switchyard.cpu.fused_moe.w4a8_mxfp4_fp8",
    "switchyard.cpu.fused_moe.w4a8_nvfp4_fp8",
    "switchyard.cpu.fused_moe.fp8",
    "switchyard.cuda.fused_moe.none",
    "switchyard.cuda.fused_moe.fp8_block_scales",
    "switchyard.cuda.fused_moe.nvfp4",
    "switchyard.cuda.fused_moe.w4a16_mxfp4",
    "switchyard.cuda.fused_moe.w4a8_mxfp4_mxfp8",
    "switchyard.cuda.fused_moe.w4a8_mxfp4_fp8",
    "switchyard.cuda.fused_moe.w4a8_nvfp4_fp8",
    "switchyard.cuda.fused_moe.fp8",
};

Deployment home_of(const Leaf& leaf, int sm = 90) {
  return deployment_on(leaf.device,
                       leaf.device == Device::kCuda ? gpu_environment(sm) : plain_environment());
}

// The verdict of a leaf with everything that it needs: without kernels cuda's is the one no of
// those to come.
bool admitted(const Leaf& leaf, const Problem& p, const Deployment& d) {
  Eligibility v = leaf.can_implement(p, d);
  if (leaf.device == Device::kCpu || leaf.ffn != nullptr) return v.eligible();
  return !v.eligible() && v.reason() == Reject::kPathNotEnabled;
}

TEST(Registry, IdsAreTheListedOnes) {
  std::vector<std::string> ids;
  for (const Leaf* leaf : all_leaves_from(Device::kCpu)) ids.push_back(leaf->id.str());
  EXPECT_EQ(ids, kRegistered);
  EXPECT_EQ(all_leaves_from(Device::kCuda).front()->id.str(), kRegistered[8]);
}

TEST(Registry, EveryIdIsFoundByItsTextAndByQuery) {
  for (const Leaf* leaf : all_leaves_from(Device::kCpu)) {
    EXPECT_EQ(find_leaf_by_id(leaf->id.str()), leaf);
    EXPECT_EQ(find_leaf(leaf->id.quant, leaf->device).leaf, leaf);
    IdentityQuery q = vocabulary().parse_query(leaf->id.str());
    EXPECT_TRUE(q.full());
    ASSERT_EQ(vocabulary().matches(q).size(), 1u);
    EXPECT_EQ(vocabulary().matches(q)[0], leaf->id);
    EXPECT_EQ(leaf->id.technique, to_string(leaf->device));
  }
  EXPECT_EQ(find_leaf_by_id("switchyard.cpu.fused_moe.int4"), nullptr);
}

TEST(Registry, BothDevicesOfAFormatShareItsGeometry) {
  for (const FormatLeaves* f : all_formats()) {
    EXPECT_EQ(f->cpu.id.quant, f->cuda.id.quant);
    EXPECT_EQ(f->cpu.weights, f->cuda.weights);
    EXPECT_EQ(f->cpu.activation, f->cuda.activation);
    EXPECT_FALSE(f->cpu.doc.empty());
  }
}

struct Geometry {
  formats::WeightLayout weights;
  ActivationQuant activation;
};

TEST(Registry, GeometryOfEachFormat) {
  const std::map<std::string, Geometry> expected = {
      {"none", {{Element::kBf16, ScaleType::kNone, 1, 0, false, false}, ActivationQuant::kNone}},
      {"fp8_block_scales",
       {{Element::kE4m3, ScaleType::kF32, 128, 128, false, false}, ActivationQuant::kFp8Block128}},
      {"nvfp4", {{Element::kE2m1, ScaleType::kE4m3, 1, 16, true, false}, ActivationQuant::kNvfp4}},
      {"w4a16_mxfp4",
       {{Element::kE2m1, ScaleType::kE8m0, 1, 32, false, false}, ActivationQuant::kNone}},
      {"w4a8_mxfp4_mxfp8",
       {{Element::kE2m1, ScaleType::kE8m0, 1, 32, false, false}, ActivationQuant::kMxfp8}},
      {"w4a8_mxfp4_fp8",
       {{Element::kE2m1, ScaleType::kE8m0, 1, 32, false, false}, ActivationQuant::kFp8Tensor}},
      {"w4a8_nvfp4_fp8",
       {{Element::kE2m1, ScaleType::kE4m3, 1, 32, true, false}, ActivationQuant::kFp8Tensor}},
      {"fp8", {{Element::kE4m3, ScaleType::kF32, 1, 0, false, false}, ActivationQuant::kFp8Token}},
  };
  ASSERT_EQ(format_names().size(), expected.size());
  for (const auto& [format, geometry] : expected) {
    const Leaf* leaf = find_leaf(format, Device::kCpu).leaf;
    ASSERT_NE(leaf, nullptr) << format;
    EXPECT_EQ(leaf->weights, geometry.weights) << format;
    EXPECT_EQ(leaf->activation, geometry.activation) << format;
  }
}

TEST(FindLeaf, FoldsAliasesInOnePlace) {
  for (Device device : {Device::kCpu, Device::kCuda}) {
    const Leaf* nvfp4 = find_leaf("nvfp4", device).leaf;
    ASSERT_NE(nvfp4, nullptr);
    for (const char* alias : {"NVFP4", "NVFP4_AWQ", "NVFP4_ARC"}) {
      EXPECT_EQ(find_leaf(alias, device).leaf, nvfp4) << alias;
      Problem p = problem_of("nvfp4");
      p.format = alias;  // the leaf that an alias finds must not turn the alias away
      EXPECT_TRUE(admitted(*nvfp4, p, home_of(*nvfp4))) << alias;
    }
    for (const char* alias : {"NO_QUANT", "bf16", "", "unquantized"})
      EXPECT_EQ(find_leaf(alias, device).leaf, find_leaf("none", device).leaf) << alias;
  }
}

TEST(FindLeaf, SaysWhyThereIsNone) {
  Found found = find_leaf("nvfp5", Device::kCpu);
  EXPECT_EQ(found.leaf, nullptr);
  EXPECT_EQ(found.verdict.reason(), Reject::kQuantUnsupported);
  EXPECT_THAT(found.verdict.detail(), HasSubstr("did you mean nvfp4"));
  for (const char* known : {"bf16", "fp8_block_scales", "w4a8_nvfp4_fp8"})
    EXPECT_THAT(found.verdict.detail(), HasSubstr(known));
  EXPECT_TRUE(find_leaf("nvfp4", Device::kCpu).verdict.eligible());
}

TEST(FindLeaf, AModelLevelMarkerIsNoFormat) {
  Found found = find_leaf("MIXED_PRECISION", Device::kCpu);
  EXPECT_EQ(found.leaf, nullptr);
  EXPECT_THAT(found.verdict.detail(), HasSubstr("each layer"));
  EXPECT_THAT(usage_error_of([] { to_format("MIXED_PRECISION"); }), HasSubstr("whole model"));
  EXPECT_EQ(to_format("BF16"), "none");
}

TEST(Gate, AcceptsItsOwnFormatAndRejectsEveryNeighbour) {
  for (const Leaf* leaf : all_leaves_from(Device::kCpu))
    for (const std::string& format : format_names()) {
      Eligibility v = leaf->can_implement(problem_of(format), home_of(*leaf));
      if (format == leaf->id.quant) {
        EXPECT_TRUE(admitted(*leaf, problem_of(format), home_of(*leaf))) << leaf->id.str();
      } else {
        ASSERT_FALSE(v.eligible()) << leaf->id.str() << " on " << format;
        EXPECT_EQ(v.reason(), Reject::kQuantUnsupported) << leaf->id.str() << " on " << format;
        EXPECT_THAT(v.detail(), HasSubstr(show_format(format)));
        EXPECT_THAT(v.detail(), HasSubstr(show_format(leaf->id.quant)));
      }
    }
}

TEST(Gate, CpuLeavesNeedNoDependency) {
  Environment bare = plain_environment();
  bare.deps.clear();
  for (const Leaf* leaf : all_leaves(Device::kCpu))
    EXPECT_TRUE(leaf->can_implement(problem_of(leaf->id.quant), deployment_on(Device::kCpu, bare))
                    .eligible());
}

TEST(Gate, CudaLeavesNameTheDependencyThatIsAbsent) {
  for (const Leaf* leaf : all_leaves(Device::kCuda)) {
    Deployment d = home_of(*leaf);
    d.env.deps = {"mpi"};
    Eligibility v = leaf->can_implement(problem_of(leaf->id.quant), d);
    EXPECT_EQ(v.reason(), Reject::kDepMissing);
    EXPECT_THAT(v.detail(), HasSubstr("cuda"));
    EXPECT_THAT(v.detail(), HasSubstr("mpi"));
  }
}

TEST(Gate, CudaLeavesJudgeTheArchitecture) {
  for (const Leaf* leaf : all_leaves(Device::kCuda)) {
    Problem own = problem_of(leaf->id.quant);
    if (leaf->ffn == nullptr) {  // no GPU helps a leaf without kernels
      for (const Environment& env : {plain_environment(), gpu_environment(89), gpu_environment(90)})
        EXPECT_EQ(leaf->can_implement(own, deployment_on(Device::kCuda, env)).reason(),
                  Reject::kPathNotEnabled);
      continue;
    }
    Eligibility none = leaf->can_implement(own, deployment_on(Device::kCuda, plain_environment()));
    EXPECT_EQ(none.reason(), Reject::kSmUnsupported);
    EXPECT_THAT(none.detail(), HasSubstr("no GPU"));
    Eligibility old = leaf->can_implement(own, home_of(*leaf, 89));
    EXPECT_EQ(old.reason(), Reject::kSmUnsupported);
    EXPECT_THAT(old.detail(), testing::AllOf(HasSubstr("89"), HasSubstr("90")));
    EXPECT_TRUE(admitted(*leaf, own, home_of(*leaf, 90)));
    const Eligibility newer = leaf->can_implement(own, home_of(*leaf, 100));
    EXPECT_EQ(newer.reason(), Reject::kSmUnsupported) << "machine code runs on its own GPU";
    EXPECT_THAT(newer.detail(), testing::AllOf(HasSubstr("100"), HasSubstr("90 only")));
  }
}

TEST(Gate, TheCudaKernelsReadBothSixteenBitDtypes) {
  for (const Leaf* leaf : all_leaves(Device::kCuda))
    for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
      Problem p = problem_of(leaf->id.quant);
      p.dtype = dtype;
      EXPECT_TRUE(leaf->can_implement(p, home_of(*leaf)).eligible())
          << leaf->id.str() << " " << to_string(dtype);
    }
}

TEST(Gate, Fp32ExistsOnTheCpuOnly) {
  for (const Leaf* leaf : all_leaves_from(Device::kCpu)) {
    Problem mode = problem_of(leaf->id.quant), hidden = mode;
    mode.activations = ActivationMode::kF32;
    hidden.dtype = Dtype::kF32;
    for (const Problem& p : {mode, hidden}) {
      Eligibility v = leaf->can_implement(p, home_of(*leaf));
      if (leaf->device == Device::kCpu) {
        EXPECT_TRUE(v.eligible()) << v.detail();
      } else {
        EXPECT_EQ(v.reason(), Reject::kDtypeUnsupported);
        EXPECT_THAT(v.detail(), HasSubstr("f32"));
      }
    }
  }
}

TEST(Gate, OnlyFourBitWeightsNeedEvenWidths) {
  for (const Leaf* leaf : all_leaves_from(Device::kCpu)) {
    bool four_bit = formats::bits_of(leaf->weights.element) == 4;
    Problem odd_hidden = problem_of(leaf->id.quant), odd_inter = odd_hidden;
    odd_hidden.hidden = 131;
    odd_inter.inter = 97;
    for (auto [p, text] : {std::pair{odd_hidden, "hidden is 131"}, {odd_inter, "inter is 97"}}) {
      Eligibility v = leaf->can_implement(p, home_of(*leaf));
      EXPECT_EQ(admitted(*leaf, p, home_of(*leaf)), !four_bit) << leaf->id.str() << " " << text;
      if (!four_bit) continue;
      EXPECT_EQ(v.reason(), Reject::kShapeUnaligned);
      EXPECT_THAT(v.detail(), HasSubstr(text));
    }
  }
}

// Latent projections are built for the CPU; a zero expert returns the full token, so the two do not
// meet.
TEST(Gate, LatentWidths) {
  for (const Leaf* leaf : all_leaves_from(Device::kCpu)) {
    const bool cpu = leaf->device == Device::kCpu;
    Problem p = problem_of(leaf->id.quant);
    p.latent = 130;
    Eligibility v = leaf->can_implement(p, home_of(*leaf));
    EXPECT_EQ(v.eligible(), cpu) << leaf->id.str();
    if (!cpu) {
      EXPECT_EQ(v.reason(), Reject::kPathNotEnabled);
    }
    p.routing.zero_experts = 2;
    v = leaf->can_implement(p, home_of(*leaf));
    EXPECT_EQ(v.reason(), cpu ? Reject::kRoutingUnsupported : Reject::kPathNotEnabled);
    if (cpu) {
      EXPECT_THAT(v.detail(), HasSubstr("2 zero experts and a latent width of 130"));
    }
    p.routing.zero_experts = 0;
    p.latent = 129;
    if (formats::bits_of(leaf->weights.element) == 4) {
      EXPECT_EQ(leaf->can_implement(p, home_of(*leaf)).reason(), Reject::kShapeUnaligned);
    }
  }
}

TEST(Gate, RaggedShapesAreServed) {
  for (const Leaf* leaf : all_leaves_from(Device::kCpu))
    for (auto [h, i] : {std::pair{2880, 2880}, {2048, 1408}, {96, 32}, {130, 98}, {2, 2}}) {
      Problem p = problem_of(leaf->id.quant);
      p.hidden = h, p.inter = i;
      EXPECT_TRUE(admitted(*leaf, p, home_of(*leaf))) << leaf->id.str() << " " << h << " " << i;
    }
}

TEST(Gate, AdaptersAreRefused) {
  for (const Leaf* leaf : all_leaves_from(Device::kCpu)) {
    Deployment d = home_of(*leaf);
    d.lora = true;
    EXPECT_EQ(leaf->can_implement(problem_of(leaf->id.quant), d).reason(),
              Reject::kLoraUnsupported);
  }
}

struct TopologyCase {
  std::int64_t ep, tp, slots;
  std::optional<Reject> reason;  // of 12 experts of width 144
};

TEST(Gate, SlotsAndRanks) {
  const TopologyCase cases[] = {
      {1, 1, 0, {}},
      {5, 1, 0, {}},  // uneven experts
      {12, 1, 0, {}},
      {13, 1, 0, Reject::kTopologyUnsupported},
      {4, 1, 16, {}},
      {4, 1, 14, Reject::kSlotsNotDivisibleByEp},
      {5, 1, 12, {}},  // as many slots as experts: uneven is legal
      {1, 1, 11, Reject::kEplbUnsupported},
      {1, 2, 0, {}},  // 96 + 48: a shard that cuts a block
      {1, 5, 0, {}},  // 4 x 32 + 16
      {1, 6, 0, {}},  // 4 x 32 + 16, and nothing
  };
  for (const Leaf* leaf : all_leaves_from(Device::kCpu))
    for (const TopologyCase& c : cases) {
      Deployment d = home_of(*leaf);
      d.ep = c.ep, d.tp = c.tp, d.slots = c.slots;
      Problem own = problem_of(leaf->id.quant);
      Eligibility v = leaf->can_implement(own, d);
      // The GPU's tiles have one scale each.
      const bool cuts =
          c.tp > 1 && leaf->device == Device::kCuda && leaf->weights.block_cols == 128;
      const std::optional<Reject> reason = cuts ? Reject::kShapeUnaligned : c.reason;
      if (!reason) {
        EXPECT_TRUE(admitted(*leaf, own, d)) << c.ep << " " << c.tp << " " << v.detail();
      } else {
        ASSERT_FALSE(v.eligible());
        EXPECT_EQ(v.reason(), *reason) << c.ep << " " << c.tp << " " << c.slots;
      }
    }
}

TEST(Gate, ALeafRunsOnItsOwnDevice) {
  const Leaf* leaf = find_leaf("nvfp4", Device::kCpu).leaf;
  Eligibility v = leaf->can_implement(problem_of("nvfp4"), deployment_on(Device::kCuda));
  EXPECT_EQ(v.reason(), Reject::kTopologyUnsupported);
  EXPECT_THAT(v.detail(), HasSubstr("cuda"));
}

// Every axis of a problem is served on the CPU; what may say no is listed here by hand.
TEST(Gate, EveryAxisIsServedOnTheCpu) {
  for (const Leaf* leaf : all_leaves(Device::kCpu)) {
    bool four_bit = formats::bits_of(leaf->weights.element) == 4;
    for (const auto& [name, problem] : test::problem_axes(leaf->id.quant)) {
      Eligibility v = leaf->can_implement(problem, home_of(*leaf));
      bool odd = name == "H 131 I 97" || name == "odd latent";
      EXPECT_EQ(v.eligible(), !(four_bit && odd)) << leaf->id.str() << ", " << name;
    }
  }
}

TEST(Gate, EveryPresetIsServedInEveryFormat) {
  for (const std::string& preset : preset_names())
    for (const Leaf* leaf : all_leaves_from(Device::kCpu)) {
      Problem p = make_preset(preset);
      p.format = leaf->id.quant;
      EXPECT_TRUE(admitted(*leaf, p, home_of(*leaf))) << preset << " " << leaf->id.str();
    }
}

// What a gate admits, the resolver plans, on the same leaf.
TEST(Gate, EligibleImpliesPlannable) {
  std::int64_t planned = 0;
  for (const Leaf* leaf : all_leaves_from(Device::kCpu))
    for (const auto& [name, problem] : test::problem_axes(leaf->id.quant))
      for (const auto& [where, d] : test::deployment_axes(leaf->device, home_of(*leaf).env)) {
        bool eligible = leaf->can_implement(problem, d).eligible();
        resolve::Report r = resolve::resolve(problem, d, {.leaf = leaf->id.str()});
        EXPECT_EQ(r.winner, eligible ? leaf->id.str() : "") << name << ", " << where;
        if (!eligible) continue;
        Plan plan = resolve::make_plan(r);
        EXPECT_EQ(plan.leaf, leaf->id.str());
        EXPECT_EQ(plan.problem, problem);
        EXPECT_EQ(plan.deployment, d);
        ++planned;
      }
  EXPECT_GT(planned, 1000) << "an always-refusing gate would pass the loop above";
}

TEST(Gate, IsPure) {
  for (const Leaf* leaf : all_leaves_from(Device::kCpu))
    for (const auto& [where, d] : test::deployment_axes(leaf->device, home_of(*leaf).env)) {
      Problem own = problem_of(leaf->id.quant);
      Eligibility a = leaf->can_implement(own, d), b = leaf->can_implement(own, d);
      EXPECT_EQ(a.eligible(), b.eligible()) << where;
      EXPECT_EQ(a.detail(), b.detail()) << where;
    }
}

// A sketch's assumptions must never be what a gate refuses for.
TEST(Sketch, AnAssumedValueNeverRejects) {
  for (const std::string& format : format_names())
    for (std::int64_t ep : {1, 3, 64, 500})
      for (std::int64_t tp : {1, 5, 8})
        for (std::int64_t slots : {std::int64_t{0}, 8 * ep}) {
          Deployment d = deployment_on(Device::kCpu);
          d.ep = ep, d.tp = tp, d.slots = slots;
          resolve::Report r = resolve::resolve(ProblemSketch{.format = format}, d);
          EXPECT_NE(r.winner, "") << format << " ep " << ep << " tp " << tp << " slots " << slots
                                  << ": " << resolve::summarise_rejections(r);
        }
}

}  // namespace
}  // namespace switchyard::leaves
