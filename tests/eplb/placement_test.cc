// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "switchyard/eplb/placement_file.h"
#include "tests/support/safetensors_writer.h"

namespace switchyard::eplb {
namespace {

using nlohmann::json;
using test::TempDir;
using test::usage_error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using Slots = std::vector<std::int32_t>;

TEST(Placement, LinearIsTheLayoutBeforeBalancing) {
  EXPECT_THAT(linear_placement({8, 8, 2}, 1).layers[0], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(linear_placement({8, 10, 2}, 1).layers[0], ElementsAre(0, 1, 2, 3, 4, 4, 5, 6, 7, 0));
  EXPECT_THAT(linear_placement({5, 8, 4}, 1).layers[0], ElementsAre(0, 1, 1, 2, 2, 3, 3, 4));
  EXPECT_EQ(linear_placement({4, 4, 1}, 3).layers.size(), 3u);
}

TEST(Placement, LinearIsAlwaysWhole) {
  for (std::int64_t experts : {1, 2, 3, 5, 8, 31, 33, 64})
    for (std::int64_t ranks : {1, 2, 3, 4, 7, 8, 16})
      for (std::int64_t per_rank = (experts + ranks - 1) / ranks; per_rank <= experts; ++per_rank)
        EXPECT_NO_THROW(linear_placement({experts, ranks * per_rank, ranks}, 2).check("linear"))
            << experts << " " << ranks << " " << per_rank;
}

TEST(Placement, BalanceSharesALoadAmongReplicas) {
  const std::vector<double> loads = {12, 2, 2, 2};
  EXPECT_DOUBLE_EQ(max_over_mean(loads, Slots{0, 1, 2, 3}, 2), 14.0 / 9);
  EXPECT_DOUBLE_EQ(max_over_mean(loads, Slots{0, 1, 2, 0, 3, 1}, 2), 9.0 / 9);
  EXPECT_DOUBLE_EQ(max_over_mean(std::vector<double>{0, 0}, Slots{0, 1}, 2), 1);
  EXPECT_DOUBLE_EQ(lower_bound(loads, 4, 4), 12 / 4.5);
  EXPECT_DOUBLE_EQ(lower_bound(loads, 8, 4), 1);
  EXPECT_DOUBLE_EQ(lower_bound(std::vector<double>{0, 0}, 2, 2), 1);
  EXPECT_EQ(count_moves(Slots{0, 1, 2}, Slots{0, 2, 1}), 2);
}

struct Bad {
  json patch;
  std::vector<std::string> says;
};

json good_file() {
  return {{"format", "switchyard.placement"},
          {"version", 1},
          {"num_experts", 4},
          {"num_slots", 6},
          {"num_ranks", 2},
          {"layers", {{0, 1, 2, 3, 0, 1}, {3, 2, 1, 0, 3, 2}}}};
}

TEST(PlacementFile, WhatIsWrittenIsRead) {
  TempDir dir;
  const std::string path = dir.path() + "/p.json";
  Placement p{4, 6, 2, {{0, 1, 2, 3, 0, 1}, {3, 2, 1, 0, 3, 2}}};
  write_placement(p, path);
  EXPECT_EQ(read_placement(path), p);
  EXPECT_EQ(json::parse(test::slurp(path)), good_file());
  p.layers[1] = {0, 1, 2, 3, 1, 2};
  write_placement(p, path);
  EXPECT_EQ(read_placement(path), p);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(PlacementFile, OnlyAPlacementIsReplaced) {
  TempDir dir;
  const Placement good{2, 2, 1, {{1, 0}}};
  const std::string loads = dir.write("loads.csv", "3,4\n");
  EXPECT_THAT(usage_error_of([&] { write_placement(good, loads); }), HasSubstr("no placement"));
  EXPECT_EQ(test::slurp(loads), "3,4\n");
  write_placement(good, dir.path() + "/p.json");
}

TEST(PlacementFile, ABrokenPlacementIsNotWritten) {
  TempDir dir;
  const std::string path = dir.path() + "/p.json";
  const Placement good{2, 2, 1, {{1, 0}}}, bad{2, 2, 1, {{0, 0}}};
  write_placement(good, path);
  EXPECT_THAT(usage_error_of([&] { write_placement(bad, path); }), HasSubstr("expert 0"));
  EXPECT_EQ(read_placement(path), good);
  EXPECT_THAT(usage_error_of([&] { write_placement(good, dir.path() + "/no/p.json"); }),
              HasSubstr("cannot be written"));
}

TEST(PlacementFile, EveryFaultIsNamed) {
  const Bad cases[] = {
      {{{"format", "x"}}, {"'format'", "switchyard.placement"}},
      {{{"version", 2}}, {"'version' is 2", "reads 1"}},
      {{{"version", "1"}}, {"'version'"}},
      {{{"version", nullptr}}, {"no 'version'"}},
      {{{"layers", nullptr}}, {"no 'layers'"}},
      {{{"num_ranks", nullptr}}, {"no 'num_ranks'"}},
      {{{"nodes", 1}}, {"'nodes' is unknown"}},
      {{{"num_experts", 0}}, {"experts = 0"}},
      {{{"num_experts", 5}}, {"layer 0", "expert 4 has no slot"}},
      {{{"num_experts", 3}}, {"layer 0, slot 3", "expert 3", "0 to 2"}},
      {{{"num_experts", 7}}, {"slots = 6", "7"}},
      {{{"num_experts", 1e3}}, {"'num_experts' is 1000.0"}},
      {{{"num_slots", 4}}, {"layer 0 lists 6 slots", "num_slots = 4"}},
      {{{"num_slots", -6}}, {"'num_slots' is -6"}},
      {{{"num_slots", std::uint64_t(1) << 63}}, {"'num_slots'"}},
      {{{"num_ranks", 0}}, {"ranks = 0"}},
      {{{"num_ranks", 4}}, {"ranks = 4", "divide", "6"}},
      {{{"num_ranks", 1}}, {"6 a rank", "4 experts"}},
      {{{"layers", json::array()}}, {"no layer"}},
      {{{"layers", 3}}, {"'layers' is 3"}},
      {{{"layers", {1}}}, {"layer 0 is 1"}},
      {{{"layers", {{0, 1, 2, 3, 0, -1}}}}, {"slot 5", "-1"}},
      {{{"layers", {{0, 1, 2, 3, 0, 1.5}}}}, {"slot 5", "1.5"}},
      {{{"layers", {{0, 1, 2, 3, 0, 4}}}}, {"layer 0, slot 5", "expert 4", "0 to 3"}},
      {{{"layers", {{0, 1, 2, 3, 0}}}}, {"lists 5 slots"}},
      {{{"layers", {{0, 1, 2, 0, 1, 2}}}}, {"layer 0: expert 3 has no slot"}},
      {{{"layers", {{0, 1, 0, 3, 2, 1}}}}, {"expert 0 stands twice on rank 0", "slots 0 and 2"}},
  };
  for (const Bad& bad : cases) {
    json file = good_file();
    for (const auto& [key, value] : bad.patch.items())
      if (value.is_null())
        file.erase(key);
      else
        file[key] = value;
    std::string text = usage_error_of([&] { parse_placement(file.dump(), "p.json"); });
    EXPECT_TRUE(text.starts_with("p.json: ")) << text;
    for (const std::string& part : bad.says) EXPECT_THAT(text, HasSubstr(part)) << bad.patch;
    EXPECT_EQ(parse_placement(good_file().dump(), "p.json").num_slots, 6);
  }
  EXPECT_THAT(usage_error_of([] { parse_placement("[]", "p.json"); }), HasSubstr("array"));
  EXPECT_THAT(usage_error_of([] { parse_placement("{", "p.json"); }), HasSubstr("JSON"));
}

}  // namespace
}  // namespace switchyard::eplb
