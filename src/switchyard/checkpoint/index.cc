// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/index.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "switchyard/base/check.h"
#include "switchyard/base/stands_at.h"
#include "switchyard/checkpoint/json_text.h"

namespace switchyard::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingle = "model.safetensors";

bool is_there(const fs::path& p) { return stands_at(p.string()); }

void check_shard_name(const std::string& shard, const std::string& index_path) {
  // A control character would reach every later error line about the shard's path.
  bool printable = std::none_of(shard.begin(), shard.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  bool plain = !shard.empty() && printable && shard.find_first_of("/\\") == std::string::npos &&
               shard.find("..") == std::string::npos;
  require(
      plain, index_path, ": shard name '", show_name(shard),
      "' leaves the checkpoint's folder, is empty or not printable; a shard is a plain file name "
      "beside the index");
}

std::string shard_of(const std::string& tensor, const json& value, const std::string& index_path) {
  require(value.is_string(), index_path, ": tensor '", show_name(tensor), "' maps to ",
          show_json(value), ", must be a file name");
  std::string shard = value.get<std::string>();
  check_shard_name(shard, index_path);
  return shard;
}

void note_strays(const std::string& directory, const TensorTable& table,
                 std::vector<std::string>& notices) {
  std::set<std::string> used;
  for (const std::string& p : table.paths()) used.insert(fs::path(p).filename().string());
  std::set<std::string> strays;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".safetensors" && name != "moe_io.safetensors" &&
        !used.count(name))
      strays.insert(name);
  }
  if (error)
    notices.push_back(cat("the folder cannot be listed (", error.message(),
                          "); files beside the index are not looked for"));
  if (!strays.empty())
    notices.push_back(cat(strays.size(),
                          " .safetensors file(s) beside the index are not listed in it "
                          "and are ignored, the first is '",
                          *strays.begin(), "'"));
  if (table.unlisted() > 0)
    notices.push_back(cat(table.unlisted(),
                          " tensor(s) in the shards are not listed in the index "
                          "and are ignored"));
}

std::shared_ptr<const TensorTable> open_tensors(const fs::path& directory) {
  fs::path index = directory / kIndex;
  if (!is_there(index)) {
    require(is_there(directory / kSingle), directory.string(), ": holds neither ", kIndex, " nor ",
            kSingle, "; give the folder of a Hugging Face style checkpoint");
    return std::make_shared<TensorTable>(SafetensorsFile::open((directory / kSingle).string()));
  }
  json root = read_config_file(index.string());
  auto map = root.find("weight_map");
  require(map != root.end() && map->is_object(), index.string(),
          ": has no object 'weight_map'; it is no safetensors index, fetch it again");
  return std::make_shared<TensorTable>(directory.string(), *map, index.string());
}

}  // namespace

TensorTable::TensorTable(SafetensorsFile file) {
  tensors_ = std::make_shared<const TensorMap>(file.tensors());
  files_.push_back(std::move(file));
}

TensorTable::TensorTable(const std::string& directory, const json& weight_map,
                         const std::string& index_path) {
  std::map<std::string, SafetensorsFile> shards;
  auto tensors = std::make_shared<TensorMap>();
  for (const auto& [name, value] : weight_map.items()) {
    std::string shard = shard_of(name, value, index_path);
    auto it = shards.find(shard);
    if (it == shards.end()) {
      std::string path = (fs::path(directory) / shard).string();
      require(is_there(path), index_path, ": shard '", shard, "' (holding '", show_name(name),
              "') is missing from ", directory, "; fetch it");
      it = shards.emplace(shard, SafetensorsFile::open(path)).first;
    }
    const Tensor* t = it->second.find(name);
    require(t != nullptr, index_path, ": tensor '", show_name(name), "' is mapped to shard '",
            shard,
            "', which does not hold it; index and shards do not belong together, fetch both again");
    tensors->emplace_hint(tensors->end(), name, *t);
  }
  std::size_t held = 0;
  for (auto& [name, file] : shards) {
    held += file.tensors().size();
    files_.push_back(std::move(file));
  }
  unlisted_ = held - tensors->size();
  tensors_ = std::move(tensors);
}

const Tensor* TensorTable::find(std::string_view name) const {
  auto it = tensors_->find(name);
  return it == tensors_->end() ? nullptr : &it->second;
}

std::pair<TensorMap::const_iterator, TensorMap::const_iterator> TensorTable::range(
    std::string_view prefix) const {
  auto first = tensors_->lower_bound(prefix), last = first;
  while (last != tensors_->end() && last->first.starts_with(prefix)) ++last;
  return {first, last};
}

bool TensorTable::any(std::string_view prefix) const {
  auto it = tensors_->lower_bound(prefix);
  return it != tensors_->end() && it->first.starts_with(prefix);
}

std::vector<std::string> TensorTable::paths() const {
  std::vector<std::string> out;
  for (const SafetensorsFile& f : files_) out.push_back(f.path());
  return out;
}

std::size_t TensorTable::file_bytes() const {
  std::size_t sum = 0;
  for (const SafetensorsFile& f : files_) sum += f.file_bytes();
  return sum;
}

CheckpointFiles open_checkpoint_files(const std::string& directory) {
  std::error_code ignored;
  require(is_there(directory), directory, ": does not exist; give the folder of a checkpoint");
  require(fs::is_directory(directory, ignored), directory,
          ": is a file where a checkpoint's folder is needed; give the folder that holds it");
  fs::path root(directory);
  require(is_there(root / "config.json"), directory,
          ": holds no config.json; give the folder of a Hugging Face style checkpoint");
  CheckpointFiles out;
  out.directory = directory;
  out.config = read_config_file((root / "config.json").string());
  fs::path hf_quant = root / "hf_quant_config.json";
  if (is_there(hf_quant)) out.hf_quant = read_config_file(hf_quant.string());
  out.legacy_quantize_config = is_there(root / "quantize_config.json");
  out.tensors = open_tensors(root);
  if (is_there(root / kIndex)) note_strays(directory, *out.tensors, out.notices);
  return out;
}

}  // namespace switchyard::checkpoint
