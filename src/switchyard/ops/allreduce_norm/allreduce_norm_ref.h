// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

namespace switchyard::ops {

/// `x` rounded once to `t`, nearest even, with gradual underflow and overflow to infinity.
double round_to(Dtype t, double x);

/// The oracle's rows, in double, each rounded to T where the contract rounds.
///
/// Shapes:  all [tokens, hidden]; residual and norm are empty for kAllReduce.
struct AllReduceReference {
  std::vector<double> sum;  // over the ranks, before its rounding (legacy: of T)
  std::vector<double> residual, norm;
  // Magnitudes of all that was added, which is what errors are relative to.
  std::vector<double> sum_size, residual_size;
};

/// The oracle for all ranks' calls: plain loops in double over the contributions, each rounded to T
/// where there are several ranks. Under legacy_rounding the steps are those of T's arithmetic.
///
/// Residual, gamma and constants are rank 0's. `given_residual` [tokens, hidden], when not null,
/// stands for the residual rows that the norm is taken of.
/// Errors:  UsageError as AllReduceCall::check() and check_values().
AllReduceReference allreduce_norm_ref(std::span<const AllReduceCall> ranks,
                                      const std::vector<double>* given_residual = nullptr);

/// A quantised output before and after its encoding, in linear order.
///
/// Shapes:  scale_values, scales [tokens, blocks]; values, decoded [tokens, hidden].
struct QuantReference {
  std::int64_t blocks = 0;           // per token; 0: no scales
  std::vector<double> scale_values;  // exact, before encoding
  std::vector<double> scales;        // what decoding multiplies by (nvfp4: before 1 / g)
  std::vector<double> values;        // exact, before encoding
  std::vector<double> decoded;       // of the nearest code
};

/// The oracle's quantiser over norms [tokens, hidden] of T. `given_scales`, when not null, stands
/// for QuantReference::scales.
QuantReference quantise_norm_ref(const AllReduceCall& call, const std::vector<double>& norm,
                                 const std::vector<double>* given_scales = nullptr);

/// What the oracle's codes stand for.
///
/// Shapes:  [tokens, hidden].
std::vector<double> dequantise(const AllReduceCall& call, const QuantReference& quant);

}  // namespace switchyard::ops
