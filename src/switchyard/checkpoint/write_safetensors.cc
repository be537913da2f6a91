// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/write_safetensors.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "switchyard/base/check.h"

namespace switchyard::checkpoint {
namespace {

/// The header, blanks behind it up to a multiple of 8 bytes.
std::string header_of(const std::vector<NamedTensor>& tensors, std::string_view format) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", format}}}};
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

void write_safetensors(std::ostream& out, const std::vector<NamedTensor>& tensors,
                       std::string_view format) {
  const std::string header = header_of(tensors, format);
  for (int shift = 0; shift < 64; shift += 8)  // little-endian length
    out.put(char(std::uint64_t(header.size()) >> shift & 0xff));
  out.write(header.data(), std::streamsize(header.size()));
  for (const NamedTensor& t : tensors)
    out.write(reinterpret_cast<const char*>(t.bytes.data()), std::streamsize(t.bytes.size()));
}

}  // namespace switchyard::checkpoint
