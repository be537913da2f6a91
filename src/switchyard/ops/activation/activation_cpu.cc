// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "switchyard/ops/activation/activation.h"
#include "switchyard/ops/activation/activation_math.h"

namespace switchyard::ops {
namespace {

/// A constant trip count lets the compiler vectorise the formula without a scalar tail.
constexpr std::int64_t kBlock = 16;

struct RowPointers {
  const float* gate;  // null for kinds with one projection
  const float* up;
  float* out;
};

template <class Formula>
void run_block(const ActivationParams& p, const float* gate, const float* up, float* out) {
  float y[kBlock];
  for (std::int64_t i = 0; i < kBlock; ++i) y[i] = Formula::eval(p, gate[i], up[i]);
  std::copy_n(y, kBlock, out);
}

template <class Formula>
void run_row(ActivationParams p, const RowPointers& row, std::int64_t inter) {
  const float* gate = row.gate ? row.gate : row.up;
  const std::int64_t whole = inter / kBlock * kBlock, rest = inter - whole;
  for (std::int64_t c = 0; c < whole; c += kBlock)
    run_block<Formula>(p, gate + c, row.up + c, row.out + c);
  if (rest == 0) return;
  float g[kBlock] = {}, u[kBlock] = {}, y[kBlock];
  std::copy_n(gate + whole, rest, g);
  std::copy_n(row.up + whole, rest, u);
  run_block<Formula>(p, g, u, y);
  std::copy_n(y, rest, row.out + whole);
}

template <class Formula>
void run_rows(const ActivationArgs& a, std::int64_t row_begin, std::int64_t row_end) {
  const bool gated = is_gated(a.kind.type);
  for (std::int64_t r = row_begin; r < row_end; ++r) {
    const std::int32_t id = a.expert_ids ? a.expert_ids[r] : 0;
    if (id < 0) {
      std::fill_n(a.out.row(r), a.out.cols, 0.0f);
      continue;
    }
    const RowPointers row{gated ? a.gate.row(r) : nullptr, a.up.row(r), a.out.row(r)};
    run_row<Formula>(a.params[a.num_params == 1 ? 0 : id], row, a.out.cols);
  }
}

}  // namespace

void activation_cpu(const ActivationArgs& args, std::int64_t row_begin, std::int64_t row_end) {
  with_formula(args.kind,
               [&](auto formula) { run_rows<decltype(formula)>(args, row_begin, row_end); });
}

}  // namespace switchyard::ops
