// SPDX-License-Identifier: Apache-2.0
// Experts divided by columns: each rank's fp32 share against the oracle's, and their sum against
// one rank's whole layer.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>

#include "switchyard/api/checkpoint.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/layer/calibrate.h"
#include "switchyard/layer/expert_part.h"
#include "switchyard/ops/projection/projection.h"
#include "tests/cases/leaf_case.h"
#include "tests/cases/share_case.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using formats::ActivationQuant;
using layer::Layer;
using test::Call;
using test::EveryLeaf;
using test::LeafCase;
using test::make_part;
using test::oracle_of;
using test::PartOf;
using test::rel;
using test::Share;
using test::share_of;
using test::usage_error_of;
using testing::HasSubstr;

constexpr double kGemm = 1e-5;  // a share whose oracle is fed the leaf's own codes
constexpr std::int64_t kTokens = 5;

std::vector<double> doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

void add(std::vector<double>& sum, const std::vector<double>& x) {
  sum.resize(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) sum[i] += x[i];
}

bool all_zero(const std::vector<float>& x) {
  return std::ranges::all_of(x, [](float v) { return v == 0; });
}

/// True for quantisers whose blocks lie alike in a shard and in the whole row: cuts are multiples
/// of
/// 32. Else the shard's own scales make it differ by the quantiser's error.
bool same_blocks(ActivationQuant q) {
  return q != ActivationQuant::kFp8Block128 && q != ActivationQuant::kFp8Block128Ue8m0 &&
         q != ActivationQuant::kFp8Token;
}

/// How far the ranks' sum may be from one rank's oracle.
double sum_budget(const Layer& whole) {
  const ActivationQuant q = whole.routed().shape.quant;
  return same_blocks(q) ? layer::budgets_of(q).oracle : layer::budgets_of(q).output;
}

LeafCase case_of(const leaves::Leaf& leaf, std::int64_t inter) {
  LeafCase c{test::small_problem(leaf), {}, kTokens};
  c.problem.inter = inter;
  return c;
}

/// Distinct constants per expert, and biases that only one rank may add.
LeafCase biased_case(const leaves::Leaf& leaf, std::int64_t inter) {
  LeafCase c = case_of(leaf, inter);
  c.problem.expert_bias = true;
  c.problem.activation =
      SwigluBias{.gate_sigmoid_scale = PerExpert({1.1F, 1.3F, 1.5F, 1.7F, 1.9F, 2.1F}),
                 .linear_offset = PerExpert({0.5F, 0.7F, 0.9F, 1.1F, 1.3F, 1.5F}),
                 .clamp = PerExpert({2, 3, 4, 5, 6, 7})};
  return c;
}

bool holds_nothing(const Layer& part) {
  return part.routed().shape.inter == 0 &&
         (part.shared() == nullptr || part.shared()->shape.inter == 0);
}

std::vector<PartOf> tp_parts(std::int64_t tp) {
  std::vector<PartOf> parts;
  for (std::int64_t r = 0; r < tp; ++r) parts.push_back({{}, {r, tp}, {r, tp}});
  return parts;
}

/// Every rank's share near its oracle, and their sum near one rank's. Controls: a share twice or
/// left out is far from the sum of the oracle's shares, the largest one from one rank's too.
void expect_shares_add_up(const Layer& whole, const std::vector<PartOf>& parts,
                          const std::string& what) {
  SCOPED_TRACE(what);
  Call call(whole, kTokens);
  const double oracle_budget = layer::budgets_of(whole.routed().shape.quant).oracle;
  std::vector<std::vector<double>> shares;
  std::vector<double> sum, fed_sum;
  for (const PartOf& p : parts) {
    const std::unique_ptr<Layer> part = make_part(whole, p);
    const Share share = share_of(*part, call);
    const layer::OracleResult fed = oracle_of(*part, call, share, /*with_codes=*/true);
    add(sum, doubles(share.out));
    add(fed_sum, fed.out);
    if (holds_nothing(*part)) {
      EXPECT_TRUE(all_zero(share.out)) << "rank " << p.tp.rank << " holds nothing";
      continue;
    }
    shares.push_back(doubles(share.out));
    EXPECT_LE(rel(shares.back(), fed.out), kGemm) << "rank " << p.tp.rank;
    EXPECT_LE(rel(shares.back(), oracle_of(*part, call, share, false).out), oracle_budget)
        << "rank " << p.tp.rank;
  }
  const std::vector<double> want = oracle_of(whole, call).out;
  EXPECT_LE(rel(sum, fed_sum), kGemm);
  EXPECT_LE(rel(sum, want), sum_budget(whole));
  double largest = 0;
  for (const std::vector<double>& share : shares) {
    std::vector<double> twice = sum, without = sum;
    for (std::size_t i = 0; i < sum.size(); ++i) twice[i] += share[i], without[i] -= share[i];
    EXPECT_GT(rel(twice, fed_sum), 1e3 * kGemm);
    EXPECT_GT(rel(without, fed_sum), 1e3 * kGemm);
    largest = std::max(largest, std::min(rel(twice, want), rel(without, want)));
  }
  EXPECT_GT(largest, 2 * sum_budget(whole));
}

