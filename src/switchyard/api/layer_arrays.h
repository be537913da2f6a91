// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
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

/// One matrix of a caller's [E, rows, cols] array; fp32 is rounded to bf16, the rest is borrowed.
formats::Matrix borrow_matrix(const void* base, Dtype dtype, std::int64_t e, std::int64_t rows,
                              std::int64_t cols);
/// `count` values, none of null.
std::vector<float> copy_floats(const float* data, std::int64_t count);

}  // namespace switchyard
