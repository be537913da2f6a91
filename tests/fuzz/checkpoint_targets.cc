// SPDX-License-Identifier: Apache-2.0
// The readers of a checkpoint: container, index, configuration, and all of them together.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "switchyard/base/text.h"
#include "switchyard/checkpoint/index.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/checkpoint/safetensors.h"
#include "tests/fuzz/target.h"

namespace switchyard::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr char kPartSeparator = '\x1e';  // ASCII's record separator: invalid inside JSON
constexpr std::uint64_t kMaxData = 16u << 20;

/// A folder of this process for the files of one input; in memory where the machine has that.
class Folder {
 public:
  Folder() {
    fs::path base = fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    std::string name = (base / "switchyard_fuzz_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder can be made");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name) const { return cat(path_, "/", name); }
  const std::string& path() const { return path_; }
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream out(file(name), std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), std::streamsize(bytes.size()));
    if (!out.flush()) throw std::runtime_error("a file cannot be written");
  }
  void remove(const std::string& name) const { fs::remove(file(name)); }

 private:
  std::string path_;
};

/// The largest end of a data range that a header speaks of, as far as it is no more than kMaxData.
std::uint64_t data_bytes(std::string_view header) {
  std::uint64_t data = 0;
  for (std::size_t at = 0; (at = header.find("_offsets", at)) != std::string_view::npos; ++at) {
    std::size_t i = std::min(header.find(',', at), header.size() - 1) + 1;
    while (i < header.size() && header[i] == ' ') ++i;
    std::uint64_t end = 0;
    std::from_chars(header.data() + i, header.data() + header.size(), end);
    if (end <= kMaxData) data = std::max(data, end);
  }
  return data;
}

/// Writes a safetensors file of a header's text; its data are zeros, a hole that takes no memory.
void write_container(const Folder& folder, const std::string& name, std::string_view header) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += char(std::uint64_t(header.size()) >> (8 * i));
  folder.write(name, out.append(header));
  fs::resize_file(folder.file(name), out.size() + data_bytes(header));
}

std::vector<std::string_view> parts_of(std::string_view input, std::size_t limit) {
  std::vector<std::string_view> out;
  while (out.size() + 1 < limit) {
    std::size_t end = input.find(kPartSeparator);
    out.push_back(input.substr(0, end));
    if (end == std::string_view::npos) return out;
    input.remove_prefix(end + 1);
  }
  out.push_back(input);
  return out;
}

void use(const checkpoint::TensorMap& tensors, std::size_t file_bytes) {
  for (const auto& [name, t] : tensors) {
    promise(t.bytes.size() <= file_bytes, "a tensor is larger than its file");
    std::uint64_t bits = std::uint64_t(t.elements()) * std::uint64_t(bits_of(t.type));
    promise(bits == std::uint64_t(t.bytes.size()) * 8, "a tensor has other bytes than its shape");
    unsigned sum = checkpoint::show_shape(t.shape).empty();
    for (std::byte b : t.bytes) sum += unsigned(b);  // touches all that the tensor claims to hold
    promise(t.bytes.size() > 0 || sum == 0, "a tensor without bytes has a sum");
  }
}

void run_safetensors(std::string_view input) {
  static const Folder folder;
  folder.write("x.safetensors", input);
  auto file = checkpoint::SafetensorsFile::open(folder.file("x.safetensors"));
  promise(file.file_bytes() == input.size(), "the file has another size");
  use(file.tensors(), file.file_bytes());
  for (const auto& [name, t] : file.tensors())
    promise(file.find(name) != nullptr, "a listed tensor is not found");
}

/// Two shards, "a.safetensors" and "b.safetensors", wait for whatever the index says of them.
void run_index(std::string_view input) {
  static const Folder folder;
  folder.write("config.json", "{}");
  write_container(folder, "a.safetensors",
                  R"({"u":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("v":{"dtype":"F32","shape":[],"data_offsets":[2,6]}})");
  write_container(folder, "b.safetensors",
                  R"({"w":{"dtype":"BF16","shape":[3,0],"data_offsets":[0,0]}})");
  folder.write("model.safetensors.index.json", input);
  auto files = checkpoint::open_checkpoint_files(folder.path());
  use(files.tensors->tensors(), files.tensors->file_bytes());
  promise(files.tensors->tensors().size() <= 3, "the shards hold three tensors");
}

void use_checkpoint(const std::string& path) {
  auto checkpoint = checkpoint::Checkpoint::open(path);
  promise(!checkpoint.family().empty() && !checkpoint.schema().empty(), "a name is empty");
  std::size_t read = 0;
  for (const checkpoint::LayerInfo& info : checkpoint.layers()) {
    const Problem& p = checkpoint.problem(info.index);
    promise(p.num_experts() >= 1 && p.num_experts() <= kMaxRoutedExperts, "experts out of range");
    promise(p.top_k() >= 1 && p.hidden >= 1 && p.inter >= 1, "an empty problem");
    if (++read > 2 || (info.is_mtp && !info.present)) continue;
    auto layer = checkpoint.read_layer(info.index);
    promise(info.present || !layer.findings.empty(), "an absent layer has no finding");
    if (!layer.findings.empty()) continue;
    auto weights = checkpoint.layer(info.index);
    weights.expert(0);
    weights.expert(p.num_experts() - 1);
  }
}

void write_parts(const Folder& folder, std::span<const std::string_view> parts) {
  constexpr std::array kNames = {"config.json", "hf_quant_config.json", "model.safetensors"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    std::string_view part = i < parts.size() ? parts[i] : std::string_view{};
    if (i == 2) {
      write_container(folder, kNames[i], part.empty() ? "{}" : part);
    } else if (i == 1 && part.empty()) {
      folder.remove(kNames[i]);
    } else {
      folder.write(kNames[i], part);
    }
  }
}

/// config.json, and behind a separator hf_quant_config.json, of a checkpoint without tensors.
void run_config(std::string_view input) {
  static const Folder folder;
  write_parts(folder, parts_of(input, 2));
  use_checkpoint(folder.path());
}

/// The same, and behind a second separator the header of model.safetensors, whose data is zeros.
void run_checkpoint(std::string_view input) {
  static const Folder folder;
  write_parts(folder, parts_of(input, 3));
  use_checkpoint(folder.path());
}

}  // namespace

const Target kSafetensors = {"safetensors", run_safetensors};
const Target kIndex = {"index", run_index};
const Target kConfig = {"config", run_config};
const Target kCheckpoint = {"checkpoint", run_checkpoint};

}  // namespace switchyard::fuzz
