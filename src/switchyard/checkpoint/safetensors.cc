// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/json_text.h"

namespace switchyard::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kFetchAgain = "the file is damaged or incomplete, fetch it again";

struct Extent {
  std::uint64_t begin = 0, end = 0;
  std::string_view name;
};

std::uint64_t header_length(std::span<const std::byte> bytes, const std::string& path) {
  require(bytes.size() >= 8, path, ": holds ", bytes.size(),
          " bytes, a safetensors file has at least 8; ", kFetchAgain);
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::uint64_t(bytes[std::size_t(i)]);
  require(length <= kMaxHeaderBytes, path, ": header of ", length, " bytes exceeds the limit of ",
          kMaxHeaderBytes, "; it is not a safetensors file, or damaged");
  require(length <= bytes.size() - 8, path, ": header of ", length,
          " bytes ends behind the file's ", bytes.size(), " bytes; ", kFetchAgain);
  require(length > 0 && bytes[8] == std::byte{'{'}, path,
          ": the header does not start with '{'; it is not a safetensors file, or damaged");
  return length;
}

std::uint64_t offset_of(const json& value, const std::string& who) {
  require(
      value.is_number_integer() && (value.is_number_unsigned() || value.get<std::int64_t>() >= 0),
      who, ": data offset ", show_json(value), " is no integer >= 0; ", kFetchAgain);
  return value.get<std::uint64_t>();
}

std::vector<std::int64_t> shape_of(const json& value, const std::string& who) {
  require(value.is_array(), who, ": shape ", show_json(value), " is no list; ", kFetchAgain);
  std::vector<std::int64_t> shape;
  for (const json& d : value) {
    bool fits = d.is_number_unsigned() &&
                d.get<std::uint64_t>() <= std::uint64_t(std::numeric_limits<std::int64_t>::max());
    require(fits, who, ": dimension ", show_json(d), " is no integer in 0 .. 2^63 - 1; ",
            kFetchAgain);
    shape.push_back(d.get<std::int64_t>());
  }
  return shape;
}

/// Bytes that shape and type need. Errors: UsageError past 2^64 bits or for a broken last byte.
std::uint64_t needed_bytes(const Tensor& t, const std::string& who) {
  std::uint64_t bits = std::uint64_t(bits_of(t.type));
  bool empty = std::find(t.shape.begin(), t.shape.end(), 0) != t.shape.end();
  for (std::int64_t d : t.shape) {
    bool overflow = __builtin_mul_overflow(bits, empty ? 0 : std::uint64_t(d), &bits);
    require(!overflow, who, ": shape ", show_shape(t.shape), " overflows 2^64 bits; ", kFetchAgain);
  }
  require(bits % 8 == 0, who, ": shape ", show_shape(t.shape), " of ", to_string(t.type), " takes ",
          bits, " bits, must be whole bytes; pad the last dimension");
  return bits / 8;
}

const json& field(const json& entry, const char* key, const std::string& who) {
  auto it = entry.find(key);
  require(it != entry.end(), who, ": has no '", key, "'; ", kFetchAgain);
  return *it;
}

Tensor parse_entry(const json& entry, std::span<const std::byte> data, const std::string& who,
                   Extent& extent) {
  require(entry.is_object(), who, ": entry is ", show_json(entry), ", must be an object; ",
          kFetchAgain);
  const json& type = field(entry, "dtype", who);
  auto known = type.is_string() ? to_tensor_type(type.get_ref<const std::string&>()) : std::nullopt;
  require(known.has_value(), who, ": dtype ", show_json(type),
          " is unknown; use one of the format's names such as BF16 or F8_E4M3");
  Tensor t{*known, shape_of(field(entry, "shape", who), who), {}};
  const json& offsets = field(entry, "data_offsets", who);
  require(offsets.is_array() && offsets.size() == 2, who, ": data_offsets ", show_json(offsets),
          " is no pair [begin, end]; ", kFetchAgain);
  extent.begin = offset_of(offsets[0], who);
  extent.end = offset_of(offsets[1], who);
  require(extent.begin <= extent.end && extent.end <= data.size(), who, ": data_offsets [",
          extent.begin, ", ", extent.end, "] do not lie in the file's ", data.size(),
          " data bytes; ", kFetchAgain);
  std::uint64_t needed = needed_bytes(t, who);
  require(needed == extent.end - extent.begin, who, ": shape ", show_shape(t.shape), " of ",
          to_string(t.type), " takes ", needed, " bytes, data_offsets span ",
          extent.end - extent.begin, "; ", kFetchAgain);
  t.bytes = data.subspan(extent.begin, needed);
  return t;
}

void check_cover(std::vector<Extent>& extents, std::uint64_t size, const std::string& path) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t at = 0;
  for (const Extent& e : extents) {
    require(e.begin == at, path, ": tensor '", show_name(e.name), "' begins at ", e.begin,
            ", must begin at ", at, " (",
            e.begin < at ? "overlaps its neighbour" : "hole before it", "); ", kFetchAgain);
    at = e.end;
  }
  require(at == size, path, ": tensors end at ", at, " of ", size, " data bytes; ", kFetchAgain);
}

std::map<std::string, std::string> parse_metadata(const json& value, const std::string& path) {
  require(value.is_object(), path, ": __metadata__ is ", show_json(value),
          ", must map strings to strings");
  std::map<std::string, std::string> out;
  for (const auto& [key, text] : value.items()) {
    require(text.is_string(), path, ": __metadata__ '", show_name(key), "' is ", show_json(text),
            ", must be a string");
    out[key] = text.get<std::string>();
  }
  return out;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile out;
  out.file_ = MappedFile::open(path);
  std::span<const std::byte> bytes = out.file_->bytes();
  std::uint64_t length = header_length(bytes, path);
  std::span<const std::byte> data = bytes.subspan(8 + length);
  json header =
      parse_json({reinterpret_cast<const char*>(bytes.data()) + 8, length}, path + ": header");
  auto tensors = std::make_shared<TensorMap>();
  std::map<std::string, std::string> metadata;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      metadata = parse_metadata(entry, path);
      continue;
    }
    Extent extent;
    Tensor t = parse_entry(entry, data, cat(path, ": tensor '", show_name(name), "'"), extent);
    auto it = tensors->emplace_hint(tensors->end(), name, std::move(t));
    extent.name = it->first;
    extents.push_back(extent);
  }
  check_cover(extents, data.size(), path);
  out.tensors_ = std::move(tensors);
  out.metadata_ = std::make_shared<const std::map<std::string, std::string>>(std::move(metadata));
  return out;
}

const Tensor* SafetensorsFile::find(std::string_view name) const {
  auto it = tensors_->find(name);
  return it == tensors_->end() ? nullptr : &it->second;
}

}  // namespace switchyard::checkpoint
