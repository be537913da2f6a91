// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "switchyard/layer/rank_layer.h"
#include "switchyard/layer/single_rank.h"

namespace switchyard::layer {

/// Rows that experts read, in the payload's dtype. Units: stride in bytes.
struct InputRows {
  const std::byte* data = nullptr;
  std::int64_t stride = 0;
  const std::byte* row(std::int64_t t) const { return data + t * stride; }
};

/// The parts of a forward's workspace, and what routing said.
struct RankLayer::Scratch {
  Parts parts;
  Routed routed;
  InputRows x;  // of this rank's own tokens: the hidden states, or what is in latent space
  std::span<float> sums;           // shares before their encoding, where the experts cannot encode
  std::span<std::byte> rows;       // of experts, where a caller finalizes them
  std::span<std::int32_t> index;   // of the same
  std::span<std::int32_t> placed;  // slots of the choices, where they are not the ids
  std::span<std::int32_t> local_ids;  // of a reduction
  std::span<float> local_weights;
  std::span<std::int32_t> counts;  // of a balanced layer: this rank's choices by expert
  // Of rows that are quantised before they are sent.
  std::span<std::byte> codes, scales;
  std::span<float> stage;                             // one row for each thread
  std::span<const std::byte*> code_rows, scale_rows;  // where the experts find them
};

/// Rows to run through this rank's experts, and where their shares go; strides in bytes.
struct RankLayer::Rows {
  std::int64_t count = 0;
  const void* hidden = nullptr;
  std::int64_t hidden_stride = 0;
  ops::FfnInputRows apart{};          // set: in place of hidden
  const std::int32_t* ids = nullptr;  // local
  const float* weights = nullptr;
  float factor = 1;
  const float* addend = nullptr;
  std::byte* shares = nullptr;
  std::int64_t share_stride = 0;
  void* unfinalised = nullptr;  // [count * k, H] of the payload's dtype, instead of shares
};

/// Finishes a token: zero experts, factor, shared expert, one rounding to the output. In latent
/// space it ends with the factor.
struct RankLayer::Finisher {
  InputRows x;
  Dtype x_dtype = Dtype::kBf16;
  std::int64_t width = 0;
  float factor = 1;
  const float* shared = nullptr;  // [tokens, width]
  const Routed* zero = nullptr;   // where choices of zero experts are added here
  std::int64_t num_experts = 0;
  void* out = nullptr;
  Dtype out_dtype = Dtype::kBf16;
  std::int64_t out_stride = 0;
  std::int64_t first = 0;  // the token that the next combine calls 0

  /// Element `h` of weight * x over the token's choices of zero experts, behind `sum`.
  float with_zero(float sum, std::int64_t token, std::int64_t h) const {
    for (std::int64_t j = 0; zero != nullptr && j < zero->width; ++j) {
      const std::size_t at = std::size_t(token * zero->width + j);
      if (zero->ids[at] >= num_experts)
        sum += zero->weights[at] * load_element(x_dtype, x.row(token), h);
    }
    return sum;
  }

  /// A comm::RowSink's row: finishes token first + number.
  static void row(void* self, std::int64_t number, const float* sum) {
    const auto& f = *static_cast<const Finisher*>(self);
    const std::int64_t token = f.first + number;
    const float* addend = f.shared != nullptr ? f.shared + token * f.width : nullptr;
    for (std::int64_t h = 0; h < f.width; ++h) {
      float value = f.with_zero(sum[h], token, h) * f.factor;
      if (addend != nullptr) value += addend[h];
      store_element(f.out_dtype, f.out, token * f.out_stride + h, value);
    }
  }
};

}  // namespace switchyard::layer