class TpShards : public EveryLeaf {};

TEST_P(TpShards, EveryWidthAndGroup) {
  for (std::int64_t inter : {96, 160, 360})
    for (std::int64_t tp : {2, 3, 4, 8}) {
      if (!test::is_soak() && tp != 4 && (inter != 360 || tp == 2)) continue;
      const MoeLayer whole = build(case_of(leaf(), inter));
      expect_shares_add_up(whole.impl(), tp_parts(tp), cat("inter ", inter, ", tp ", tp));
    }
}

TEST_P(TpShards, EveryTier) {
  for (CpuIsa isa : test::runnable_tiers()) {
    const MoeLayer whole = build(case_of(leaf(), 160), isa);  // 96 + 64: a cut inside a block
    expect_shares_add_up(whole.impl(), tp_parts(2), std::string(to_string(isa)));
  }
}

// The shards' own quantisers apart, nothing but the order of sums may differ.
TEST_P(TpShards, InF32ModeTheSumIsOneRanks) {
  for (std::int64_t tp : {3, 4}) {
    LeafCase c = biased_case(leaf(), 360);
    c.options.activations = ActivationMode::kF32;
    const MoeLayer whole = build(c);
    Call call(whole.impl(), kTokens);
    std::vector<double> sum, wrong;
    for (const PartOf& p : tp_parts(tp)) {
      add(sum, doubles(share_of(*make_part(whole.impl(), p), call).out));
      PartOf shifted = p;  // control: one rank holds its neighbour's columns
      if (p.tp.rank == 1) shifted.tp.rank = 0;
      add(wrong, doubles(share_of(*make_part(whole.impl(), shifted), call).out));
    }
    const std::vector<double> want = oracle_of(whole.impl(), call).out;
    EXPECT_LE(rel(sum, want), 1e-5);
    EXPECT_GT(rel(wrong, want), 1e-2);
  }
}

TEST_P(TpShards, BiasesAndConstantsPerExpert) {
  const MoeLayer whole = build(biased_case(leaf(), 160));
  expect_shares_add_up(whole.impl(), tp_parts(3), "biased");
  Call call(whole.impl(), kTokens);
  const std::unique_ptr<Layer> first = make_part(whole.impl(), {{}, {0, 3}, {0, 3}});
  const std::unique_ptr<Layer> second = make_part(whole.impl(), {{}, {1, 3}, {1, 3}});
  EXPECT_FALSE(layer::packed_experts(*first)(2).down_bias.empty());
  EXPECT_TRUE(layer::packed_experts(*second)(2).down_bias.empty());
}

TEST_P(TpShards, WeightsOnTheInput) {
  LeafCase c = case_of(leaf(), 160);
  c.problem.routing.placement = WeightPlacement::kInput;
  expect_shares_add_up(build(c).impl(), tp_parts(2), "weight on input");
}

TEST_P(TpShards, ExpertsAndColumnsDividedAtOnce) {
  const MoeLayer whole = build(biased_case(leaf(), 160));
  std::vector<PartOf> parts;
  for (std::int64_t ep = 0; ep < 4; ++ep)  // 2 + 2 + 1 + 1 experts, 96 + 64 columns
    for (std::int64_t tp = 0; tp < 2; ++tp)
      parts.push_back({ep_shard(6, 4, ep), {tp, 2}, {ep * 2 + tp, 8}});
  expect_shares_add_up(whole.impl(), parts, "ep 4 x tp 2");
}

