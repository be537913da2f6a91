// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "switchyard/ops/allreduce_norm/allreduce_norm.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm_ref.h"

namespace switchyard::test {

/// What the rows hold. kSpecial mixes in -0, subnormals of both signs, infinity and NaN.
enum class ArPayload : std::uint8_t { kNormal, kLarge, kTiny, kZeros, kSpecial };

/// One fused all-reduce of all ranks, from which each rank makes its own data.
struct ArSpec {
  ops::AllReduceFusionPattern pattern = ops::AllReduceFusionPattern::kARResidualRMSNorm;
  Dtype dtype = Dtype::kBf16;
  std::int64_t ranks = 2, tokens = 5, hidden = 64;
  ops::AllReduceStrategy strategy = ops::AllReduceStrategy::kOneShot;
  bool fp32_wire = false, legacy_rounding = false;
  // Of patterns 6 and 7.
  ops::AllReduceQuant quant = ops::AllReduceQuant::kNone;
  std::int64_t experts = 3, top_k = 3;
  std::optional<float> factor = 2.5f;
  bool shared = true, weights = true, weights_in_t = false, all_dropped = false;
  // Of the epilogue.
  formats::ScaleLayout layout = formats::ScaleLayout::k128x4;
  std::int64_t group = 32;
  float decode_scale = 0.0131f, encode_scale = 90, eps = 1e-6f, weight_bias = 0;
  bool want_output = true, want_residual = true, want_norm = true;  // where the pattern leaves it
  ArPayload payload = ArPayload::kNormal;
  std::uint64_t seed = 1;

  /// The quantised output that there is.
  ops::AllReduceQuant effective_quant() const;
  /// For messages.
  std::string str() const;
};

/// An output with a canary behind it.
struct ArOutput {
  std::vector<std::uint8_t> bytes;  // of the output, then the canary
  std::size_t size = 0;

  void make(std::size_t size_in_bytes);
  void poison();
  bool canary_intact() const;
  std::vector<std::uint8_t> contents() const {
    return {bytes.begin(), bytes.begin() + std::ptrdiff_t(size)};
  }
  void* data() { return bytes.data(); }
};

/// One rank's inputs and outputs: distinct values for every rank, row, expert and column.
class ArData {
 public:
  ArData(const ArSpec& spec, int rank);
  /// The call, with pointers into this.
  ops::AllReduceCall call();
  /// Overwrites every output.
  void poison();
  /// Everything that was written, one after another.
  std::vector<std::uint8_t> outputs() const;
  bool canaries_intact() const;

  ArOutput output, residual_out, norm_out, quant_out, scale_out;
  std::vector<std::uint8_t> input, residual, gamma, shared, rows, weights_t;
  std::vector<float> weights;
  std::vector<std::int32_t> index;

 private:
  void make_experts(int rank);
  void make_outputs();
  void fill(std::vector<std::uint8_t>& out, std::int64_t rows, std::uint64_t stream);

  ArSpec spec_;
};

/// How far what a rank wrote is from the oracle's; empty where it is near enough.
///
/// Residual and norm: 1 ulp of T (an element may be further off, by one ulp of the largest addend,
/// in at most one of 1000); f32: counted roundings. The norm is held against the oracle's of the
/// residual rows that the rank wrote, the codes against the oracle's of its norms.
std::string compare_with_oracle(const ArSpec& spec, std::span<const ops::AllReduceCall> ranks,
                                ArData& mine);
/// The calls of several ranks.
std::vector<ops::AllReduceCall> calls_of(std::vector<ArData>& ranks);

}  // namespace switchyard::test
