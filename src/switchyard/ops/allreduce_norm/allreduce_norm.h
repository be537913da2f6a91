// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "switchyard/base/device.h"
#include "switchyard/base/dtype.h"
#include "switchyard/core/eligibility.h"
#include "switchyard/formats/scale_layout.h"

/// The fused all-reduce's vocabulary: what one rank brings, what it wants written.
///
/// All pointers lie on the device that runs the twin; rows are contiguous. T is CallShape::dtype.
namespace switchyard::ops {

/// What is fused behind the sum over the ranks; names and values as callers of `allreduce_fusion`
/// know them.
enum class AllReduceFusionPattern : std::uint8_t {
  kAllReduce = 0,
  kARResidualRMSNorm = 1,
  kARResidualRMSNormFP8Quant = 2,
  kARResidualRMSNormFP4Quant = 3,
  kARResidualRMSNormOutFP8Quant = 4,
  kARResidualRMSNormOutFP4Quant = 5,
  kMoEReductionARResidualRMSNorm = 6,
  kMoEFinalizeARResidualRMSNorm = 7,
  kARResidualRMSNormPerTokenGroupFP8PackedQuant = 8,
  kARResidualRMSNormOutPerTokenGroupFP8PackedQuant = 9,
  kARResidualRMSNormDynamicFP8Quant = 10,
  kARResidualRMSNormOutDynamicFP8Quant = 11,
};
/// How many patterns there are; their values are 0 .. kNumAllReducePatterns - 1.
inline constexpr int kNumAllReducePatterns = 12;

/// The enumerator's name, e.g. "kARResidualRMSNorm".
std::string_view to_string(AllReduceFusionPattern p);
/// The pattern of a value. Errors: UsageError outside 0..11.
AllReduceFusionPattern to_allreduce_pattern(std::int64_t value);

/// How the rows travel. All strategies give the same bits.
enum class AllReduceStrategy : std::uint8_t {
  kAuto,     // chosen from the ranks, tokens and width, which are the same on every rank
  kOneShot,  // every rank finishes every row
  kTwoShot,  // the row's owner, rank m mod N, sums it for all
};
/// "auto", "one_shot" or "two_shot".
std::string_view to_string(AllReduceStrategy s);
/// Inverse of to_string(). Errors: UsageError on any other word.
AllReduceStrategy to_allreduce_strategy(std::string_view s);

/// A scale that values are divided by when they are quantised: what decoding multiplies by, e.g.
/// amax / 448.
struct DecodeScale {
  const float* value = nullptr;  // one, finite, > 0
};
/// A scale that values are multiplied by when they are quantised, e.g. 2688 / amax.
struct EncodeScale {
  const float* value = nullptr;  // one, finite, > 0
};

/// Which quantised output there is.
enum class AllReduceQuant : std::uint8_t { kNone, kFp8Static, kNvfp4, kFp8Group, kFp8Token };
/// "none", "fp8", "nvfp4", "fp8_group" or "fp8_token".
std::string_view to_string(AllReduceQuant q);
/// Inverse of to_string(). Errors: UsageError on any other word.
AllReduceQuant to_allreduce_quant(std::string_view s);

/// e4m3(n * (1 / scale)), the reciprocal taken once.
struct Fp8StaticOut {
  DecodeScale scale;
  std::uint8_t* quant_out = nullptr;  // [tokens, hidden]
};
/// E2M1 codes, the even column in the low nibble, with an E4M3 scale per 16.
struct Nvfp4Out {
  EncodeScale scale;
  std::uint8_t* quant_out = nullptr;                           // [tokens, hidden / 2]
  std::uint8_t* scale_out = nullptr;                           // padded_scale_bytes(layout, ..)
  formats::ScaleLayout layout = formats::ScaleLayout::k128x4;  // padding is written as 0
};
/// E4M3 codes with a power-of-two scale per `group` columns, packed four to an int32 and
/// column-major: group g of token m at byte ((g / 4) * roundup(tokens, 4) + m) * 4 + g % 4.
struct Fp8GroupOut {
  std::int64_t group = 128;
  std::uint8_t* quant_out = nullptr;  // [tokens, hidden]
  std::uint8_t* scale_out = nullptr;  // group_scale_bytes(tokens, hidden, group); padding is 0
};
/// E4M3 codes with one fp32 decode scale per token.
struct Fp8TokenOut {
  std::uint8_t* quant_out = nullptr;  // [tokens, hidden]
  float* scale_out = nullptr;         // [tokens]
};
/// The quantised output, if any; quantised from the rounded norm.
using QuantOut = std::variant<std::monostate, Fp8StaticOut, Nvfp4Out, Fp8GroupOut, Fp8TokenOut>;

/// Bytes of Fp8GroupOut::scale_out: whole int32 columns of roundup(tokens, 4), but for the last
/// one, which ends with the last token.
constexpr std::int64_t group_scale_bytes(std::int64_t tokens, std::int64_t hidden,
                                         std::int64_t group) {
  const std::int64_t columns = ((hidden + group - 1) / group + 3) / 4;
  return tokens == 0 ? 0 : ((columns - 1) * ((tokens + 3) / 4 * 4) + tokens) * 4;
}

/// What every pattern is told; equal on all ranks.
struct CallShape {
  std::int64_t tokens = 0, hidden = 0;  // M may be 0
  Dtype dtype = Dtype::kBf16;
  AllReduceStrategy strategy = AllReduceStrategy::kAuto;
  bool fp32_wire = false;        // contributions travel unrounded
  bool legacy_rounding = false;  // T after every addition, as the ancestors' kernels have it