// tep: experts are whole, the shared expert is divided over all ranks; its last shards are empty.
TEST_P(TpShards, TheSharedExpertIsDividedOverAllRanks) {
  const MoeLayer whole = build(test::shared_case(leaf(), 80));
  ASSERT_NE(whole.impl().shared(), nullptr);
  std::vector<PartOf> tep, both;
  for (std::int64_t r = 0; r < 6; ++r) {
    tep.push_back({ep_shard(6, 6, r), {}, {r, 6}});
    both.push_back({ep_shard(6, 3, r / 2), {r % 2, 2}, {r, 6}});
  }
  expect_shares_add_up(whole.impl(), tep, "tep");
  expect_shares_add_up(whole.impl(), both, "ep 3 x tp 2");
  expect_shares_add_up(whole.impl(), tp_parts(3), "ttp");
}

TEST_P(TpShards, FusedSharedExpertsAreDividedLikeTheOthers) {
  const MoeLayer plain = build(test::shared_case(leaf(), 128));
  layer::LayerOptions o = plain.impl().options();
  o.fuse_shared = true;
  const Layer whole(test::with_declared_scales(plain.impl()), o);
  ASSERT_EQ(whole.routed().shape.unscaled_choices, 2);
  expect_shares_add_up(whole, tp_parts(3), "fused");
}

TEST_P(TpShards, LatentSharesEndInFrontOfTheNorm) {
  LeafCase c = case_of(leaf(), 160);
  c.problem.latent = 64;
  const MoeLayer whole = build(c);
  Call call(whole.impl(), kTokens);
  std::vector<double> sum, oracle_sum, partial;
  for (const PartOf& p : tp_parts(3)) {
    const std::unique_ptr<Layer> part = make_part(whole.impl(), p);
    const Share share = share_of(*part, call);
    const layer::OracleResult oracle = oracle_of(*part, call);
    ASSERT_EQ(oracle.latent_share.size(), std::size_t(kTokens * 64));
    EXPECT_TRUE(oracle.out.empty());
    EXPECT_LE(rel(doubles(share.out), oracle.latent_share), test::budgets_of(whole).oracle)
        << "rank " << p.tp.rank;
    partial = sum;
    add(sum, doubles(share.out));
    add(oracle_sum, oracle.latent_share);
  }
  EXPECT_LE(rel(sum, oracle_sum), test::budgets_of(whole).oracle);
  EXPECT_GT(rel(partial, oracle_sum), 0.1) << "control";
  // Projected up, the sum is the whole layer's output.
  const checkpoint::LatentProjection& latent = *whole.impl().weights().latent;
  std::vector<double> out(std::size_t(kTokens * c.problem.hidden));
  ops::projection_ref({.shape = &whole.impl().latent()->up_shape,
                       .weight = &latent.up,
                       .tokens = kTokens,
                       .x = oracle_sum.data(),
                       .norm = latent.norm.empty() ? nullptr : latent.norm.data(),
                       .norm_eps = latent.norm_eps,
                       .out = out.data()});
  EXPECT_LE(rel(out, oracle_of(whole.impl(), call).out), sum_budget(whole.impl()));
}

TEST_P(TpShards, ScalesAreTheWholeExperts) {
  const MoeLayer whole = build(case_of(leaf(), 160));
  for (const PartOf& p : tp_parts(3)) {
    const std::unique_ptr<Layer> part = make_part(whole.impl(), p);
    EXPECT_FALSE(part->needs_calibration());
    EXPECT_EQ(part->routed().scales.fc1, whole.impl().routed().scales.fc1);
    EXPECT_EQ(part->routed().scales.fc2, whole.impl().routed().scales.fc2);
  }
  EXPECT_EQ(make_part(whole.impl(), {{}, {1, 3}, {}})->routed().shape.inter, 64);
  EXPECT_LT(make_part(whole.impl(), {{}, {1, 3}, {}})->packed_bytes(),
            whole.impl().packed_bytes() / 2);
  EXPECT_EQ(make_part(whole.impl(), {{}, {2, 3}, {}})->routed().shape.inter, 32);
}

