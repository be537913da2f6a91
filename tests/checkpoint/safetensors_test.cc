// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "switchyard/checkpoint/index.h"
#include "switchyard/checkpoint/json_text.h"
#include "tests/support/safetensors_writer.h"

namespace switchyard::checkpoint {
namespace {

using test::container;
using test::TempDir;
using test::usage_error_of;
using ::testing::HasSubstr;

const char* const kGood = R"({"a":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},)"
                          R"("b":{"dtype":"F32","shape":[],"data_offsets":[6,10]}})";
const std::string kData = "abcdefwxyz";

SafetensorsFile open_bytes(const TempDir& dir, const std::string& bytes) {
  return SafetensorsFile::open(dir.write("x.safetensors", bytes));
}

std::string one(const std::string& entry) { return "{\"t\":" + entry + "}"; }

TEST(Safetensors, ReadsWhatIsThere) {
  TempDir dir;
  SafetensorsFile f = open_bytes(dir, container(kGood, kData));
  ASSERT_EQ(f.tensors().size(), 2u);
  const Tensor* a = f.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->type, TensorType::kU8);
  EXPECT_EQ(a->shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(a->bytes.data(), "abcdef", 6), 0);
  const Tensor* b = f.find("b");
  EXPECT_EQ(b->elements(), 1);
  EXPECT_EQ(std::memcmp(b->bytes.data(), "wxyz", 4), 0);
  EXPECT_EQ(f.find("c"), nullptr);
}

TEST(Safetensors, ServesTheCornersOfTheFormat) {
  TempDir dir;
  struct Case {
    std::string header, data;
    std::size_t tensors;
  };
  const Case cases[] = {
      {"{}", "", 0},
      {"{}      ", "", 0},
      {R"({"__metadata__":{"k":"v"}})", "", 0},
      {R"({"z":{"dtype":"BF16","shape":[0,9223372036854775807],"data_offsets":[0,0]}})", "", 1},
      {R"({"z":{"dtype":"I64","shape":[3,0],"data_offsets":[0,0]},"y":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       "q", 2},
      {R"({"z":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}})", "abc", 1},
      {R"({"z":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", "abc", 1},
      {R"({"\u00e9\"\\":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})", "12345678", 1},
  };
  for (const Case& c : cases)
    EXPECT_EQ(open_bytes(dir, container(c.header, c.data)).tensors().size(), c.tensors) << c.header;
  EXPECT_EQ(open_bytes(dir, container(cases[2].header, "")).metadata().at("k"), "v");
}

TEST(Safetensors, AZeroDimensionBesideHugeOnesIsZeroElements) {
  TempDir dir;
  SafetensorsFile f = open_bytes(
      dir,
      container(one(R"({"dtype":"F32","shape":[4611686018427387904,8,0],"data_offsets":[0,0]})"),
                ""));
  EXPECT_EQ(f.find("t")->elements(), 0);
}

TEST(Safetensors, EveryTypeHasItsSize) {
  const std::pair<const char*, int> types[] = {
      {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
      {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
      {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (auto [name, bits] : types) {
    auto type = to_tensor_type(name);
    ASSERT_TRUE(type.has_value()) << name;
    EXPECT_EQ(bits_of(*type), bits) << name;
    EXPECT_EQ(to_string(*type), name);
  }
  EXPECT_FALSE(to_tensor_type("FP8").has_value());
  EXPECT_FALSE(to_tensor_type("").has_value());
}

struct Bad {
  std::string bytes;
  std::vector<std::string> says;
};

std::string with_length(std::uint64_t n, const std::string& rest) {
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + rest;
}

std::vector<Bad> bad_lengths() {
  const std::string good = container(kGood, kData);
  return {
      {"", {"0 bytes"}},
      {"1234567", {"7 bytes"}},
      {with_length(0, ""), {"'{'"}},
      {with_length(0xFFFFFFFFFFFFFFFCull, "{}"), {"18446744073709551612", "100000000"}},
      {with_length(std::uint64_t(1) << 40, "{}"), {"1099511627776", "100000000"}},
      {with_length(100'000'001, "{}"), {"100000001", "100000000"}},
      {with_length(100'000'000, "{}"), {"ends behind"}},
      {with_length(3, "{}"), {"header of 3 bytes ends behind"}},
      {good.substr(0, 40), {"ends behind"}},
      {good.substr(0, good.size() - 1), {"tensor 'b'", "[6, 10]", "9 data bytes"}},
      {good + "!", {"10 of 11 data bytes"}},
      {container("[]", ""), {"'{'"}},
      {container(" {}", ""), {"'{'"}},
  };
}

std::vector<Bad> bad_headers() {
  return {
      {container("{", ""), {"header", "byte 2"}},
      {container(R"({},"__metadata__":{})", ""), {"byte 3"}},
      {container("{\"\xff\":1}", ""), {"UTF-8"}},
      {container(
           R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
           "x"),
       {"'t'", "twice"}},
      {container(R"({"t":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "x"),
       {"'dtype'", "twice"}},
      {container(R"({"__metadata__":{"a":1}})", ""), {"__metadata__", "'a'", "1"}},
      {container(R"({"__metadata__":[]})", ""), {"__metadata__"}},
      {container(one("7"), ""), {"tensor 't'", "7"}},
      {container(one("{}"), ""), {"tensor 't'", "'dtype'"}},
      {container(one(R"({"dtype":"FP8","shape":[1],"data_offsets":[0,1]})"), "x"), {"'t'", "FP8"}},
      {container(one(R"({"dtype":3,"shape":[1],"data_offsets":[0,1]})"), "x"), {"'t'", "dtype 3"}},
      {container(one(R"({"dtype":"U8","data_offsets":[0,1]})"), "x"), {"'t'", "'shape'"}},
      {container(one(R"({"dtype":"U8","shape":[1]})"), "x"), {"'t'", "'data_offsets'"}},
      {container(one(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})"), "x"), {"'t'", "shape 1"}},
      {container(one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})"), "x"), {"'t'", "-1"}},
      {container(one(R"({"dtype":"U8","shape":[1.5],"data_offsets":[0,1]})"), "x"), {"'t'", "1.5"}},
      {container(one(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]})"), "x"),
       {"18446744073709551615"}},
      {container(one(R"({"dtype":"U8","shape":[1e999],"data_offsets":[0,1]})"), "x"), {"header"}},
  };
}

std::vector<Bad> bad_extents() {
  auto u8 = [](const std::string& offsets) {
    return container(one(R"({"dtype":"U8","shape":[8],"data_offsets":)" + offsets + "}"),
                     "12345678");
  };
  auto pair = [](const std::string& x, const std::string& y, const std::string& data) {
    return container(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":)" + x +
                         R"(},"y":{"dtype":"U8","shape":[4],"data_offsets":)" + y + "}}",
                     data);
  };
  return {
      {u8("[16,8]"), {"[16, 8]"}},
      {u8("[-8,8]"), {"-8"}},
      {u8("[0,1e300]"), {"1e+300"}},
      {u8(R"(["a",8])"), {"\"a\""}},
      {u8("[0]"), {"[0]"}},
      {u8("[0,16]"), {"[0, 16]", "8 data bytes"}},
      {u8("[0,4]"), {"takes 8 bytes", "span 4"}},
      {container(one(R"({"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]})"), "1234"),
       {"4000000", "span 4"}},
      {container(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]})"),
                 "1234"),
       {"overflows"}},
      {container(one(R"({"dtype":"F4","shape":[3],"data_offsets":[0,2]})"), "12"),
       {"12 bits", "whole bytes"}},
      {pair("[0,4]", "[2,6]", "123456"), {"'y'", "begins at 2", "overlaps"}},
      {pair("[0,4]", "[0,4]", "1234"), {"overlaps"}},
      {pair("[0,4]", "[5,9]", "123456789"), {"'y'", "begins at 5", "hole"}},
      {pair("[1,5]", "[5,9]", "123456789"), {"'x'", "begins at 1", "hole"}},
      {pair("[0,4]", "[4,8]", "123456789"), {"8 of 9"}},
  };
}

TEST(Safetensors, RefusesEveryBrokenFileInOneLineAndGoesOn) {
  TempDir dir;
  std::vector<Bad> all = bad_lengths();
  for (const auto& more : {bad_headers(), bad_extents()})
    all.insert(all.end(), more.begin(), more.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::string text = usage_error_of([&] { open_bytes(dir, all[i].bytes); });
    EXPECT_THAT(text, HasSubstr(dir.path())) << i;
    for (const std::string& part : all[i].says) EXPECT_THAT(text, HasSubstr(part)) << i;
    EXPECT_EQ(open_bytes(dir, container(kGood, kData)).tensors().size(), 2u);
  }
}

TEST(Safetensors, NamesWithLineBreaksStayOnOneLine) {
  TempDir dir;
  std::string text = usage_error_of([&] {
    open_bytes(
        dir,
        container("{\"a\\nb\":{\"dtype\":\"X\\nY\",\"shape\":[],\"data_offsets\":[0,0]}}", ""));
  });
  EXPECT_THAT(text, HasSubstr("a?b"));
}

TEST(Safetensors, PathsThatAreNoFiles) {
  TempDir dir;
  EXPECT_THAT(usage_error_of([&] { SafetensorsFile::open(dir.path()); }), HasSubstr("directory"));
  EXPECT_THAT(usage_error_of([&] { SafetensorsFile::open(dir.path() + "/absent"); }),
              HasSubstr("absent"));
}

TEST(Safetensors, OutlivesItsFirstOwner) {
  TempDir dir;
  SafetensorsFile kept = open_bytes(dir, container(kGood, kData));
  {
    SafetensorsFile copy = kept;
    kept = copy;
  }
  std::filesystem::remove(dir.path() + "/x.safetensors");
  EXPECT_EQ(std::memcmp(kept.find("a")->bytes.data(), "abcdef", 6), 0);
}

/// A list in a list, `depth` times.
std::string nested(std::size_t depth) {
  return std::string(depth, '[') + "1" + std::string(depth, ']');
}

// Copying, comparing and printing a parsed value recurse: without a limit a few kilobytes of
// brackets end the process.
TEST(JsonText, NestingHasALimit) {
  std::string text = nested(kMaxJsonDepth);
  EXPECT_EQ(parse_json(text, "x").dump(), text);
  for (std::size_t depth : {kMaxJsonDepth + 1, std::size_t(1) << 20}) {
    EXPECT_THAT(usage_error_of([&] { parse_json(nested(depth), "x"); }), HasSubstr("64"));
    EXPECT_THAT(usage_error_of([&] { parse_json("{\"a\":" + nested(depth) + "}", "x"); }),
                HasSubstr("nests"));
  }
  TempDir dir;
  std::string deep = one(R"({"dtype":"U8","shape":)" + nested(200000) + "}");
  EXPECT_THAT(usage_error_of([&] { open_bytes(dir, container(deep, "")); }), HasSubstr("nests"));
  EXPECT_EQ(parse_json(text, "x").dump(), text);
}

// Quadratic work here would take minutes: the test would run into the suite's time limit.
TEST(JsonText, ManyNonFiniteWordsTakeOnePass) {
  TempDir dir;
  std::string text = R"({"a":[)";
  for (int i = 0; i < 1'000'000; ++i) text += "NaN,";
  auto root = read_config_file(dir.write("config.json", text + R"(-Infinity],"b":"NaN\\"})"));
  ASSERT_EQ(root["a"].size(), 1'000'001u);
  EXPECT_EQ(root["a"].front(), "NaN");
  EXPECT_EQ(root["a"].back(), "-Infinity");
  EXPECT_EQ(root["b"], "NaN\\");
}

TEST(JsonText, ConfigsMayHoldBareInfinity) {
  TempDir dir;
  auto root = read_config_file(dir.write(
      "c.json",
      R"({"a": Infinity, "b": [-Infinity, NaN], "c": "Infinity \" NaN", "d": {"__float__": "Infinity"}})"));
  EXPECT_EQ(root["a"], "Infinity");
  EXPECT_TRUE(root["b"][0] == "-Infinity" && root["b"][1] == "NaN");
  EXPECT_EQ(root["c"], "Infinity \" NaN");
  EXPECT_THAT(usage_error_of([&] { read_config_file(dir.write("c.json", R"({"a":1,"a":2})")); }),
              HasSubstr("twice"));
  EXPECT_THAT(usage_error_of([&] { read_config_file(dir.write("c.json", "[]")); }),
              HasSubstr("object"));
  EXPECT_THAT(usage_error_of([&] { read_config_file(dir.write("c.json", "{\"a\":}")); }),
              HasSubstr("byte 6"));
}

TEST(Index, ShardsGiveTheSameTensorsAsOneFile) {
  auto editor = test::CheckpointEditor::fixture("mixtral");
  TempDir one, three;
  editor.write(one);
  editor.write_sharded(three, 3);
  CheckpointFiles a = open_checkpoint_files(one.path()), b = open_checkpoint_files(three.path());
  ASSERT_EQ(a.tensors->tensors().size(), editor.tensors.size());
  ASSERT_EQ(b.tensors->tensors().size(), editor.tensors.size());
  EXPECT_EQ(b.tensors->paths().size(), 3u);
  for (const auto& [name, raw] : editor.tensors) {
    for (const CheckpointFiles* f : {&a, &b}) {
      const Tensor* t = f->tensors->find(name);
      ASSERT_NE(t, nullptr) << name;
      EXPECT_EQ(t->shape, raw.shape);
      ASSERT_EQ(t->bytes.size(), raw.bytes.size());
      EXPECT_EQ(std::memcmp(t->bytes.data(), raw.bytes.data(), raw.bytes.size()), 0) << name;
    }
  }
}

TEST(Index, OnlyTheIndexCounts) {
  auto editor = test::CheckpointEditor::fixture("mixtral");
  TempDir dir;
  editor.write_sharded(dir, 2);
  auto other = editor.tensors;
  for (auto& [name, t] : other) t.bytes.assign(t.bytes.size(), '\x11');
  dir.write("model.safetensors", test::safetensors_bytes(other));
  CheckpointFiles f = open_checkpoint_files(dir.path());
  const auto& [name, raw] = *editor.tensors.begin();
  EXPECT_EQ(std::memcmp(f.tensors->find(name)->bytes.data(), raw.bytes.data(), raw.bytes.size()),
            0);
  ASSERT_EQ(f.notices.size(), 1u);
  EXPECT_THAT(f.notices[0], HasSubstr("model.safetensors"));
}

TEST(Index, RefusesBrokenIndices) {
  auto editor = test::CheckpointEditor::fixture("mixtral");
  TempDir dir;
  editor.write_sharded(dir, 2);
  const std::string index = "model.safetensors.index.json";
  const auto good = nlohmann::json::parse(test::slurp(dir.path() + "/" + index));
  auto fails = [&](const nlohmann::json& changed, const std::string& says) {
    dir.write(index, changed.dump());
    EXPECT_THAT(usage_error_of([&] { open_checkpoint_files(dir.path()); }), HasSubstr(says));
    dir.write(index, good.dump());
    EXPECT_EQ(open_checkpoint_files(dir.path()).tensors->tensors().size(), editor.tensors.size());
  };
  const std::string name = editor.tensors.begin()->first;
  for (const char* shard :
       {"../x.safetensors", "/etc/passwd", "a/b.safetensors", "a\\b", "..", ""}) {
    auto changed = good;
    changed["weight_map"][name] = shard;
    fails(changed, "plain file name");
  }
  auto changed = good;
  changed["weight_map"][name] = "model-9.safetensors";
  fails(changed, "shard 'model-9.safetensors'");
  changed = good;
  changed["weight_map"][name] = "model-1.safetensors";
  fails(changed, "does not hold it");
  changed = good;
  changed["weight_map"]["invented.weight"] = "model-1.safetensors";
  fails(changed, "'invented.weight'");
  changed = good;
  changed["weight_map"][name] = 3;
  fails(changed, "must be a file name");
  changed.erase("weight_map");
  fails(changed, "weight_map");
}

TEST(Index, AShardNameIsPrintable) {
  for (const char* name : {"a\\u0001.safetensors", "a\\n.safetensors", "a\\u007f", "\\u0000"}) {
    TempDir dir;
    dir.write("config.json", "{}");
    dir.write("model.safetensors.index.json",
              std::string(R"({"weight_map":{"t":")") + name + "\"}}");
    std::string text = usage_error_of([&] { open_checkpoint_files(dir.path()); });
    EXPECT_THAT(text, HasSubstr("not printable")) << name;
    for (char c : text) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << name;
  }
}

TEST(Index, FoldersThatAreNoCheckpoints) {
  TempDir dir;
  EXPECT_THAT(usage_error_of([&] { open_checkpoint_files(dir.path() + "/absent"); }),
              HasSubstr("does not exist"));
  EXPECT_THAT(usage_error_of([&] { open_checkpoint_files(dir.path()); }), HasSubstr("config.json"));
  std::string config = dir.write("config.json", "{}");
  EXPECT_THAT(usage_error_of([&] { open_checkpoint_files(config); }), HasSubstr("folder"));
  EXPECT_THAT(usage_error_of([&] { open_checkpoint_files(dir.path()); }),
              HasSubstr("model.safetensors"));
  std::filesystem::create_directory(dir.path() + "/model.safetensors");
  EXPECT_THAT(usage_error_of([&] { open_checkpoint_files(dir.path()); }), HasSubstr("directory"));
}

}  // namespace
}  // namespace switchyard::checkpoint
