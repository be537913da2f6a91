// SPDX-License-Identifier: Apache-2.0
// Every preset x format x device, asked in process: the winner, and a reason from everybody else.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "switchyard/api/machine.h"
#include "switchyard/base/errors.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

// Written out by hand: a format or preset that vanishes from its list must fail here.
const std::vector<std::string> kPresets = {
    "mixtral-8x7b", "qwen3-30b-a3b",   "qwen3-235b-a22b", "deepseek-v3", "kimi-k2", "gpt-oss-20b",
    "gpt-oss-120b", "llama4-maverick", "minimax-m2",      "glm-4.5",     "tiny"};
const std::vector<std::string> kFormats = {
    "bf16",           "fp8_block_scales", "nvfp4", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8",
    "w4a8_mxfp4_fp8", "w4a8_nvfp4_fp8",   "fp8"};

std::string leaf_id(const std::string& device, const std::string& format) {
  return "switchyard." + device + ".fused_moe." + (format == "bf16" ? "none" : format);
}

std::map<std::string, std::string> reasons(const Json& report) {
  std::map<std::string, std::string> out;
  for (const Json& rejection : report["rejected"]) {
    EXPECT_FALSE(rejection["detail"].get<std::string>().empty());
    EXPECT_TRUE(out.emplace(rejection["candidate"], rejection["reason"]).second) << rejection;
  }
  return out;
}

Json ask(const ExplainOptions& options, bool served) {
  Explanation found = explain(options);
  EXPECT_EQ(found.served, served) << found.text;
  Json report = Json::parse(found.json);
  EXPECT_EQ(report["ok"], served);
  EXPECT_NE(found.text.find(report["fingerprint"].get<std::string>()), std::string::npos);
  return report;
}

class Matrix : public testing::TestWithParam<std::string> {};

TEST_P(Matrix, CpuServesEveryFormatWithItsOwnLeaf) {
  for (const std::string& format : kFormats) {
    ExplainOptions options;
    options.preset = GetParam();
    options.sketch.format = format;
    options.device_pinned = true;
    Json report = ask(options, true);
    EXPECT_EQ(report["winner"], leaf_id("cpu", format));
    EXPECT_EQ(report["eligible"], Json::array({leaf_id("cpu", format)}));
    EXPECT_EQ(report["assumed"], Json::array());
    auto said = reasons(report);
    EXPECT_EQ(said.size(), kFormats.size() - 1);
    for (const std::string& other : kFormats)
      EXPECT_EQ(said[leaf_id("cpu", other)], other == format ? "" : "quant_unsupported");
  }
}

