// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/activation/activation.h"

#include "switchyard/base/check.h"

namespace switchyard::ops {
namespace {

/// CUDA's limit on blocks, one for each row.
constexpr std::int64_t kMaxRows = 2147483647;

template <class T>
void check_span(std::string_view name, const Span2d<T>& s, const Span2d<float>& out) {
  require(s.rows == out.rows && s.cols == out.cols, "activation: ", name, " is [", s.rows, ", ",
          s.cols, "] but out is [", out.rows, ", ", out.cols, "]; give equal shapes");
  require(s.stride >= s.cols, "activation: the row stride of ", name, " is ", s.stride,
          ", less than its ", s.cols, " columns; rows would overlap");
  require(s.data != nullptr || s.rows == 0 || s.cols == 0, "activation: ", name,
          " is null but has ", s.rows, " rows; pass its data");
}

bool same_kind(const ActivationParams& a, const ActivationParams& b) {
  return a.type == b.type && a.form == b.form && a.limit_after == b.limit_after;
}

}  // namespace

void ActivationArgs::check() const {
  require(out.rows >= 0 && out.rows <= kMaxRows, "activation: out has ", out.rows,
          " rows; the limit is 0..", kMaxRows);
  require(out.cols >= 0, "activation: out has ", out.cols, " columns; it must be >= 0");
  check_span("out", out, out);
  check_span("up", up, out);
  if (is_gated(kind.type)) check_span("gate", gate, out);
  require(params != nullptr && num_params >= 1, "activation: params holds ", num_params,
          " sets of constants; give one for all experts or one for each");
}

void ActivationArgs::check_rows() const {
  for (std::int64_t e = 0; e < num_params; ++e)
    require(same_kind(params[e], kind), "activation: the constants of expert ", e, " are of ",
            to_string(params[e].type), ", the call is of ", to_string(kind.type),
            " (or their forms differ); lower one activation for all experts");
  if (expert_ids == nullptr) return;
  for (std::int64_t r = 0; r < out.rows; ++r)
    require(expert_ids[r] >= -1 && (num_params == 1 || expert_ids[r] < num_params),
            "activation: row ", r, " names expert ", expert_ids[r], "; ids lie in -1..",
            num_params - 1, ", the experts that have constants");
}

}  // namespace switchyard::ops
