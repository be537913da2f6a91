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

/// One rank's tokens of one round; every byte depends on rank, token, position and round. The rows
/// of kBf16 are values from 2^-7 to 2^2 of either sign.
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

/// The tokens of `plain`, whose rows are bf16, with their rows as the quantiser of `kind` leaves
/// them: what a sender that quantises dispatches, and what the experts read in either case.
ExchangeInput quantised(const ExchangeInput& plain, PayloadKind kind);

/// Bf16 rows that arrived, quantised by their receiver.
class Requantised {
 public:
  /// `in` with its rows in the form of `kind`; hidden values a row.
  Requantised(const comm::Received& in, PayloadKind kind, std::int64_t hidden);
  /// It; valid as long as this object, and its shares go to where those of `in` go.
  const comm::Received& received() const { return received_; }

 private:
  std::vector<std::byte> hidden_, scales_;
  comm::Received received_;
};

/// The statistics that `rank` sends in `round`.
std::vector<std::int32_t> stats_of(const comm::ExchangeShape& shape, int rank, int round);

/// Plays the experts of `rank`: writes the share of every received row, and NaN where a row has
/// none.
void serve(const comm::Received& received, const comm::ExchangeShape& shape,
           const comm::Contract& contract, Payload payload, int rank);

/// Ways to miss the contract, for controls: nothing is rounded to the wire, or ranks (choices,
/// where the combine weighs) are added from the last to the first.
struct Slip {
  bool unrounded = false, reversed = false;
};

/// The contract reference: plain loops over the rank's own tokens, the same experts, and the
/// contract's sums in their order, with one rounding to the wire. Shapes: [tokens, hidden].
std::vector<float> expected_sums(const ExchangeInput& input, const comm::Contract& contract,
                                 Slip slip = {});

/// The same sums in double, with no rounding of shares.
std::vector<double> exact_sums(const ExchangeInput& input);

/// Collects what a combine gives, dense [tokens, hidden], starting from NaN.
struct SumCollector {
  SumCollector(std::int64_t tokens, std::int64_t hidden);
  comm::RowSink sink();
  std::int64_t hidden;
  std::int64_t rows = 0;
  std::vector<float> sums;
};

}  // namespace switchyard::test
