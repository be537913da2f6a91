// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/checkpoint/tensor.h"

namespace switchyard::checkpoint {

/// A strided window over a mapped tensor, read as [rows, cols] units of one element (or one packed
/// byte).
///
/// Units:   strides in bytes; unit_bytes 1, 2 or 4; nothing is aligned.
struct Plane {
  const std::byte* base = nullptr;
  TensorType type = TensorType::kU8;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0, col_stride = 0;
  int unit_bytes = 1;

  /// Bytes of all units without gaps.
  std::int64_t bytes() const { return rows * cols * unit_bytes; }
  /// True when the units lie in the file as a row-major matrix, aligned to their size.
  bool borrowable() const;
};

/// A dense row-major plane over `t`, from byte `offset` on.
Plane dense_plane(const Tensor& t, std::int64_t offset, std::int64_t rows, std::int64_t cols);

/// One projection of one expert, found and checked but not yet read.
struct WeightSource {
  std::string name, scale_name;         // of the tensors that hold codes and block scales
  std::string global_name, input_name;  // of those that hold the second-level scales, if any
  formats::WeightLayout layout;
  std::int64_t rows = 0, cols = 0;  // logical [out, in]
  Plane codes, scales;
  float global_scale = 1;
  std::optional<float> input_scale;

  /// The matrix: borrowed where the stored form is canonical, else copied (de-interleaved,
  /// transposed, realigned, F32 rounded to bf16, scales widened to fp32). `owner` keeps the mapping
  /// alive through the matrix's storage.
  formats::Matrix read(const std::shared_ptr<const void>& owner) const;
  /// Stored bytes of codes, scales and global scale in canonical form.
  std::int64_t stored_bytes() const { return layout.stored_bytes(rows, cols); }
};

/// A strided run of bias elements.
struct BiasSource {
  const std::byte* base = nullptr;  // null: zeros
  TensorType type = TensorType::kF32;
  std::int64_t count = 0;  // 0: no bias
  std::int64_t step = 1;   // elements

  /// The values as fp32; exact.
  std::vector<float> read() const;
};

/// All that one expert is made of; `gate` is absent for kinds with one projection.
struct ExpertSources {
  std::optional<WeightSource> gate;
  WeightSource up, down;
  BiasSource gate_bias, up_bias, down_bias;

  /// Materialises this one expert.
  ExpertWeights read(const std::shared_ptr<const void>& owner) const;
};

/// What the block scales of one matrix look like.
struct ScaleStats {
  std::int64_t count = 0, zeros = 0, bad = 0;  // bad: NaN, infinite or with the sign bit set
  double min = 0, max = 0;                     // of the good ones; 0 when there is none
  double first_bad = 0;

  /// Joins another matrix's figures.
  void merge(const ScaleStats& other);
};

/// Scans the block scales of `w`; all zeros for a matrix without scales.
ScaleStats scan_scales(const WeightSource& w);

}  // namespace switchyard::checkpoint
