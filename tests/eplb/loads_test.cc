// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "switchyard/eplb/statistics.h"
#include "tests/support/usage_error.h"

namespace switchyard::eplb {
namespace {

using test::usage_error_of;
using testing::HasSubstr;
using Rows = std::vector<std::vector<double>>;

TEST(Loads, CsvAndJsonGiveTheSameTable) {
  const Rows want = {{136, 59.5, 0}, {1000, 7, 1e-3}};
  const char* const texts[] = {
      "136,59.5,0\n1e3,7,0.001",
      "# tokens of one hour\n\n 136 ,\t59.5, 0\r\n  # second layer\n1000,7,1E-3\r\n\r\n",
      R"({"loads": [[136, 59.5, 0], [1e3, 7, 0.001]]})",
      "\n  {\"name\": \"x\", \"loads\": [[136,59.5,0],[1000,7,0.001]], \"slots\": 4}\n",
  };
  for (const char* text : texts) EXPECT_EQ(parse_loads(text, "f").layers, want) << text;
  EXPECT_EQ(parse_loads("5", "f").layers, (Rows{{5}}));
}

struct Bad {
  std::string text;
  std::vector<std::string> says;
};

TEST(Loads, ABadFileGivesOneLineWithItsPlace) {
  const Bad cases[] = {
      {"", {"holds no load"}},
      {"# only a comment\n\n", {"holds no load"}},
      {"1,2\n3,-4\n", {"line 2, column 3", "'-4'"}},
      {"1,2\n\n# c\n3,nan\n", {"line 4, column 3", "'nan'"}},
      {"inf,1\n", {"line 1, column 1", "'inf'"}},
      {"1,1e999\n", {"line 1, column 3", "'1e999'"}},
      {"1,2e15\n", {"line 1, column 3", "'2e15'", "1e+15"}},
      {"1,,2\n", {"line 1, column 3", "''"}},
      {"1,2,\n", {"line 1, column 5", "''"}},
      {"1 2\n", {"line 1, column 1", "'1 2'"}},
      {"e0,e1\n1,2\n", {"line 1, column 1", "'e0'", "a line of headings starts with #"}},
      {"1;2\n", {"line 1, column 1"}},
      {"1,0x10\n", {"'0x10'"}},
      {"1,2,3\n1,2\n", {"line 2, column 4", "2 experts", "first one 3"}},
      {"1,2\n1,2,3\n", {"line 2", "3 experts"}},
      {"[[1,2]]", {"is a list that nothing names 'loads'; write {\"loads\": [[layer 0's"}},
      {R"([{"name": "a", "loads": [[1]]}, {"loads": [[2]]}])",
       {"is a list of 2 objects that each have 'loads'; give one of them as a file of its own"}},
      {"{", {"JSON", "byte 2"}},
      {"{}", {"'loads'"}},
      {R"({"loads": 3})", {"'loads'"}},
      {R"({"loads": []})", {"holds no load"}},
      {R"({"loads": [[]]})", {"holds no load"}},
      {R"({"loads": [1]})", {"layer 0", "1"}},
      {R"({"loads": [[1, "2"]]})", {"layer 0, expert 1", "\"2\""}},
      {R"({"loads": [[1], [-2]]})", {"layer 1, expert 0", "-2"}},
      {R"({"loads": [[1, null]]})", {"layer 0, expert 1", "null"}},
      {R"({"loads": [[1, 2], [3]]})", {"layer 1 has 1 experts", "layer 0 has 2"}},
      {R"({"loads": [[1]], "loads": [[2]]})", {"'loads'", "twice"}},
  };
  for (const Bad& bad : cases) {
    std::string text = usage_error_of([&] { parse_loads(bad.text, "loads.csv"); });
    EXPECT_TRUE(text.starts_with("loads.csv: ")) << text;
    for (const std::string& part : bad.says) EXPECT_THAT(text, HasSubstr(part)) << bad.text;
    EXPECT_EQ(parse_loads("1,2", "f").layers, (Rows{{1, 2}}));
  }
}

// Spreadsheets put a byte order mark in front.
TEST(Loads, AByteOrderMarkIsNoCell) {
  EXPECT_EQ(parse_loads("\xef\xbb\xbf"
                        "1,2\n3,4\n",
                        "f")
                .layers,
            (Rows{{1, 2}, {3, 4}}));
  EXPECT_EQ(parse_loads("\xef\xbb\xbf"
                        R"({"loads": [[1, 2]]})",
                        "f")
                .layers,
            (Rows{{1, 2}}));
  EXPECT_THAT(usage_error_of([] {
                parse_loads(
                    "1,\xef\xbb\xbf"
                    "2\n",
                    "f");
              }),
              HasSubstr("line 1, column 3"));
}

TEST(Loads, LimitsHold) {
  std::string row = "1";
  for (int i = 1; i < 2048; ++i) row += ",1";
  EXPECT_EQ(parse_loads(row, "f").num_experts(), 2048);
  EXPECT_THAT(usage_error_of([&] { parse_loads(row + ",1", "f"); }), HasSubstr("2048"));
  std::string column;
  for (int i = 0; i < 4096; ++i) column += "1\n";
  EXPECT_EQ(parse_loads(column, "f").layers.size(), 4096u);
  EXPECT_THAT(usage_error_of([&] { parse_loads(column + "1\n", "f"); }), HasSubstr("4096"));
}

TEST(Statistics, CountsHaveALimitThatTheWindowCannotOverflow) {
  LoadStatistics statistics(1, 2, 4);
  const std::int64_t most = std::int64_t(kMaxLoad) / 4;
  const auto add = [&](std::int64_t a, std::int64_t b) {
    statistics.add(0, std::vector<std::int64_t>{a, b});
  };
  EXPECT_THAT(usage_error_of([&] { add(1, most + 1); }), HasSubstr("expert 1 has count"));
  EXPECT_THAT(usage_error_of([&] { add(INT64_MAX, 0); }), HasSubstr("expert 0 has count"));
  add(most, 3);
  EXPECT_THAT(usage_error_of([&] { add(1, 0); }), HasSubstr("together more than"));
  add(0, 4);
  for (int i = 0; i < 5; ++i, add(most, i)) statistics.end_iteration();
  EXPECT_LE(statistics.loads().layers[0][0], kMaxLoad);
  EXPECT_EQ(statistics.loads().layers[0][1], 1 + 2 + 3 + 4);
}

TEST(Statistics, TheWindowForgetsTheOldestIteration) {
  LoadStatistics statistics(2, 3, 2);
  EXPECT_EQ(statistics.loads().layers, (Rows{{0, 0, 0}, {0, 0, 0}}));
  const std::vector<std::int32_t> ids = {0, 2, -1, 2};
  statistics.record(0, ids);
  statistics.add(1, std::vector<std::int64_t>{5, 6, 7});
  EXPECT_EQ(statistics.loads().layers, (Rows{{0, 0, 0}, {0, 0, 0}})) << "the iteration is open";
  statistics.end_iteration();
  EXPECT_EQ(statistics.loads().layers, (Rows{{1, 0, 2}, {5, 6, 7}}));
  statistics.record(0, ids);
  statistics.end_iteration();
  EXPECT_EQ(statistics.loads().layers, (Rows{{2, 0, 4}, {5, 6, 7}}));
  EXPECT_EQ(statistics.iterations(), 2);
  statistics.add(0, std::vector<std::int64_t>{100, 0, 0});
  statistics.end_iteration();
  EXPECT_EQ(statistics.loads().layers, (Rows{{101, 0, 2}, {0, 0, 0}}));
  statistics.end_iteration();
  statistics.end_iteration();
  EXPECT_EQ(statistics.loads().layers, (Rows{{0, 0, 0}, {0, 0, 0}}));
  EXPECT_EQ(statistics.iterations(), 2);
}

TEST(Statistics, EveryWindowIsTheSumOfItsIterations) {
  for (std::int64_t window : {1, 3, 5}) {
    LoadStatistics statistics(1, 1, window);
    for (std::int64_t i = 0; i < 12; ++i) {
      statistics.add(0, std::vector<std::int64_t>{std::int64_t(1) << i});
      statistics.end_iteration();
      std::int64_t want = 0;
      for (std::int64_t j = std::max<std::int64_t>(0, i + 1 - window); j <= i; ++j)
        want += std::int64_t(1) << j;
      EXPECT_EQ(statistics.loads().layers[0][0], double(want)) << window << " " << i;
    }
  }
}

TEST(Statistics, ABadCallCountsNothing) {
  LoadStatistics statistics(2, 3, 1);
  const std::vector<std::int32_t> bad = {0, 1, 3};
  EXPECT_THAT(usage_error_of([&] { statistics.record(0, bad); }), HasSubstr("id 3"));
  EXPECT_THAT(usage_error_of([&] { statistics.record(2, {}); }), HasSubstr("layer 2"));
  EXPECT_THAT(usage_error_of([&] { statistics.record(-1, {}); }), HasSubstr("layer -1"));
  EXPECT_THAT(usage_error_of([&] {
                statistics.add(0, std::vector<std::int64_t>{1, 2});
              }),
              HasSubstr("2 counts"));
  EXPECT_THAT(usage_error_of([&] {
                statistics.add(0, std::vector<std::int64_t>{1, -2, 0});
              }),
              HasSubstr("expert 1 has count -2"));
  statistics.end_iteration();
  EXPECT_EQ(statistics.loads().layers, (Rows{{0, 0, 0}, {0, 0, 0}}));
  EXPECT_THAT(usage_error_of([] { LoadStatistics(0, 1, 1); }), HasSubstr("layers = 0"));
  EXPECT_THAT(usage_error_of([] { LoadStatistics(1, 4096, 1); }), HasSubstr("experts = 4096"));
  EXPECT_THAT(usage_error_of([] { LoadStatistics(1, 1, 0); }), HasSubstr("window = 0"));
  EXPECT_THAT(usage_error_of([] { LoadStatistics(4096, 2048, 60000); }), HasSubstr("counters"));
}

}  // namespace
}  // namespace switchyard::eplb
