// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "switchyard/base/dtype.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/formats/matrix.h"
#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// How a token's row travels to the experts: as FC1's quantiser leaves it, or as it is.
struct Payload {
  /// The quantiser that its sender runs; kF32 for a row that travels as it is.
  formats::ActivationQuant quant = formats::ActivationQuant::kF32;
  Dtype dtype = Dtype::kBf16;  // of a row that travels as it is
  std::int64_t width = 0;      // values of a row
  std::int64_t row_bytes = 0, scale_bytes = 0;
  std::string why_not;  // why its sender does not quantise; empty when it does

  bool quantised() const { return why_not.empty(); }
  /// The dtype, or the quantiser.
  std::string text() const;
};

/// The payload of a layer's part. `kept` says why its rows travel as they are whatever they are
/// for; empty: they need not.
/// Quantising at the sender is the same arithmetic on the same row and scales as at the receiver,
/// so it changes no bit; it is left out where the leaf's quantiser reads more than the row.
Payload payload_of(const Layer& part, std::string_view kept);

/// Rows to be sent.
///
/// Shapes:  x [rows] of payload.width values, x_stride bytes apart; codes [rows, row_bytes]; scales
///          [rows, scale_bytes], both with strides in bytes; stage [pool size, width].
struct EncodeRowsArgs {
  const Payload* payload = nullptr;
  std::int64_t rows = 0;
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  float static_scale = 1;
  std::byte* codes = nullptr;
  std::int64_t code_stride = 0;
  std::byte* scales = nullptr;
  std::int64_t scale_stride = 0;
  std::span<float> stage;
  ThreadPool* pool = nullptr;
};

/// Writes the rows in the payload's form; one that travels as it is is copied. Allocates nothing.
void encode_rows(const EncodeRowsArgs& args);

}  // namespace switchyard::layer
