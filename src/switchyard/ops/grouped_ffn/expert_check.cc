// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_ffn/expert_check.h"

#include <vector>

#include "switchyard/base/check.h"

namespace switchyard::ops {
namespace {

using formats::Matrix;

void check_matrix(const char* name, const Matrix& m, std::int64_t rows, std::int64_t cols,
                  const formats::WeightLayout& layout) {
  require(m.rows == rows && m.cols == cols, name, " projection is [", m.rows, ", ", m.cols,
          "], this layer needs [", rows, ", ", cols, "]");
  require(m.layout == layout, name, " projection is stored as ", to_string(m.layout.element),
          " with ", to_string(m.layout.scale), " scales per ", m.layout.block_rows, "x",
          m.layout.block_cols,
          ", which is not the layout that this layer was built for; convert it first");
  const std::int64_t scales = layout.scale_rows(rows) * layout.scale_cols(cols);
  require(std::int64_t(m.codes.size()) == rows * layout.row_bytes(cols) &&
              std::int64_t(m.scales.size()) == scales * bytes_of(layout.scale),
          name, " projection of [", rows, ", ", cols, "] holds ", m.codes.size(),
          " bytes of codes and ", m.scales.size(), " of scales; it needs ",
          rows * layout.row_bytes(cols), " and ", scales * bytes_of(layout.scale));
}

void check_bias(const char* name, const std::vector<float>& bias, std::int64_t size, bool wanted) {
  require(bias.empty() || wanted, name, " bias is given for a layer that was built without biases");
  require(bias.empty() || std::int64_t(bias.size()) == size, name, " bias holds ", bias.size(),
          " values, this layer needs ", size);
}

}  // namespace

void check_expert(const FfnShape& s, const checkpoint::ExpertWeights& e) {
  require(e.gate.has_value() == s.gated, "expert ", s.gated ? "lacks a" : "has a",
          " gate projection; the layer's activation ", s.gated ? "needs one" : "takes none");
  if (s.gated) check_matrix("gate", *e.gate, s.inter, s.hidden, s.fc1_weights());
  check_matrix("up", e.up, s.inter, s.hidden, s.fc1_weights());
  check_matrix("down", e.down, s.hidden, s.inter, s.fc2_weights());
  check_bias("gate", e.gate_bias, s.inter, s.bias && s.gated);
  check_bias("up", e.up_bias, s.inter, s.bias);
  check_bias("down", e.down_bias, s.hidden, s.bias);
  ensure(s.inter > 0 || e.down_bias.empty(), "an empty TP shard has a bias of FC2");
}

}  // namespace switchyard::ops
