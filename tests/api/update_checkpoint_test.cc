// SPDX-License-Identifier: Apache-2.0
// One expert of a live layer replaced by one of a checkpoint.
#include <gmock/gmock.h>

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
  layer.update_expert(2, Checkpoint::open(data_dir("mixtral")), 0);
  EXPECT_EQ(output(layer), good) << "a good update follows";
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
  layer.update_expert(2, Checkpoint::open(data_dir("gpt_oss")), 0);
  EXPECT_EQ(output(layer), good);
}

}  // namespace
}  // namespace switchyard
