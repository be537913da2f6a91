// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "switchyard/api/moe_layer.h"
#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/formats/matrix.h"

namespace switchyard {

/// A caller's arrays as canonical weights. They are read while this lives, and no longer: whoever
/// asks the weights for an expert later finds an InternalError.
class BorrowedArrays {
 public:
  /// Borrows what outlives it.
  explicit BorrowedArrays(const LayerArrays& arrays)
      : arrays_(std::make_shared<const LayerArrays*>(&arrays)) {}
  ~BorrowedArrays() { *arrays_ = nullptr; }
  BorrowedArrays(const BorrowedArrays&) = delete;
  BorrowedArrays& operator=(const BorrowedArrays&) = delete;

  /// Errors: UsageError for arrays that their problem does not have, or has and they lack.
  checkpoint::LayerWeights weights() const;

 private:
  std::shared_ptr<const LayerArrays*> arrays_;
};

/// A caller's [E, rows, cols] array.
struct NamedArray {
  std::string_view name;
  const void* base;
  Dtype dtype;
};
/// One matrix of it; fp32 is rounded to bf16, the rest is borrowed. Errors: UsageError for an
/// element that is not finite, as for a checkpoint's.
formats::Matrix borrow_matrix(const NamedArray& array, std::int64_t e, std::int64_t rows,
                              std::int64_t cols);
/// `count` values, none of null.
std::vector<float> copy_floats(const float* data, std::int64_t count);

}  // namespace switchyard
