// SPDX-License-Identifier: Apache-2.0
// `verify` of every checkpoint that the tests write, on every instruction tier that has a twin
// here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cases/moe_case.h"
#include "tests/support/command_runner.h"
#include "tests/support/written_checkpoint.h"

namespace switchyard {
namespace {

using nlohmann::json;
using test::WrittenSpec;

class WrittenFixture : public testing::TestWithParam<WrittenSpec> {};

TEST_P(WrittenFixture, VerifiesOnEveryTier) {
  const WrittenSpec& spec = GetParam();
  test::TempDir dir;
  test::make_checkpoint(spec).write(dir);
  for (CpuIsa tier : test::runnable_tiers()) {
    test::Start start;
    start.args = {"verify", dir.path(), "--io", dir.path() + "/moe_io.safetensors", "--json"};
    start.env = {{"SWITCHYARD_CPU_ISA", std::string(to_string(tier))}};
    const test::Finished done = test::run_command(start);
    ASSERT_EQ(done.status, 0) << to_string(tier) << ": " << done.err << done.out;
    const json layer = json::parse(done.out).at("layers").at(0);
    EXPECT_EQ(layer.at("layer"), spec.layer);
    EXPECT_EQ(layer.at("format"), show_format(spec.problem.format));
    EXPECT_TRUE(layer.at("ok"));
    EXPECT_LE(layer.at("rel_l2").get<double>(), layer.at("budget").at("rel_l2").get<double>());
  }
}

TEST_P(WrittenFixture, AWrongFactorIsNoticed) {
  const WrittenSpec& spec = GetParam();
  test::TempDir dir;
  test::WrittenCheckpoint written = test::make_checkpoint(spec);
  for (float& v : written.io.output) v *= 1.3f;
  written.write(dir);
  test::Start start;
  start.args = {"verify", dir.path(), "--io", dir.path() + "/moe_io.safetensors", "--json"};
  EXPECT_EQ(test::run_command(start).status, 1);
}

INSTANTIATE_TEST_SUITE_P(Specs, WrittenFixture, testing::ValuesIn(test::written_specs()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace switchyard