  /// Errors: UsageError with field, value and limit.
  void check() const;
};

/// Residual, RMSNorm and quantisation behind the sum; any subset of the outputs, at least one.
///
/// Shapes:  residual_in, residual_out, norm_out [tokens, hidden] and rms_gamma [hidden] of T.
///          residual_out may be residual_in. residual_in is the same on all ranks.
struct NormArgs {
  const void* residual_in = nullptr;
  const void* rms_gamma = nullptr;
  float rms_eps = 1e-6f;
  float weight_bias = 0;  // 1: the weight is 1 + gamma
  void* residual_out = nullptr;
  void* norm_out = nullptr;
  QuantOut quant{};

  /// Which quantised output is asked for.
  AllReduceQuant quant_kind() const { return AllReduceQuant(quant.index()); }
  /// Whether anything behind the residual is wanted.
  bool wants_norm() const { return norm_out != nullptr || quant_kind() != AllReduceQuant::kNone; }
  /// Errors: UsageError with field, value and limit.
  void check(const CallShape& shape) const;
  /// Checks the scale that a quantiser reads. Host memory only. Errors: UsageError.
  void check_values() const;
};

/// A contribution that is there already: input [tokens, hidden] of T.
struct PlainSource {
  const void* input = nullptr;
  /// Errors: UsageError with field, value and limit.
  void check(const CallShape& shape) const;
};

/// Every local expert's row for every token, summed in expert order; scale 0 skips the row,
/// whatever it holds.
///
/// Shapes:  active_experts_token_input [num_experts, tokens, hidden] of T, expert-major;
///          scale_input [num_experts, tokens]; token_input [tokens, hidden] of T or null: this
///          rank's share of what is added after the factor.
struct MoeReductionSource {
  const void* active_experts_token_input = nullptr;
  const float* scale_input = nullptr;
  std::int64_t num_experts = 0;
  const void* token_input = nullptr;
  std::optional<float> routed_scaling_factor{};  // none: 1
  /// Errors: UsageError with field, value and limit.
  void check(const CallShape& shape) const;
};

/// Whether routing weights hold the routed scaling factor already.
enum class RoutedFactor : std::uint8_t { kPending, kIncluded };

/// Permuted expert rows, gathered and weighted in choice order.
///
/// Shapes:  rows [num_rows, hidden] of T; expanded_idx_to_permuted_idx [tokens, top_k], -1: not on
///          this rank; expert_scale_factor [tokens, top_k] of scale_dtype or null (all 1);
///          shared_expert_output [tokens, hidden] of T or null: this rank's share, never scaled.
struct MoeFinalizeSource {
  const void* rows = nullptr;
  std::int64_t num_rows = 0;
  const std::int32_t* expanded_idx_to_permuted_idx = nullptr;
  std::int64_t top_k = 0;
  const void* expert_scale_factor = nullptr;
  Dtype scale_dtype = Dtype::kF32;  // kF32 or T
  RoutedFactor scale_factor_state = RoutedFactor::kPending;
  std::optional<float> routed_scaling_factor{};  // none: 1
  const void* shared_expert_output = nullptr;
  /// Errors: UsageError with field, value and limit.
  void check(const CallShape& shape) const;
  /// Checks the index. Host memory only. Errors: UsageError with token, choice, value and limit.
  void check_values(const CallShape& shape) const;
};

/// One rank's part in one fused all-reduce, of any family; the struct that travels to the kernels.
///
/// Outputs may be the input rows of a PlainSource. `output` [tokens, hidden] of T is the plain sum.
struct AllReduceCall {
  CallShape shape;
  std::variant<PlainSource, MoeReductionSource, MoeFinalizeSource> source;
  void* output = nullptr;
  std::optional<NormArgs> norm{};

  /// What this is among the known patterns.
  AllReduceFusionPattern pattern() const;
  /// Errors: UsageError with field, value and limit.
  void check() const;
  /// Checks what lies in host memory: index and scales. Errors: UsageError.
  void check_values() const;
};

/// Pattern 0.
struct AllReduceArgs {
  CallShape shape;
  PlainSource source;
  void* output = nullptr;
  AllReduceCall call() const;
};
/// Patterns 1-5 and 8-11: the quantised output and whether norm_out is given tell which.
struct ARResidualRMSNormArgs {
  CallShape shape;
  PlainSource source;
  NormArgs norm;
  AllReduceCall call() const;
};
/// Pattern 6; `output` (the ancestors' moe_allreduce_out) is one more of the optional outputs.
struct MoEReductionArgs {
  CallShape shape;
  MoeReductionSource source;
  void* output = nullptr;
  NormArgs norm;
  AllReduceCall call() const;
};
/// Pattern 7.
struct MoEFinalizeArgs {
  CallShape shape;
  MoeFinalizeSource source;
  NormArgs norm;
  AllReduceCall call() const;
};

/// What supports() is asked.
struct AllReduceQuestion {
  AllReduceFusionPattern pattern = AllReduceFusionPattern::kAllReduce;
  Dtype dtype = Dtype::kBf16;
  std::int64_t ranks = 1, hidden = 0;
  formats::ScaleLayout layout = formats::ScaleLayout::k128x4;
  AllReduceQuant quant = AllReduceQuant::kNone;  // of patterns 6 and 7; of the others, their own
  Device device = Device::kCpu;
};
/// The quantised output that a pattern stands for; none for 0, 1, 6 and 7, of which the last two
/// take any.
AllReduceQuant quant_of(AllReduceFusionPattern p);
/// Whether a pattern can run, asked before anything is created. Pure.
Eligibility supports(const AllReduceQuestion& question);

/// Most ranks that one fused all-reduce joins.
inline constexpr std::int64_t kMaxAllReduceRanks = 256;

}  // namespace switchyard::ops
