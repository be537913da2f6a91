// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "switchyard/checkpoint/block_reader.h"
#include "switchyard/checkpoint/scheme.h"
#include "switchyard/checkpoint/weight_source.h"

namespace switchyard::checkpoint {

/// How the logical rows [out] of one expert's matrices lie in a stacked tensor.
enum class Placement : std::uint8_t {
  kRows,                // [halves * out, in]
  kColumns,             // [in, halves * out]
  kInterleavedRows,     // [out * halves, in], halves alternating
  kInterleavedColumns,  // [in, out * halves], halves alternating
};

/// One projection of all experts in a stacked tensor.
struct StackedSide {
  std::string_view names;  // spellings of the tensor, "a|b"
  std::int64_t experts = 1;
  std::int64_t rows = 0, cols = 0;  // one logical matrix [out, in]
  std::int64_t halves = 1;          // matrices that share the tensor: 2 for gate and up
  std::int64_t half = 0;            // which of them
  Placement place = Placement::kRows;
  bool flat = false;  // experts are rows of a matrix, not a dimension of their own
};

/// A found side: hands out one expert's matrix.
class StackedTensor {
 public:
  /// The projection of expert `e`; no bytes are read.
  WeightSource expert(std::int64_t e) const;

 private:
  friend class StackFinder;
  /// A tensor of codes or scales with its units per logical matrix.
  struct Part {
    const Tensor* tensor = nullptr;
    std::string name;
    std::int64_t rows = 0, cols = 0;
  };
  Plane cut(const Part& part, std::int64_t expert) const;
  float scalar(const Part& part, std::int64_t expert) const;

  StackedSide side_;
  Scheme scheme_;
  formats::WeightLayout layout_;
  Part codes_, scales_, global_, input_;
};

/// Finds the side's tensors in the scheme's spelling and checks types and shapes; scales are not
/// looked at yet.
/// Errors: nothing is thrown; faults are noted in `reader` and nothing is returned.
std::optional<StackedTensor> find_stack(BlockReader& reader, const StackedSide& side,
                                        const Scheme& scheme);

/// Every spelling of `names` ("a|b") with `suffix` behind it.
std::string with_suffix(std::string_view names, std::string_view suffix);

}  // namespace switchyard::checkpoint
