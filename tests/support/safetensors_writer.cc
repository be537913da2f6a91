// SPDX-License-Identifier: Apache-2.0
#include "tests/support/safetensors_writer.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "switchyard/base/dtype.h"
#include "switchyard/base/errors.h"

namespace switchyard::test {

using nlohmann::json;

std::string container(const std::string& header, const std::string& data) {
  std::uint64_t n = header.size();
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[std::size_t(i)] = char(n >> (8 * i) & 255);
  return out + header + data;
}

std::string safetensors_bytes(const RawTensors& tensors, std::size_t align) {
  json header = json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const auto& [name, t] : tensors) {
    header[name] = {{"dtype", t.dtype},
                    {"shape", t.shape},
                    {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  std::string text = header.dump();
  while ((8 + text.size()) % align != 0) text += ' ';
  return container(text, data);
}

RawTensors parse_safetensors(const std::string& path) {
  std::string file = slurp(path);
  std::uint64_t n = 0;
  std::memcpy(&n, file.data(), 8);
  json header = json::parse(file.substr(8, n));
  RawTensors out;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    out[name] = {entry["dtype"], entry["shape"], file.substr(8 + n + begin, end - begin)};
  }
  return out;
}

std::string f32_bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}

float bf16_at(const RawTensor& t, std::int64_t i) {
  std::uint16_t bits;
  std::memcpy(&bits, t.bytes.data() + 2 * i, 2);
  return bf16_to_float(bits);
}

float float_at(const RawTensor& t, std::int64_t i) {
  if (t.dtype == "BF16") return bf16_at(t, i);
  if (t.dtype == "F16") {
    std::uint16_t bits;
    std::memcpy(&bits, t.bytes.data() + 2 * i, 2);
    return fp16_to_float(bits);
  }
  float value;
  std::memcpy(&value, t.bytes.data() + 4 * i, 4);
  return value;
}

TempDir::TempDir() {
  std::string pattern = ::testing::TempDir() + "/switchyard_XXXXXX";
  EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::write(const std::string& name, const std::string& bytes) const {
  std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

CheckpointEditor CheckpointEditor::fixture(const std::string& name) {
  return {json::parse(slurp(data_dir(name) + "/config.json")),
          parse_safetensors(data_dir(name) + "/model.safetensors")};
}

void CheckpointEditor::write(const TempDir& dir) const {
  dir.write("config.json", config.dump(1));
  dir.write("model.safetensors", safetensors_bytes(tensors));
}

void CheckpointEditor::write_sharded(const TempDir& dir, int shards) const {
  std::vector<RawTensors> parts{std::size_t(shards)};
  json map = json::object();
  std::size_t i = 0;
  auto file_of = [](std::size_t shard) {
    return "model-" + std::to_string(shard) + ".safetensors";
  };
  for (const auto& [name, t] : tensors) {
    std::size_t shard = i++ % std::size_t(shards);
    parts[shard][name] = t;
    map[name] = file_of(shard);
  }
  for (std::size_t s = 0; s < parts.size(); ++s) dir.write(file_of(s), safetensors_bytes(parts[s]));
  dir.write("config.json", config.dump(1));
  dir.write("model.safetensors.index.json",
            json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump(1));
}

void CheckpointEditor::rename_prefix(const std::string& from, const std::string& to) {
  RawTensors out;
  for (auto& [name, t] : tensors)
    out[name.rfind(from, 0) == 0 ? to + name.substr(from.size()) : name] = std::move(t);
  tensors = std::move(out);
}

std::string data_dir(const std::string& name) {
  return std::string(SWITCHYARD_TEST_DATA) + "/" + name;
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

}  // namespace switchyard::test
