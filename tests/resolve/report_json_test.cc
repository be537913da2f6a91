// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "switchyard/core/preset.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/json.h"
#include "switchyard/resolve/json_fields.h"
#include "switchyard/resolve/resolver.h"
#include "tests/support/selection_cases.h"

namespace switchyard::resolve {
namespace {

using test::deployment_on;
using test::gpu_environment;
using test::problem_of;
using test::usage_error_of;
using testing::HasSubstr;

Report replay(const Report& r) { return resolve(r.problem, r.deployment, r.requested); }

TEST(ReportJson, ParsesBackToTheSameVerdictOverEveryAxis) {
  std::int64_t winners = 0, failures = 0;
  for (int sm : {90, 100})  // the CUDA leaves serve the first and refuse the second
    for (const leaves::Leaf* leaf : leaves::all_leaves_from(Device::kCpu))
      for (const auto& [name, problem] : test::problem_axes(leaf->id.quant)) {
        Deployment d = deployment_on(leaf->device, gpu_environment(sm));
        Report r = resolve(problem, d, {.leaf = leaf->id.str()});
        std::string text = to_json(r);
        Report parsed = report_from_json(text);
        EXPECT_EQ(parsed, r) << name;
        EXPECT_EQ(to_json(parsed), text) << name;
        EXPECT_EQ(replay(parsed), r) << name;
        ++(r.winner.empty() ? failures : winners);
      }
  EXPECT_GT(winners, 100);
  EXPECT_GT(failures, 100);
}

TEST(ReportJson, KeepsEveryDeploymentAndRequest) {
  for (const auto& [name, d] : test::deployment_axes(Device::kCpu, gpu_environment(100)))
    for (const Request& request :
         {Request{}, Request{.leaf = "nvfp4"}, Request{.device = Device::kCuda},
          Request{.prefer = "TRTLLM"}, Request{.prefer = "WIDEEP"}, Request{.comm = "fused"}}) {
      Report r = resolve(problem_of("nvfp4"), d, request);
      Report parsed = report_from_json(to_json(r, 2));
      EXPECT_EQ(parsed, r) << name;
      EXPECT_EQ(replay(parsed), r) << name;
    }
}

TEST(ReportJson, ListsEveryFieldOfEveryStruct) {
  // A structured binding compiles only with the exact number of members: a field that joins a
  // struct stops here until its list has it too.
  EXPECT_EQ(num_listed_fields<Problem>(), 14u);
  EXPECT_EQ(num_listed_fields<RoutingSpec>(), 17u);
  EXPECT_EQ(num_listed_fields<Environment>(), 13u);
  EXPECT_EQ(num_listed_fields<Deployment>(), 10u);
  EXPECT_EQ(num_listed_fields<Request>(), 4u);
  EXPECT_EQ(num_listed_fields<Report>(), 14u);
  [[maybe_unused]] auto [p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13, p14] = Problem{};
  [[maybe_unused]] auto [r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15, r16,
                         r17] = RoutingSpec{};
  [[maybe_unused]] auto [e1, e2, e3, e4, e5, e6, e7, e8, e9, e10, e11, e12, e13] = Environment{};
  [[maybe_unused]] auto [d1, d2, d3, d4, d5, d6, d7, d8, d9, d10] = Deployment{};
  [[maybe_unused]] auto [q1, q2, q3, q4] = Request{};
  [[maybe_unused]] auto [a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14] = Report{};
}

TEST(ReportJson, HasTheDocumentedKeys) {
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu));
  nlohmann::json json = nlohmann::json::parse(to_json(r));
  EXPECT_EQ(json["schema"], "switchyard.report.1");
  EXPECT_EQ(json["winner"], "switchyard.cpu.fused_moe.nvfp4");
  EXPECT_EQ(json["selected_by"], "default");
  EXPECT_EQ(json["fingerprint"], r.fingerprint);
  EXPECT_EQ(json["rejected"][0]["reason"], "quant_unsupported");
  EXPECT_EQ(json["problem"]["routing"]["method"], "Renormalize");
  EXPECT_EQ(json["problem"]["activation"]["kind"], "swiglu");
  EXPECT_EQ(json["deployment"]["env"]["flags"]["SWITCHYARD_COMM"], "auto");
  EXPECT_FALSE(json.contains("strategies")) << "an empty list would claim that none can serve";
}

TEST(ReportJson, KeepsStrategyVerdicts) {
  Report r = resolve(problem_of("nvfp4"), deployment_on(Device::kCpu));
  r.strategies = {{"all_gather", std::nullopt, ""},
                  {"nccl", Reject::kDepMissing, "nccl is absent"}};
  EXPECT_EQ(report_from_json(to_json(r)), r);
  EXPECT_THAT(to_text(r), HasSubstr("nccl is absent"));
}

TEST(ReportJson, ProblemAndEnvironmentHaveTheirOwnJson) {
  Problem p = make_preset("gpt-oss-20b");
  EXPECT_EQ(problem_from_json(to_json(p)), p);
  EXPECT_EQ(environment_from_json(to_json(gpu_environment(90))), gpu_environment(90));
}

TEST(ReportJson, ThatIsNotAReportIsRefusedByKey) {
  const std::string good = to_json(resolve(problem_of("nvfp4"), deployment_on(Device::kCpu)));
  auto spoilt = [&](auto change) {
    nlohmann::json json = nlohmann::json::parse(good);
    change(json);
    return usage_error_of([&] { report_from_json(json.dump()); });
  };
  using Json = nlohmann::json;
  EXPECT_THAT(usage_error_of([] { report_from_json("{"); }), HasSubstr("no JSON"));
  EXPECT_THAT(usage_error_of([] { report_from_json("[]"); }), HasSubstr("schema"));
  EXPECT_THAT(spoilt([](Json& j) { j["schema"] = "switchyard.report.0"; }), HasSubstr("schema"));
  EXPECT_THAT(spoilt([](Json& j) { j["problem"].erase("inter"); }), HasSubstr("'inter'"));
  EXPECT_THAT(spoilt([](Json& j) { j["problem"]["colour"] = 1; }), HasSubstr("'colour'"));
  EXPECT_THAT(spoilt([](Json& j) { j["problem"]["hidden"] = "many"; }),
              HasSubstr("report.problem.hidden"));
  EXPECT_THAT(spoilt([](Json& j) { j["problem"]["hidden"] = 1.5; }), HasSubstr("integer"));
  EXPECT_THAT(spoilt([](Json& j) { j["problem"]["hidden"] = 18446744073709551615u; }),
              HasSubstr("integer"));
  EXPECT_THAT(spoilt([](Json& j) { j["deployment"]["env"]["sm"] = 1ll << 40; }),
              HasSubstr("32 bits"));
  EXPECT_THAT(spoilt([](Json& j) { j["problem"]["routed_scaling_factor"] = 1e300; }),
              HasSubstr("float"));
  EXPECT_THAT(spoilt([](Json& j) { j["problem"]["dtype"] = "int8"; }), HasSubstr("'int8'"));
  EXPECT_THAT(spoilt([](Json& j) { j["problem"]["activation"]["kind"] = "tanhish"; }),
              HasSubstr("'tanhish'"));
  EXPECT_THAT(spoilt([](Json& j) { j["eligible"] = 3; }), HasSubstr("array"));
  EXPECT_NO_THROW(report_from_json(good));
}

}  // namespace
}  // namespace switchyard::resolve