// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/ops/activation/activation.h"
#include "switchyard/ops/activation/activation_math.h"

/// The loops of the CPU twins, included once by each instruction set's source, which gives them its
/// own local copies. Contraction is off, so every width gives the same bits.
namespace switchyard::ops {
namespace {

/// A constant trip count lets the compiler vectorise the formula without a scalar tail.
constexpr std::int64_t kActivationBlock = 16;

struct RowPointers {
  const float* gate;  // null for kinds with one projection
  const float* up;
  float* out;
};

template <class Formula>
void run_block(const ActivationParams& p, const float* gate, const float* up, float* out) {
  float y[kActivationBlock];
  for (std::int64_t i = 0; i < kActivationBlock; ++i) y[i] = Formula::eval(p, gate[i], up[i]);
  for (std::int64_t i = 0; i < kActivationBlock; ++i) out[i] = y[i];
}

template <class Formula>
void run_row(ActivationParams p, const RowPointers& row, std::int64_t inter) {
  const float* gate = row.gate ? row.gate : row.up;
  const std::int64_t whole = inter / kActivationBlock * kActivationBlock, rest = inter - whole;
  for (std::int64_t c = 0; c < whole; c += kActivationBlock)
    run_block<Formula>(p, gate + c, row.up + c, row.out + c);
  if (rest == 0) return;
  float g[kActivationBlock] = {}, u[kActivationBlock] = {}, y[kActivationBlock];
  for (std::int64_t i = 0; i < rest; ++i) g[i] = gate[whole + i], u[i] = row.up[whole + i];
  run_block<Formula>(p, g, u, y);
  for (std::int64_t i = 0; i < rest; ++i) row.out[whole + i] = y[i];
}

template <class Formula>
void run_rows(const ActivationArgs& a, std::int64_t row_begin, std::int64_t row_end) {
  const bool gated = is_gated(a.kind.type);
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const std::int32_t id = a.expert_ids != nullptr ? a.expert_ids[r] : 0;
    float* out = a.out.data + r * a.out.stride;
    if (id < 0) {
      for (std::int64_t c = 0; c < a.out.cols; ++c) out[c] = 0;
      continue;
    }
    const RowPointers row{gated ? a.gate.data + r * a.gate.stride : nullptr,
                          a.up.data + r * a.up.stride, out};
    run_row<Formula>(a.params[a.num_params == 1 ? 0 : id], row, a.out.cols);
  }
}

void run_activation(const ActivationArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  with_formula(args.kind,
               [&](auto formula) { run_rows<decltype(formula)>(args, row_begin, row_end); });
}

}  // namespace
}  // namespace switchyard::ops
