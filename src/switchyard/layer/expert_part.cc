// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/expert_part.h"

#include "switchyard/base/check.h"
#include "switchyard/formats/slice.h"

namespace switchyard::layer {
namespace {

void check_width(std::string_view what, std::int64_t width, std::int64_t inter) {
  require(width == inter, what, " projection is ", width, " wide, this layer's experts are ", inter,
          "; a part is cut from the whole expert");
}

std::vector<float> slice_bias(const std::vector<float>& bias, const ExpertPart& part,
                              std::string_view what) {
  if (bias.empty()) return {};
  require(std::int64_t(bias.size()) == part.inter, what, " bias holds ", bias.size(),
          " values, this layer's experts are ", part.inter, " wide");
  const auto begin = bias.begin() + part.columns.begin;
  return {begin, begin + part.columns.size};
}

}  // namespace

ExpertPart ExpertPart::of(std::int64_t inter, const Member& tp) {
  Shard columns = tp_shard(inter, tp.size, tp.rank);
  if (columns.size == 0) columns.begin = 0;
  return {inter, columns, tp.rank == 0};
}

checkpoint::ExpertWeights slice_expert(const checkpoint::ExpertWeights& e, const ExpertPart& part) {
  if (part.whole()) return e;
  const auto [begin, size] = part.columns;
  if (e.gate) check_width("gate", e.gate->rows, part.inter);
  check_width("up", e.up.rows, part.inter);
  check_width("down", e.down.cols, part.inter);
  checkpoint::ExpertWeights out;
  if (e.gate) out.gate = formats::slice_rows(*e.gate, begin, size);
  out.up = formats::slice_rows(e.up, begin, size);
  out.down = formats::slice_cols(e.down, begin, size);
  out.gate_bias = slice_bias(e.gate_bias, part, "gate");
  out.up_bias = slice_bias(e.up_bias, part, "up");
  if (part.down_bias) out.down_bias = e.down_bias;
  return out;
}

checkpoint::ExpertSource with_part(checkpoint::ExpertSource source, const ExpertPart& part) {
  if (part.whole()) return source;
  return
      [source = std::move(source), part](std::int64_t e) { return slice_expert(source(e), part); };
}

}  // namespace switchyard::layer