TEST_P(Matrix, CudaLeavesServeWhereTheirKernelsAreBuilt) {
  for (int sm : {90, 100}) {
    for (const std::string& format : kFormats) {
      ExplainOptions options;
      options.preset = GetParam();
      options.sketch.format = format;
      options.device_pinned = true;
      options.deployment.device = Device::kCuda;
      options.sm = sm;
      const bool serves = sm == 90;
      Json report = ask(options, serves);
      EXPECT_EQ(report["winner"], serves ? leaf_id("cuda", format) : "");
      EXPECT_EQ(report["selected_by"], serves ? "pinned" : "failed");
      EXPECT_EQ(report["deployment"]["env"]["sm"], sm);
      auto said = reasons(report);
      EXPECT_EQ(said.size(), kFormats.size() - (serves ? 1 : 0));
      const std::string own = serves ? "" : "sm_unsupported";
      for (const std::string& other : kFormats)
        EXPECT_EQ(said[leaf_id("cuda", other)], other == format ? own : "quant_unsupported");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, Matrix, testing::ValuesIn(kPresets), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (c == '-' || c == '.') c = '_';
  return name;
});

std::map<std::string, std::string> assumed(const Json& report) {
  std::map<std::string, std::string> out;
  for (const Json& a : report["assumed"]) out[a["field"]] = a["value"];
  return out;
}

TEST(Sketch, WhatIsNotStatedIsReportedAsAssumed) {
  ExplainOptions options;
  options.sketch.hidden = 1408;
  options.sketch.num_experts = 60;
  options.sketch.format = "nvfp4";
  Json report = ask(options, true);
  auto fields = assumed(report);
  EXPECT_TRUE(fields.contains("inter"));
  EXPECT_TRUE(fields.contains("top_k"));
  EXPECT_TRUE(fields.contains("activation"));
  EXPECT_FALSE(fields.contains("hidden"));
  EXPECT_FALSE(fields.contains("num_experts"));
  EXPECT_FALSE(fields.contains("format"));
  EXPECT_EQ(report["problem"]["hidden"], 1408);
}

TEST(Sketch, APinnedLeafSaysTheFormatThatTheSketchLeavesOpen) {
  ExplainOptions options;
  options.leaf = "w4a16_mxfp4.cpu";
  Json report = ask(options, true);
  EXPECT_EQ(report["winner"], "switchyard.cpu.fused_moe.w4a16_mxfp4");
  EXPECT_EQ(assumed(report)["format"], "w4a16_mxfp4");
}

TEST(Pin, ALeafOfAnotherFormatGivesExactlyQuantUnsupported) {
  for (const std::string& format : kFormats) {
    for (const std::string& other : kFormats) {
      if (format == other) continue;
      ExplainOptions options;
      options.preset = "tiny";
      options.sketch.format = format;
      options.leaf = leaf_id("cpu", other);
      Json report = ask(options, false);
      std::map<std::string, std::string> only = {{leaf_id("cpu", other), "quant_unsupported"}};
      EXPECT_EQ(reasons(report), only);
    }
  }
}

TEST(Ranks, EveryStrategyOfThisBuildServes) {
  ExplainOptions options;
  options.preset = "deepseek-v3";
  options.deployment.ep = 8;
  options.deployment.parallel = Parallel::kDep;
  Json report = ask(options, true);
  EXPECT_EQ(report["winner"], leaf_id("cpu", "bf16"));
  EXPECT_EQ(report["strategies"].size(), 7u);
  for (const Json& s : report["strategies"]) {
    const std::string name = s["strategy"];
    const Json reason = name == "nccl"    ? Json("dep_missing")
                        : name == "fused" ? Json("path_not_enabled")
                                          : Json(nullptr);
    EXPECT_EQ(s["reason"], reason) << name;
  }

  options.deployment.ep = 1;
  options.deployment.tp = 2;
  options.deployment.parallel = Parallel::kTtp;
  report = ask(options, true);
  ASSERT_EQ(report["strategies"].size(), 1u);
  EXPECT_EQ(report["strategies"][0]["strategy"], "all_reduce");
  EXPECT_TRUE(report["strategies"][0]["reason"].is_null());
}

TEST(Ranks, NothingServesWhatNothingJoins) {
  ExplainOptions options;
  options.preset = "tiny";
  options.deployment.ep = options.deployment.tp = 2;
  options.deployment.parallel = Parallel::kDep;
  options.comm = "compact";
  Json report = ask(options, false);
  EXPECT_EQ(report["winner"], "");
  EXPECT_EQ(report["eligible"], Json::array());
  EXPECT_EQ(report["strategies"][0]["reason"], "topology_unsupported");
  EXPECT_EQ(reasons(report)[leaf_id("cpu", "bf16")], "topology_unsupported");
  options.comm = "auto";
  report = ask(options, true);
  for (const Json& s : report["strategies"])
    EXPECT_EQ(s["reason"].is_null(), s["strategy"] == "all_gather") << s;
}

// On GPUs that nobody has looked at yet: a GPU for each rank is assumed, and what the gates refuse
// they refuse all the same.
TEST(Ranks, GpusAllReduceAndExchangeNothing) {
  const auto asked = [](Parallel parallel, std::int64_t ranks, const char* preset, bool served) {
    ExplainOptions options;
    options.preset = preset;
    options.sketch.format = "fp8_block_scales";
    options.device_pinned = true;
    options.deployment.device = Device::kCuda;
    options.deployment.parallel = parallel;
    const bool cut = parallel == Parallel::kTtp || parallel == Parallel::kDtp;
    (cut ? options.deployment.tp : options.deployment.ep) = ranks;
    options.sm = 90;
    return ask(options, served);
  };
  const std::string leaf = leaf_id("cuda", "fp8_block_scales");
  for (const Parallel p : {Parallel::kTep, Parallel::kTtp})
    for (const std::int64_t ranks : {2, 4, 8}) {
      const Json report = asked(p, ranks, "deepseek-v3", true);
      EXPECT_EQ(report["winner"], leaf);
      EXPECT_EQ(report["strategies"][0]["strategy"], "all_reduce");
    }
  for (const Parallel p : {Parallel::kDep, Parallel::kDtp})
    EXPECT_EQ(reasons(asked(p, 2, "deepseek-v3", false)).at(leaf), "path_not_enabled");
  EXPECT_EQ(reasons(asked(Parallel::kTep, 16, "deepseek-v3", false)).at(leaf),
            "topology_unsupported");
  EXPECT_EQ(reasons(asked(Parallel::kTtp, 4, "qwen3-30b-a3b", false)).at(leaf), "shape_unaligned");
}

TEST(Ranks, APinnedStrategyIsNeverReplaced) {
  ExplainOptions options;
  options.preset = "tiny";
  options.comm = "NVLINK_ONE_SIDED";
  Json report = ask(options, false);
  ASSERT_EQ(report["strategies"].size(), 1u);
  EXPECT_EQ(report["strategies"][0]["strategy"], "one_sided");
  EXPECT_EQ(report["strategies"][0]["reason"], "topology_unsupported");  // one rank
  EXPECT_EQ(reasons(report)[leaf_id("cpu", "bf16")], "topology_unsupported");
  options.deployment.ep = 10;  // of 8 experts
  options.deployment.parallel = Parallel::kDep;
  EXPECT_EQ(ask(options, false)["strategies"][0]["reason"], "topology_unsupported");
  options.deployment.ep = 1;
  options.deployment.parallel = Parallel::kTtp;
  options.comm = "auto";
  EXPECT_FALSE(ask(options, true).contains("strategies"));
}

TEST(Source, ContradictionsAreTheCallersMistake) {
  ExplainOptions options;
  options.preset = "tiny";
  options.sketch.hidden = 64;
  EXPECT_THROW(explain(options), UsageError);
  options.sketch.hidden.reset();
  options.checkpoint = "somewhere";
  EXPECT_THROW(explain(options), UsageError);
  options.checkpoint.clear();
  options.layer = 3;
  EXPECT_THROW(explain(options), UsageError);
  options.layer.reset();
  options.sketch.format = "MIXED_PRECISION";
  EXPECT_THROW(explain(options), UsageError);
  options.sketch.format = "NVFP4_AWQ";
  EXPECT_EQ(ask(options, true)["winner"], leaf_id("cpu", "nvfp4"));
}

TEST(Checkpoint, EveryPresentLayerIsExplained) {
  ExplainOptions options;
  options.checkpoint = std::string(SWITCHYARD_TEST_DATA) + "/deepseek_v4";
  Json all = Json::parse(explain(options).json);
  ASSERT_EQ(all["layers"].size(), 2u);
  EXPECT_EQ(all["layers"][1]["layer"], 1);
  EXPECT_EQ(all["layers"][1]["block"], "model.layers.1.ffn");
  options.layer = 1;
  EXPECT_EQ(Json::parse(explain(options).json), all["layers"][1]);
  options.layer = 7;
  EXPECT_THROW(explain(options), UsageError);
}

TEST(Checkpoint, AnAbsentLayerIsSkippedAndRefusedByName) {
  ExplainOptions options;
  options.checkpoint = std::string(SWITCHYARD_TEST_DATA) + "/deepseek_v3_fp8_block";
  EXPECT_EQ(Json::parse(explain(options).json)["layers"].size(), 1u);
  options.layer = 1;
  EXPECT_THROW(explain(options), UsageError);
}

}  // namespace
}  // namespace switchyard
