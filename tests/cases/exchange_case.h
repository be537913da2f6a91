// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "switchyard/comm/factory.h"

namespace switchyard::test {

/// Bytes of a token's hidden states and scales, as a format would send them.
struct Payload {
  std::int64_t row_bytes, scale_bytes;
};
enum class PayloadKind { kBf16, kFp8Block, kFp8Tensor, kMxfp8, kNvfp4 };
inline constexpr PayloadKind kPayloadKinds[] = {PayloadKind::kBf16, PayloadKind::kFp8Block,
                                                PayloadKind::kFp8Tensor, PayloadKind::kMxfp8,
                                                PayloadKind::kNvfp4};
Payload payload_of(PayloadKind kind, std::int64_t hidden);

inline constexpr comm::Wire kWires[] = {comm::Wire::kBf16, comm::Wire::kFp8, comm::Wire::kNvfp4,
                                        comm::Wire::kF32, comm::Wire::kFp16};

/// A shape that holds every payload and wire form at that width.
comm::ExchangeShape exchange_shape(std::int64_t ep, std::int64_t slots, std::int64_t top_k,
                                   std::int64_t capacity, std::int64_t hidden);

/// A shape that holds just this payload and wire form.
comm::ExchangeShape exchange_shape(std::int64_t ep, std::int64_t slots, std::int64_t top_k,
                                   std::int64_t capacity, std::int64_t hidden, PayloadKind kind,
                                   comm::Wire wire);

/// One rank's tokens of one round; every byte depends on rank, token, position and round.
struct ExchangeInput {
  ExchangeInput(const comm::ExchangeShape& shape, int rank, std::int64_t tokens, int round,
                PayloadKind kind, comm::Wire wire);
  /// Views of this input; strides are longer than rows.
  comm::DispatchArgs args() const;

  comm::ExchangeShape shape;
  Payload payload;
  comm::Wire wire;
  std::int64_t tokens;
  std::vector<std::byte> hidden, scales;
  std::vector<std::int32_t> ids;  // distinct within a token; some are -1
  std::vector<float> weights;
  std::vector<std::int32_t> stats;
};

/// The statistics that `rank` sends in `round`.
std::vector<std::int32_t> stats_of(const comm::ExchangeShape& shape, int rank, int round);

/// Plays the experts of `rank`: writes the share of every received row, and NaN where a row has
/// none.
void serve(const comm::Received& received, const comm::ExchangeShape& shape,
           const comm::Contract& contract, Payload payload, int rank);

/// The contract reference: plain loops over the rank's own tokens, the same experts, and the
/// contract's sums in their order, with one rounding to the wire. Shapes: [tokens, hidden].
std::vector<float> expected_sums(const ExchangeInput& input, const comm::Contract& contract);

/// Collects what a combine gives, dense [tokens, hidden], starting from NaN.
struct SumCollector {
  SumCollector(std::int64_t tokens, std::int64_t hidden);
  comm::RowSink sink();
  std::int64_t hidden;
  std::int64_t rows = 0;
  std::vector<float> sums;
};

}  // namespace switchyard::test