// The ranks' amax together are one rank's, bit for bit: FC1 multiplies the same rows alike.
TEST_P(TpShards, RanksCalibrateTogether) {
  LeafCase c = biased_case(leaf(), 160);
  c.options.activations = ActivationMode::kBf16;  // builds without scales
  const MoeLayer plain = build(c);
  layer::LayerOptions o = plain.impl().options();
  o.activations = ActivationMode::kFormat;
  Layer whole(plain.impl().weights(), o);
  if (!formats::is_static(whole.routed().shape.quant)) {
    EXPECT_FALSE(whole.needs_calibration());
    return;
  }
  ASSERT_TRUE(whole.needs_calibration());
  Call call(plain.impl(), 40);
  whole.calibrate(40, call.exact.data(), nullptr);
  layer::CalibrationAmax all{0, std::vector<float>(6, -1.0F)};
  std::vector<std::unique_ptr<Layer>> parts;
  std::vector<layer::CalibrationAmax> seen;
  for (std::int64_t r = 0; r < 6; ++r) {  // ep 2 x tp 3
    o.held = ep_shard(6, 2, r / 3);
    o.tp = {r % 3, 3};
    parts.push_back(std::make_unique<Layer>(plain.impl().weights(), o));
    ASSERT_TRUE(parts.back()->needs_calibration());
    layer::CalibrationAmax here =
        layer::calibration_amax(*parts.back(), 40, call.exact.data(), nullptr);
    ASSERT_EQ(here.fc2.size(), 3U);
    layer::CalibrationAmax wide{here.fc1, std::vector<float>(6, -1.0F)};
    std::ranges::copy(here.fc2, wide.fc2.begin() + o.held.begin);
    all.merge(wide);
    seen.push_back(std::move(here));
  }
  const layer::StaticScales want = whole.routed().scales;
  const layer::StaticScales got =
      layer::calibrated_scales(whole.routed().shape.quant, all, all.largest());
  EXPECT_EQ(got.fc1, want.fc1);
  EXPECT_EQ(got.fc2, want.fc2);
  EXPECT_NE(layer::calibrated_scales(whole.routed().shape.quant, seen[1], seen[1].largest()).fc2,
            std::vector<float>(want.fc2.begin(), want.fc2.begin() + 3))
      << "control: one rank's columns alone";
  parts[4]->set_scales({got.fc1, {got.fc2.begin() + 3, got.fc2.end()}, {}});
  EXPECT_FALSE(parts[4]->needs_calibration());
  const Share share = share_of(*parts[4], call);
  const std::unique_ptr<Layer> like = make_part(whole, {{3, 3}, {1, 3}, {}});
  EXPECT_EQ(share.out, share_of(*like, call).out);
}

TEST_P(TpShards, AnUpdateTakesTheShardOfTheWholeExpert) {
  const LeafCase c = biased_case(leaf(), 160);
  const MoeLayer old = build(c);
  const checkpoint::LayerWeights fresh = test::make_weights(c.problem, leaf(), 7);
  checkpoint::LayerWeights mixed = test::with_declared_scales(old.impl());
  const checkpoint::ExpertWeights kept = mixed.expert(3);
  checkpoint::ExpertWeights expert = fresh.expert(3);
  expert.gate->input_scale = kept.gate->input_scale;
  expert.up.input_scale = kept.up.input_scale;
  expert.down.input_scale = kept.down.input_scale;
  mixed.expert = [others = mixed.expert, expert](std::int64_t e) {
    return e == 3 ? expert : others(e);
  };
  const PartOf place{{2, 3}, {1, 2}, {}};
  const std::unique_ptr<Layer> part = make_part(old.impl(), place);
  const Layer want(mixed, part->options());
  Call call(old.impl(), kTokens);
  const Share before = share_of(*part, call);

  EXPECT_THAT(usage_error_of([&] { part->update_expert(1, expert); }),
              HasSubstr("expert 1 is outside 2..4"));
  checkpoint::ExpertWeights narrow =
      layer::slice_expert(expert, {.inter = 160, .columns = {0, 96}});
  EXPECT_THAT(usage_error_of([&] { part->update_expert(3, narrow); }), HasSubstr("96 wide"));
  EXPECT_EQ(share_of(*part, call).out, before.out) << "a refused update changes nothing";

  part->update_expert(3, expert);
  const Share after = share_of(*part, call);
  EXPECT_EQ(after.out, share_of(want, call).out);
  EXPECT_NE(after.out, before.out);
  EXPECT_LE(rel(doubles(after.out), oracle_of(*part, call, after, true).out), kGemm);
}

