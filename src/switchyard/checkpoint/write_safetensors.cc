// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/write_safetensors.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "switchyard/base/check.h"

namespace switchyard::checkpoint {
namespace {

/// The header, blanks behind it up to a multiple of 8 bytes.
std::string header_of(const std::vector<NamedTensor>& tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::size_t at = 0;
  for (const NamedTensor& t : tensors) {
    std::int64_t count = 1;
    for (std::int64_t d : t.shape) count *= d;
    ensure(count * bits_of(t.type) == 8 * std::int64_t(t.bytes.size()), "tensor ", t.name, " has ",
           t.bytes.size(), " bytes for ", count, " elements of ", to_string(t.type));
    ensure(!header.contains(t.name), "tensor ", t.name, " is written twice");
    header[t.name] = {{"dtype", to_string(t.type)},
                      {"shape", t.shape},
                      {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  const std::string header = header_of(tensors);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  require(file.is_open(), path, ": cannot be opened for writing; choose another path");
  for (int shift = 0; shift < 64; shift += 8)  // little-endian length
    file.put(char(std::uint64_t(header.size()) >> shift & 0xff));
  file.write(header.data(), std::streamsize(header.size()));
  for (const NamedTensor& t : tensors)
    file.write(reinterpret_cast<const char*>(t.bytes.data()), std::streamsize(t.bytes.size()));
  file.flush();
  require(file.good(), path, ": writing failed; is there room on the device?");
}

}  // namespace switchyard::checkpoint
