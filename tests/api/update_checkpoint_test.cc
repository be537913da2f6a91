// SPDX-License-Identifier: Apache-2.0
// One expert of a live layer replaced by one of a checkpoint.
#include <gmock/gmock.h>

#include <algorithm>

#include "switchyard/api/checkpoint.h"
#include "tests/cases/leaf_case.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using test::Call;
using test::CheckpointEditor;
using test::data_dir;
using test::TempDir;
using test::usage_error_of;
using testing::HasSubstr;

BuildOptions options() {
  BuildOptions o;
  o.threads = 2;
  return o;
}

MoeLayer layer_of(const std::string& path, const BuildOptions& o = options()) {
  return MoeLayer::from_checkpoint(Checkpoint::open(path), 0, o);
}

std::vector<std::byte> output(const MoeLayer& layer) { return Call(layer.impl(), 17).run(); }

// Mixtral, whose expert 2 has the weights of expert 5.
CheckpointEditor edited() {
  CheckpointEditor m = CheckpointEditor::fixture("mixtral");
  const std::string experts = "model.layers.0.block_sparse_moe.experts.";
  for (const char* w : {".w1.weight", ".w2.weight", ".w3.weight"})
    m.tensors.at(experts + "2" + w).bytes = m.tensors.at(experts + "5" + w).bytes;
  return m;
}

TEST(UpdateFromCheckpoint, TheBitsAreThoseOfALayerBuiltFromIt) {
  TempDir dir;
  edited().write(dir);
  MoeLayer layer = layer_of(data_dir("mixtral"));
  const std::vector<std::byte> before = output(layer), want = output(layer_of(dir.path()));
  ASSERT_NE(before, want);
  layer.update_expert(2, Checkpoint::open(dir.path()), 0);
  EXPECT_EQ(output(layer), want) << "and the checkpoint is closed by now";
  EXPECT_TRUE(test::judge(layer, 17).ok(test::budgets_of(layer))) << "the oracle reads them too";
  layer.update_expert(2, Checkpoint::open(data_dir("mixtral")), 0);
  EXPECT_EQ(output(layer), before);
}

TEST(UpdateFromCheckpoint, AConvertedLayerConvertsThem) {
  TempDir dir;
  edited().write(dir);
  BuildOptions o = options();
  o.format = "fp8_block_scales";
  MoeLayer layer = layer_of(data_dir("mixtral"), o);
  const std::vector<std::byte> before = output(layer), want = output(layer_of(dir.path(), o));
  ASSERT_NE(before, want);
  layer.update_expert(2, Checkpoint::open(dir.path()), 0);
  EXPECT_EQ(output(layer), want);
}

// What a layer of bf16 arrays gets from a checkpoint of another format is converted, and says so.
TEST(UpdateFromCheckpoint, ItsNoticesJoinTheLayersOnce) {
  BuildOptions o = options();
  o.format = "fp8";
  MoeLayer layer = MoeLayer::from_preset("tiny", o);
  const std::vector<std::string> before = layer.notices();
  CheckpointEditor m = CheckpointEditor::fixture("mixtral");
  for (const char* w : {".w1.weight", ".w3.weight", ".w2.weight"}) {
    test::RawTensor& t = m.tensors.at(std::string("model.layers.0.block_sparse_moe.experts.2") + w);
    std::vector<float> values;
    for (std::int64_t i = 0; i < t.shape[0] * t.shape[1]; ++i) values.push_back(bf16_at(t, i));
    t.dtype = "F32", t.bytes = test::f32_bytes(values);
  }
  TempDir dir;
  m.write(dir);
  for (int i = 0; i < 2; ++i) layer.update_expert(2, Checkpoint::open(dir.path()), 0);
  std::vector<std::string> more(layer.notices().begin() + std::ptrdiff_t(before.size()),
                                layer.notices().end());
  EXPECT_THAT(more, testing::ElementsAre(HasSubstr("F32 expert weight(s) are rounded to bf16")));
}

TEST(UpdateFromCheckpoint, WhatDiffersIsNamedAndChangesNothing) {
  MoeLayer layer = layer_of(data_dir("mixtral"));
  const std::vector<std::byte> good = output(layer);
  auto refused = [&](std::int64_t e, const std::string& path, std::int64_t index = 0) {
    return usage_error_of([&] { layer.update_expert(e, Checkpoint::open(path), index); });
  };
  EXPECT_THAT(refused(8, data_dir("mixtral")), HasSubstr("expert 8 is outside 0..7"));
  EXPECT_THAT(refused(-1, data_dir("mixtral")), HasSubstr("expert -1 is outside 0..7"));
  EXPECT_THAT(refused(2, data_dir("mixtral"), 9), HasSubstr("layer 9"));
  EXPECT_THAT(refused(2, data_dir("qwen3_moe_nvfp4")), HasSubstr("is stored as nvfp4"));
  EXPECT_THAT(refused(2, data_dir("gpt_oss")), HasSubstr("this layer swiglu"));
  EXPECT_EQ(output(layer), good);
  TempDir dir;
  edited().write(dir);
  layer.update_expert(2, Checkpoint::open(dir.path()), 0);
  EXPECT_THAT(layer.notices(), testing::IsEmpty());
  EXPECT_EQ(output(layer), output(layer_of(dir.path()))) << "a good update follows";
  EXPECT_NE(output(layer), good);
}

TEST(UpdateFromCheckpoint, OtherConstantsOfTheSameActivationAreRefused) {
  CheckpointEditor m = CheckpointEditor::fixture("gpt_oss");
  m.config["swiglu_limit"] = 6.5;
  TempDir dir;
  m.write(dir);
  MoeLayer layer = layer_of(data_dir("gpt_oss"));
  const std::vector<std::byte> good = output(layer);
  EXPECT_THAT(usage_error_of([&] { layer.update_expert(2, Checkpoint::open(dir.path()), 0); }),
              HasSubstr("other constants"));
  m.config.erase("swiglu_limit");
  std::string& up = m.tensors.at("model.layers.0.mlp.experts.gate_up_proj").bytes;
  std::swap_ranges(up.begin(), up.begin() + 1000, up.begin() + 2 * std::ptrdiff_t(up.size() / 8));
  m.write(dir);
  layer.update_expert(2, Checkpoint::open(dir.path()), 0);
  EXPECT_NE(output(layer), good) << "a good update follows";
}

}  // namespace
}  // namespace switchyard