TEST_P(TpShards, APartHasNoOutputOfItsOwn) {
  const MoeLayer whole = build(case_of(leaf(), 160));
  const std::unique_ptr<Layer> part = make_part(whole.impl(), {{}, {1, 4}, {}});
  Call call(*part, 2);
  EXPECT_THAT(usage_error_of([&] { call.run(); }),
              HasSubstr("experts 0..5 of 6 and 64 of their 160 columns"));
  for (const Member wrong : {Member{4, 4}, Member{-1, 2}, Member{0, 0}})
    EXPECT_THAT(usage_error_of([&] {
                  make_part(whole.impl(), {{}, wrong, {}});
                }),
                HasSubstr(cat("TP group: rank ", wrong.rank, " of ", wrong.size)));
  EXPECT_THAT(usage_error_of([&] {
                make_part(whole.impl(), {{}, {}, {2, 2}});
              }),
              HasSubstr("the shared expert's group: rank 2 of 2"));
  Call good(whole.impl(), 2);
  EXPECT_NO_THROW(good.run());
}

struct OtherLayout {
  const char* name;
  const char* format;
  formats::WeightLayout weights;
  ActivationQuant activation;
};

/// What checkpoints hold beside the layouts that the leaves convert to.
std::vector<OtherLayout> other_layouts() {
  formats::WeightLayout power_of_two = formats::kFp8BlockLayout, small = formats::kFp8BlockLayout;
  power_of_two.power_of_two = true;
  small.block_rows = small.block_cols = 64;
  return {
      {"fp16", "none", {.element = formats::Element::kFp16}, ActivationQuant::kNone},
      {"per_tensor", "fp8", formats::kFp8TensorLayout, ActivationQuant::kFp8Tensor},
      {"channel_by_tensor", "fp8", formats::kFp8ChannelLayout, ActivationQuant::kFp8Tensor},
      {"ue8m0", "fp8_block_scales", power_of_two, ActivationQuant::kFp8Block128Ue8m0},
      {"blocks_of_64", "fp8_block_scales", small, ActivationQuant::kFp8Block128},
      {"unquantised_input", "fp8_block_scales", formats::kFp8BlockLayout, ActivationQuant::kNone},
  };
}

class OtherLayouts : public testing::TestWithParam<OtherLayout> {};

TEST_P(OtherLayouts, SharesAddUp) {
  const OtherLayout& l = GetParam();
  leaves::Leaf leaf = *leaves::find_leaf(l.format, Device::kCpu).leaf;
  leaf.weights = l.weights;
  leaf.activation = l.activation;
  for (std::int64_t tp : {2, 4}) {
    const MoeLayer whole =
        test::build_layer(test::make_weights(biased_case(leaf, 360).problem, leaf), {},
                          test::runnable_tiers().back());
    ASSERT_EQ(whole.impl().routed().shape.weights, l.weights);
    ASSERT_EQ(whole.impl().routed().shape.quant, l.activation);
    expect_shares_add_up(whole.impl(), tp_parts(tp), cat(l.name, ", tp ", tp));
  }
}

// What the loader borrows from a mapping, or materialises: 192 columns in two are cut at 96.
class Checkpoints : public testing::TestWithParam<const char*> {};

TEST_P(Checkpoints, SharesAddUp) {
  const Checkpoint checkpoint = Checkpoint::open(test::data_dir(GetParam()));
  BuildOptions o;
  o.threads = 2;
  const MoeLayer whole =
      MoeLayer::from_checkpoint(checkpoint, checkpoint.layers().front().index, o);
  for (std::int64_t tp : {2, 4}) expect_shares_add_up(whole.impl(), tp_parts(tp), cat("tp ", tp));
}

INSTANTIATE_TEST_SUITE_P(Families, Checkpoints,
                         testing::Values("deepseek_v3_fp8_block", "gpt_oss_mxfp4",
                                         "qwen3_moe_nvfp4", "qwen2_moe", "llama4_text"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           return std::string(info.param);
                         });

INSTANTIATE_TEST_SUITE_P(Layouts, OtherLayouts, testing::ValuesIn(other_layouts()),
                         [](const testing::TestParamInfo<OtherLayout>& info) {
                           return info.param.name;
                         });

INSTANTIATE_TEST_SUITE_P(Leaves, TpShards, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard
