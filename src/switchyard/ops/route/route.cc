// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/route/route.h"

#include <algorithm>

#include "switchyard/base/check.h"

namespace switchyard::ops {
namespace {

template <class T>
void check_span(std::string_view name, const Span2d<T>& s, std::int64_t rows, std::int64_t cols) {
  require(s.rows == rows && s.cols == cols, "route: ", name, " is [", s.rows, ", ", s.cols,
          "] but the spec and the logits ask for [", rows, ", ", cols, "]");
  require(s.stride >= cols, "route: the row stride of ", name, " is ", s.stride, ", less than its ",
          cols, " columns; rows would overlap");
  require(s.data != nullptr || rows == 0, "route: ", name, " is null but has ", rows,
          " rows; pass its data");
}

void check_given(std::string_view name, const void* data, bool wanted) {
  require(!wanted || data != nullptr, "route: ", name,
          " is null but the routing spec reads it; pass it");
  require(wanted || data == nullptr, "route: ", name,
          " is given but the routing spec does not read it; pass null or change the spec");
}

void check_hash_row(const RouteArgs& a, std::int64_t row) {
  const std::int64_t token = a.token_ids[row], k = a.spec->top_k;
  require(token >= 0 && token < a.vocab, "route: token id ", token, " in row ", row,
          " lies outside the hash table of ", a.vocab, " tokens");
  const std::int64_t num_ids = a.spec->num_experts + a.spec->zero_experts;
  const std::int32_t* ids = a.hash_table + token * k;
  for (std::int64_t j = 0; j < k; ++j) {
    require(ids[j] >= 0 && ids[j] < num_ids, "route: the hash table names expert ", ids[j],
            " for token ", token, " (row ", row, "); ids lie in 0..", num_ids - 1);
    require(std::find(ids, ids + j, ids[j]) == ids + j, "route: the hash table names expert ",
            ids[j], " twice for token ", token, " (row ", row, "); choices must be distinct");
  }
}

}  // namespace

void RouteArgs::check() const {
  check_shapes();
  if (spec->choice != ChoiceRule::kHash) return;
  for (std::int64_t row = 0; row < logits.rows; ++row) check_hash_row(*this, row);
}

void RouteArgs::check_shapes() const {
  require(spec != nullptr, "route: the routing spec is null; pass one");
  spec->check();
  require(spec->choice != ChoiceRule::kCaller, "route: method ", to_string(spec->method),
          " takes ids and weights from the caller; pass them to the layer instead of logits");
  require(logits.rows >= 0, "route: logits has ", logits.rows, " rows; it must be >= 0");
  const std::int64_t num_ids = spec->num_experts + spec->zero_experts;
  check_span("logits", logits, logits.rows, num_ids);
  check_span("ids", ids, logits.rows, spec->top_k);
  check_span("weights", weights, logits.rows, spec->top_k);
  check_given("choice_bias", choice_bias, spec->choice_bias);
  check_given("per_expert_scale", per_expert_scale, spec->per_expert_scale);
  const bool hashes = spec->choice == ChoiceRule::kHash;
  check_given("hash_table", hash_table, hashes);
  if (!hashes) return;
  require(token_ids != nullptr || logits.rows == 0,
          "route: token_ids is null but hash routing reads it; pass the ids of the rows' tokens");
}

}  // namespace switchyard::ops
