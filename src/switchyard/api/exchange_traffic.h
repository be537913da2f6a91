// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "switchyard/base/host_buffer.h"
#include "switchyard/comm/exchange.h"

namespace switchyard {

/// In which form a token's hidden states travel to the experts.
enum class ExchangePayload : std::uint8_t {
  kBf16,   // 2 bytes a value
  kFp8,    // 1 byte, one fp32 scale per 128
  kMxfp8,  // 1 byte, one scale byte per 32
  kNvfp4   // half a byte, one scale byte per 16
};
/// Which experts the tokens of a rank choose.
enum class TrafficPattern : std::uint8_t {
  kBalanced,  // any, uniformly
  kHotspot,   // the first half of a token's choices lie on rank 0, the rest are uniform
  kLocal,     // those of their own rank, as far as it has enough
  kRing       // those of the next rank, likewise
};

/// "bf16", "fp8", "mxfp8" or "nvfp4".
std::string_view to_string(ExchangePayload p);
/// Inverse of to_string(). Errors: UsageError on any other word.
ExchangePayload to_exchange_payload(std::string_view s);
/// "balanced", "hotspot", "local" or "ring".
std::string_view to_string(TrafficPattern p);
/// Inverse of to_string(). Errors: UsageError on any other word.
TrafficPattern to_traffic_pattern(std::string_view s);

namespace api {

/// What the tokens of an exchange benchmark look like.
struct TrafficSpec {
  comm::ExchangeShape shape;  // without tp
  ExchangePayload payload = ExchangePayload::kBf16;
  TrafficPattern pattern = TrafficPattern::kBalanced;
  comm::Wire wire = comm::Wire::kBf16;
  std::uint64_t seed = 1;
};

/// Sizes of `shape` that hold just this wire form, and the payload as a layer's ranks quantise it.
void fit_shape(TrafficSpec& spec);

/// One rank's tokens, the experts that it plays, and what its tokens must come back as.
///
/// Up to 16 tokens a rank are checked: their shares are computed by experts that read every byte of
/// the row, those of all other tokens are one constant row.
class Traffic {
 public:
  /// `tokens` = shape.capacity.
  Traffic(const TrafficSpec& spec, int rank);

  /// Views of the tokens.
  comm::DispatchArgs args() const;
  /// Writes the share of every received row.
  void serve(const comm::Received& received, const comm::Contract& contract) const;
  /// Rows that this rank's tokens need elsewhere and here: one per rank that holds a choice, or one
  /// per choice where the combine weighs.
  std::int64_t rows_needed(const comm::Contract& contract) const;
  /// Tokens that are checked.
  std::int64_t checked() const;
  /// How many of the checked tokens' sums, [tokens, hidden] as a combine gave them, are not the
  /// contract reference's bit for bit.
  std::int64_t wrong(const std::vector<float>& sums, const comm::Contract& contract) const;

 private:
  bool is_checked(std::int64_t token) const { return token % stride_ == 0; }
  void expert_row(const std::byte* hidden, const std::byte* scales, std::int64_t slot,
                  float* out) const;
  void expected(std::int64_t token, const comm::Contract& contract, float* sum) const;

  TrafficSpec spec_;
  int rank_;
  std::int64_t tokens_, stride_;
  HostBuffer hidden_, scales_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
};

}  // namespace api
}  // namespace switchyard
