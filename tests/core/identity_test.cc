// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/identity.h"

#include <algorithm>

#include "tests/support/selection_cases.h"

namespace switchyard {
namespace {

using test::usage_error_of;
using testing::HasSubstr;
using testing::Not;

const std::vector<Identity4> kIds = {{"acme", "cpu", "fused_moe", "none"},
                                     {"acme", "cpu", "fused_moe", "nvfp4"},
                                     {"acme", "cuda", "fused_moe", "nvfp4"},
                                     {"acme", "cuda", "mega_moe", "w4a16_mxfp4"}};

IdentityQuery query(std::string_view text) { return IdentityVocabulary(kIds).parse_query(text); }

std::vector<std::string> found(std::string_view text) {
  std::vector<std::string> out;
  for (const Identity4& id : IdentityVocabulary(kIds).matches(query(text))) out.push_back(id.str());
  return out;
}

TEST(IdentitySegment, Grammar) {
  for (const char* good : {"a", "nvfp4", "fused_moe", "w4a8_mxfp4_fp8", "0"})
    EXPECT_TRUE(is_identity_segment(good)) << good;
  for (const char* bad : {"", "_a", "a_", "a__b", "A", "a-b", "a.b", "*", "é"})
    EXPECT_FALSE(is_identity_segment(bad)) << bad;
}

TEST(Identity, TextRoundTrips) {
  for (const Identity4& id : kIds) {
    IdentityQuery parsed = parse_identity(id.str());
    EXPECT_TRUE(parsed.full());
    EXPECT_TRUE(parsed.matches(id));
    EXPECT_EQ(parsed.str(), id.str());
    for (const Identity4& other : kIds) EXPECT_EQ(parsed.matches(other), other == id);
  }
  EXPECT_EQ(parse_identity("  ACME.Cpu.fused_moe.NVFP4\n").str(), "acme.cpu.fused_moe.nvfp4");
}

TEST(Identity, MalformedTextIsRefused) {
  EXPECT_THAT(usage_error_of([] { parse_identity("a.b.c"); }), HasSubstr("3 segments"));
  EXPECT_THAT(usage_error_of([] { parse_identity("a.b.c.d.e"); }), HasSubstr("5 segments"));
  EXPECT_THAT(usage_error_of([] { parse_identity("a.b..d"); }), HasSubstr("kernel ''"));
  EXPECT_THAT(usage_error_of([] { parse_identity("a.b.c.*"); }), HasSubstr("format '*'"));
}

TEST(Query, TokensStandInAnyOrder) {
  const std::vector<std::string> one = {"acme.cpu.fused_moe.nvfp4"};
  for (const char* text : {"cpu.nvfp4", "nvfp4.cpu", "nvfp4.*.cpu", "*.cpu.*.nvfp4", " NVFP4.CPU ",
                           "fused_moe.nvfp4.acme.cpu", "acme.cpu.fused_moe.nvfp4"})
    EXPECT_EQ(found(text), one) << text;
}

TEST(Query, APartialQueryMatchesInOrder) {
  EXPECT_EQ(found("nvfp4"),
            (std::vector<std::string>{"acme.cpu.fused_moe.nvfp4", "acme.cuda.fused_moe.nvfp4"}));
  EXPECT_EQ(found("acme").size(), 4u);
  EXPECT_EQ(found("mega_moe"), std::vector<std::string>{"acme.cuda.mega_moe.w4a16_mxfp4"});
}

TEST(Query, RenderingIsFourWideAndParsesBack) {
  for (const char* text : {"nvfp4", "cuda", "acme.cpu", "mega_moe.acme", "none.cpu"}) {
    IdentityQuery q = query(text);
    std::string shown = q.str();
    EXPECT_EQ(std::count(shown.begin(), shown.end(), '.'), 3) << shown;
    EXPECT_EQ(query(q.str()), q) << q.str();
  }
  EXPECT_EQ(query("nvfp4").str(), "*.*.*.nvfp4");
}

TEST(Query, FormatsMayBeSpelledByAlias) {
  EXPECT_EQ(found("bf16.cpu"), std::vector<std::string>{"acme.cpu.fused_moe.none"});
  EXPECT_EQ(query("NVFP4_AWQ.cuda"), query("cuda.nvfp4"));
}

TEST(Query, ErrorsNameTheFault) {
  EXPECT_THAT(usage_error_of([] { query("cpu..nvfp4"); }), HasSubstr("empty segment"));
  EXPECT_THAT(usage_error_of([] { query(""); }), HasSubstr("empty segment"));
  EXPECT_THAT(usage_error_of([] { query("*.*.cpu.nvfp4.*"); }), HasSubstr("5 segments"));
  EXPECT_THAT(usage_error_of([] { query("cpu.cuda"); }), HasSubstr("technique twice"));
  EXPECT_THAT(usage_error_of([] { query("nvfp4.nvfp4"); }), HasSubstr("format twice"));
  EXPECT_THAT(usage_error_of([] { query("none.bf16"); }), HasSubstr("format twice"));
  EXPECT_NO_THROW(query("cpu.nvfp4"));
}

TEST(Query, AllOpenFormsConstrainNothing) {
  for (const char* text : {"*", "*.*", "*.*.*", "*.*.*.*"})
    EXPECT_THAT(usage_error_of([&] { query(text); }), HasSubstr("constrains nothing")) << text;
}

TEST(Query, AnUnknownTokenGetsNearOnesOrAllOfThem) {
  std::string near = usage_error_of([] { query("cpu.nvfp5"); });
  EXPECT_THAT(near, HasSubstr("did you mean nvfp4?"));
  EXPECT_THAT(near, Not(HasSubstr("mega_moe"))) << "the vocabulary is printed when nothing is near";
  std::string far = usage_error_of([] { query("cpu.zebra"); });
  EXPECT_THAT(far, HasSubstr("'zebra'"));
  for (const char* token : {"acme", "cuda", "mega_moe", "w4a16_mxfp4"})
    EXPECT_THAT(far, HasSubstr(token));
}

TEST(Query, AWellFormedOneThatMatchesNothingListsTheIds) {
  std::string text = usage_error_of([] { query("cpu.mega_moe"); });
  EXPECT_THAT(text, HasSubstr("matches no leaf"));
  for (const Identity4& id : kIds) EXPECT_THAT(text, HasSubstr(id.str()));
}

TEST(Vocabulary, RefusesWhatCouldNotBeAskedFor) {
  auto build = [](std::vector<Identity4> ids) { IdentityVocabulary{std::move(ids)}; };
  EXPECT_THROW(build({kIds[0], kIds[1], kIds[0]}), InternalError) << "duplicate";
  EXPECT_THROW(build({{"acme", "cpu", "fused_moe", "Nvfp4"}}), InternalError) << "grammar";
  EXPECT_THROW(build({kIds[0], {"cpu", "cuda", "mega_moe", "fp8"}}), InternalError) << "two fields";
  EXPECT_THROW(build({{"acme", "cpu", "cpu", "none"}}), InternalError) << "within one identity";
  EXPECT_NO_THROW(build(kIds));
}

}  // namespace
}  // namespace switchyard
