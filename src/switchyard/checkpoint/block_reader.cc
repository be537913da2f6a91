// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/block_reader.h"

#include <algorithm>
#include <array>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/config.h"
#include "switchyard/checkpoint/json_text.h"

namespace switchyard::checkpoint {
namespace {

constexpr std::array<std::string_view, 6> kKinds = {"missing",   "misshaped",     "mistyped",
                                                    "bad_scale", "contradiction", "unknown"};

std::string type_list(const std::vector<TensorType>& types) {
  std::string out;
  for (TensorType t : types) out += cat(out.empty() ? "" : " or ", to_string(t));
  return out;
}

}  // namespace

std::string_view to_string(FindingKind kind) { return kKinds[std::size_t(kind)]; }

BlockReader::BlockReader(const TensorTable& table, std::string block)
    : table_(table), block_(std::move(block)) {}

const Tensor* BlockReader::peek(std::string_view names, std::string* full_name) const {
  for (std::string_view name : alternatives(names)) {
    std::string full = cat(block_, ".", name);
    const Tensor* t = table_.find(full);
    if (!t) continue;
    if (full_name) *full_name = std::move(full);
    return t;
  }
  return nullptr;
}

const Tensor* BlockReader::want(std::string_view names, const Want& want, std::string* full_name) {
  std::string full = cat(block_, ".", alternatives(names).front());
  const Tensor* t = peek(names, &full);
  if (full_name) *full_name = full;
  asked_.insert(full);
  if (!t) {
    fault(FindingKind::kMissing, full,
          cat("tensor '", full, "' of type ", type_list(want.types), " and shape ",
              show_shape(want.shape),
              " is missing; the checkpoint is incomplete or its config.json is another model's"));
    return nullptr;
  }
  if (std::find(want.types.begin(), want.types.end(), t->type) == want.types.end()) {
    fault(FindingKind::kMistyped, full,
          cat("tensor '", full, "' is ", to_string(t->type), ", must be ", type_list(want.types),
              " as the quantisation declared in config.json says; correct the declaration"));
    return nullptr;
  }
  if (t->shape != want.shape) {
    fault(FindingKind::kMisshaped, full,
          cat("tensor '", full, "' has shape ", show_shape(t->shape), ", must be ",
              show_shape(want.shape), "; config.json and tensors do not belong together"));
    return nullptr;
  }
  return t;
}

std::optional<float> BlockReader::want_scalar(std::string_view names, std::string* full_name) {
  const Tensor* found = peek(names);
  std::vector<std::int64_t> shape;
  if (found && found->shape.size() == 1) shape = {1};
  const Tensor* t =
      want(names, {{TensorType::kF32, TensorType::kBf16, TensorType::kF16}, std::move(shape)},
           full_name);
  if (!t) return {};
  return load_float(t->type, t->bytes.data(), 0);
}

bool BlockReader::any(std::string_view prefix) const {
  return table_.any(cat(block_, ".", prefix));
}

std::vector<std::string_view> BlockReader::names(std::string_view prefix) const {
  std::vector<std::string_view> out;
  auto [first, last] = table_.range(cat(block_, ".", prefix));
  for (auto it = first; it != last; ++it)
    out.push_back(std::string_view(it->first).substr(block_.size() + 1));
  return out;
}

void BlockReader::fault(FindingKind kind, std::string tensor, std::string text) {
  findings_.push_back({kind, std::move(tensor), std::move(text)});
}

void BlockReader::ignore(std::string_view names) {
  for (std::string_view name : alternatives(names)) asked_.insert(cat(block_, ".", name));
}

std::int64_t BlockReader::fault_unknown(std::string_view owned) {
  std::int64_t unused = 0;
  for (std::string_view prefix : alternatives(owned)) {
    auto [first, last] = table_.range(cat(block_, ".", prefix));
    for (auto it = first; it != last; ++it) {
      const std::string& name = it->first;
      if (asked_.count(name)) continue;
      if (name.ends_with(".input_scale") || name.ends_with(".input_global_scale") ||
          name.ends_with("_proj_input_scale")) {
        ++unused;
        continue;
      }
      fault(FindingKind::kUnknown, name,
            cat("tensor '", show_name(name), "' of shape ", show_shape(it->second.shape),
                " stands in the MoE block and the model's family and quantisation do not know it; "
                "it would be silently ignored, remove it or correct config.json"));
    }
  }
  return unused;
}

void throw_first(const std::vector<Finding>& findings, std::string_view where) {
  if (findings.empty()) return;
  std::size_t more = findings.size() - 1;
  std::string rest = more == 0 ? ""
                               : cat(" (and ", more, " more, the last is '",
                                     show_name(findings.back().tensor), "')");
  throw UsageError(cat(where, ": ", findings[0].text, rest));
}

}  // namespace switchyard::checkpoint
