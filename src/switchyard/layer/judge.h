// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// Share of the second quantiser's codes that may differ from the oracle's, where sums are fp32.
inline constexpr double kCodeFlips = 1e-4;
/// The same behind the tensor cores' sums of E4M3, which are off by some 1e-4 of a row: a move of
/// that size takes one to three of a hundred codes over an edge, the fine ones of small values.
inline constexpr double kE4m3Flips = 0.032;

/// The error budgets of one quantiser, in rel L2.
struct Budgets {
  double oracle = 0;  // against the oracle with the same requantisation points
  double output = 0;  // against an output computed with unquantised activations
  double flips = kCodeFlips;
};

/// The budgets that hold on the CPU. Source: DESIGN rule 12.
Budgets budgets_of(formats::ActivationQuant quant);
/// Those of the quantiser and the multiplications that `layer` really runs.
Budgets budgets_of(const Layer& layer);

/// ||y - r|| / ||r||; 0/0 counts as 0, a NaN anywhere gives NaN.
double rel_l2(const double* y, const double* r, std::size_t size);
/// The same where each difference up to `slack` counts as none and larger ones count without it.
double rel_l2(const double* y, const double* r, std::size_t size, double slack);
/// Half the distance of subnormal neighbours: what rounding to `dtype` may cost however small the
/// value is, and no relative budget covers.
double rounding_slack(Dtype dtype);

/// Tokens to judge a layer on.
///
/// Shapes:  hidden [tokens, H] fp32 dense; rounded to the layer's dtype before use. logits may be
/// empty.
struct JudgeArgs {
  std::int64_t tokens = 0;
  const float* hidden = nullptr;
  const std::int64_t* token_ids = nullptr;
  Span2d<const float> logits;
};

/// The leaf's output and how far it is from the oracle's.
///
/// Shapes:  out [tokens, H], the leaf's own values; ids [tokens, k].
struct Judgement {
  std::vector<double> out;
  std::vector<std::int32_t> ids;
  double rel_l2_oracle = 0;
  std::int64_t ids_differing = 0, ids_near_tie = 0;
  std::int64_t codes = 0, codes_differing = 0;  // of both second quantisers, shared one included
  std::int64_t worst_row = 0;                   // the token that is farthest from the oracle,
  double worst_row_rel_l2 = 0;                  // and how far
  // The oracle's own values, taken in double, are beyond fp32 or the output's dtype: no leaf can
  // hold them.
  bool overflows = false;

  /// Within the budget, no id wrong, few enough code flips.
  bool ok(const Budgets& budgets) const;
};

/// Whether a quantiser has codes, which can flip.
bool requantises(formats::ActivationQuant quant);

/// How far apart values of one code lie where sums are fp32, as their scales do.
inline constexpr double kSameCode = 1e-3;

/// The same for `bank` of `layer`, whose sums may be the tensor cores' of E4M3.
double same_code(const Layer& layer, const ExpertBank& bank);

/// The second quantiser's values of one bank, the leaf's and the oracle's.
///
/// Shapes:  leaf, oracle [rows, width].
/// Units:   `same` in parts of a value.
struct Codes {
  const std::vector<double>& leaf;
  const std::vector<double>& oracle;
  std::int64_t width = 0;
  double same = kSameCode;
};

/// Marks row `r` if any of its codes differ; returns the number of differing codes.
std::int64_t find_flips(const Codes& codes, std::size_t r, std::vector<std::uint8_t>& flipped);

/// Runs the layer and the oracle on the same tokens. Tokens with a flipped code of a second
/// quantiser (the routed experts', the shared one's) are compared with the oracle fed the leaf's
/// own codes, and counted. Differences up to rounding_slack() of the output's dtype count as none.
Judgement judge(const Layer& layer, const JudgeArgs& args);

}  // namespace switchyard::layer
