// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tests/cases/allreduce_case.h"
#include "tests/cases/pairwise.h"
#include "tests/support/soak.h"

/// The matrix that every twin of the fused all-reduce is run over.
namespace switchyard::test {

inline constexpr ops::AllReduceStrategy kArStrategies[] = {ops::AllReduceStrategy::kOneShot,
                                                           ops::AllReduceStrategy::kTwoShot};
inline constexpr Dtype kArDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kFp16};
inline constexpr formats::ScaleLayout kArLayouts[] = {
    formats::ScaleLayout::kLinear, formats::ScaleLayout::k128x4, formats::ScaleLayout::k8x4};

/// Patterns that write all that the oracle's comparison reads, and the quantised forms of 6 and 7.
struct ArKind {
  ops::AllReduceFusionPattern pattern;
  ops::AllReduceQuant quant;
};
inline constexpr ArKind kArKinds[] = {
    {ops::AllReduceFusionPattern::kAllReduce, ops::AllReduceQuant::kNone},
    {ops::AllReduceFusionPattern::kARResidualRMSNorm, ops::AllReduceQuant::kNone},
    {ops::AllReduceFusionPattern::kARResidualRMSNormOutFP8Quant, ops::AllReduceQuant::kNone},
    {ops::AllReduceFusionPattern::kARResidualRMSNormOutFP4Quant, ops::AllReduceQuant::kNone},
    {ops::AllReduceFusionPattern::kARResidualRMSNormOutPerTokenGroupFP8PackedQuant,
     ops::AllReduceQuant::kNone},
    {ops::AllReduceFusionPattern::kARResidualRMSNormOutDynamicFP8Quant, ops::AllReduceQuant::kNone},
    {ops::AllReduceFusionPattern::kMoEReductionARResidualRMSNorm, ops::AllReduceQuant::kNone},
    {ops::AllReduceFusionPattern::kMoEReductionARResidualRMSNorm, ops::AllReduceQuant::kNvfp4},
    {ops::AllReduceFusionPattern::kMoEFinalizeARResidualRMSNorm, ops::AllReduceQuant::kNone},
    {ops::AllReduceFusionPattern::kMoEFinalizeARResidualRMSNorm, ops::AllReduceQuant::kNvfp4},
    {ops::AllReduceFusionPattern::kMoEFinalizeARResidualRMSNorm, ops::AllReduceQuant::kFp8Group},
    {ops::AllReduceFusionPattern::kMoEFinalizeARResidualRMSNorm, ops::AllReduceQuant::kFp8Token},
};

inline std::vector<std::int64_t> ar_hiddens() {
  return subset_or_full<std::vector<std::int64_t>>(
      {2, 64, 90, 256, 2880}, {2, 64, 90, 256, 2880, 5120, 6144, 7168, 8192, 16384});
}
/// Token counts, of which small ones are relative to the number of ranks.
inline std::vector<std::int64_t> ar_tokens(std::int64_t ranks) {
  return subset_or_full<std::vector<std::int64_t>>(
      {0, 1, ranks - 1, ranks, ranks + 1, 16, 33},
      {0, 1, ranks - 1, ranks, ranks + 1, 16, 33, 34, 67, 128, 129, 2048});
}

/// Element `level` of a list, around its end.
template <class T>
T pick(const std::vector<T>& from, int level) {
  return from[std::size_t(level) % from.size()];
}

/// The case of a row of ar_levels(); level 2 is the number of ranks less 1.
inline ArSpec ar_spec(const std::vector<int>& row) {
  const std::int64_t ranks = row[2] + 1;
  ArSpec s;
  s.pattern = kArKinds[row[0]].pattern;
  s.quant = kArKinds[row[0]].quant;
  s.dtype = kArDtypes[row[1]];
  s.ranks = ranks;
  s.tokens = pick(ar_tokens(ranks), row[3]);
  s.hidden = pick(ar_hiddens(), row[4]);
  s.payload = ArPayload(row[5]);
  s.strategy = kArStrategies[row[6]];
  s.layout = kArLayouts[row[7]];
  s.fp32_wire = row[8] == 1;
  s.legacy_rounding = row[8] == 2;
  s.shared = row[9] == 0;
  s.weights_in_t = row[9] == 1;
  s.factor = row[10] == 0 ? std::optional<float>() : row[10] == 1 ? 2.5f : 1.0f;
  s.weight_bias = float(row[10] % 2);
  return s;
}

// Tokens and width of the largest cases together would take minutes in double.
inline bool affordable(const ArSpec& s) {
  const std::int64_t limit = is_soak() ? 6'000'000 : 200'000;
  return s.tokens * s.hidden * s.ranks <= limit;
}

/// How many levels each dimension of the matrix has, for up to `ranks` ranks.
inline std::vector<int> ar_levels(int ranks) {
  return {12, 3, ranks, int(ar_tokens(2).size()), int(ar_hiddens().size()), 5, 2, 3, 3, 2, 3};
}

}  // namespace switchyard::test
