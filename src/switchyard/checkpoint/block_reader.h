// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "switchyard/checkpoint/index.h"

namespace switchyard::checkpoint {

/// What is wrong with one tensor of a block.
enum class FindingKind : std::uint8_t {
  kMissing,
  kMisshaped,
  kMistyped,
  kBadScale,
  kContradiction,
  kUnknown
};
/// "missing", "misshaped", "mistyped", "bad_scale", "contradiction" or "unknown".
std::string_view to_string(FindingKind kind);

/// One fault of a block: the tensor's full name and a one-line text with value and limit.
struct Finding {
  FindingKind kind;
  std::string tensor;
  std::string text;
};

/// A tensor that a block wants: allowed types, and the shape of each (or one shape for all).
struct Want {
  std::vector<TensorType> types;
  std::vector<std::int64_t> shape;
};

/// Looks tensors of one MoE block up, notes which were asked for, and collects every fault instead
/// of stopping at the first, so that a report can list them all.
class BlockReader {
 public:
  /// Over the tensors of `block` ("model.layers.3.mlp").
  BlockReader(const TensorTable& table, std::string block);

  /// The block's dotted path.
  const std::string& block() const { return block_; }
  /// The first of the alternatives "a|b" (below the block) that exists; null when none does.
  const Tensor* peek(std::string_view names, std::string* full_name = nullptr) const;
  /// The tensor that must be there with one of the types and the shape; null after noting a fault.
  const Tensor* want(std::string_view names, const Want& want, std::string* full_name = nullptr);
  /// A scalar F32, BF16 or F16 tensor ([] or [1]); nothing after noting a fault.
  std::optional<float> want_scalar(std::string_view names, std::string* full_name = nullptr);
  /// True when some tensor's name below the block starts with `prefix`.
  bool any(std::string_view prefix) const;
  /// The names, below the block, that start with `prefix`; they live as long as the table.
  std::vector<std::string_view> names(std::string_view prefix) const;
  /// Notes a fault.
  void fault(FindingKind kind, std::string tensor, std::string text);
  /// Marks a tensor below the block as known though nothing reads it.
  void ignore(std::string_view names);
  /// Notes a fault for each tensor below the block whose name starts with one of `owned` ("a.|b.";
  /// empty: each) and that nobody asked for; static activation scales are only counted: their
  /// number is returned.
  std::int64_t fault_unknown(std::string_view owned);

  /// All faults so far, in the order of discovery.
  const std::vector<Finding>& findings() const { return findings_; }

 private:
  const TensorTable& table_;
  std::string block_;
  std::unordered_set<std::string> asked_;
  std::vector<Finding> findings_;
};

/// Throws UsageError with the first fault and the number of others, if there is any; `where` is the
/// checkpoint's path.
void throw_first(const std::vector<Finding>& findings, std::string_view where);

}  // namespace switchyard::checkpoint
