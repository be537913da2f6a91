// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "switchyard/base/arena.h"
#include "switchyard/base/check.h"
#include "switchyard/formats/slice.h"
#include "switchyard/ops/grouped_ffn/expert_check.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"

namespace switchyard::ops {
namespace {

using formats::Matrix;

/// Hands out offsets in order, each on a 64-byte boundary.
class Offsets {
 public:
  std::size_t take(std::size_t bytes) {
    std::size_t begin = end_;
    end_ = (end_ + bytes + Arena::kAlign - 1) / Arena::kAlign * Arena::kAlign;
    return begin;
  }
  std::size_t end() const { return end_; }

 private:
  std::size_t end_ = 0;
};

std::size_t padded_bias_bytes(const PanelLayout& l) {
  return std::size_t(l.panels() * kPanelRows) * sizeof(float);
}

void pack_matrix(const Matrix& m, const PanelLayout& l, std::size_t codes, std::size_t scales,
                 std::span<std::byte> packed) {
  pack_panels(m, l, packed.subspan(codes, l.code_bytes()), packed.subspan(scales, l.scale_bytes()));
}

void pack_bias(const std::vector<float>& bias, const PanelLayout& l, std::size_t at,
               std::span<std::byte> packed) {
  std::memset(packed.data() + at, 0, padded_bias_bytes(l));
  if (!bias.empty()) std::memcpy(packed.data() + at, bias.data(), bias.size() * sizeof(float));
}

}  // namespace

formats::WeightLayout FfnShape::fc1_weights() const {
  return formats::layout_from_row(weights, inter_begin);
}

formats::WeightLayout FfnShape::fc2_weights() const {
  return formats::layout_from_col(weights, inter_begin);
}

ExpertLayout expert_layout(const FfnShape& s) {
  ExpertLayout l;
  l.fc1 = make_panel_layout(s.fc1_weights(), s.inter, s.hidden);
  l.fc2 = make_panel_layout(s.fc2_weights(), s.hidden, s.inter);
  Offsets at;
  if (s.gated) {
    l.gate_codes = at.take(l.fc1.code_bytes());
    l.gate_scales = at.take(l.fc1.scale_bytes());
  }
  l.up_codes = at.take(l.fc1.code_bytes());
  l.up_scales = at.take(l.fc1.scale_bytes());
  l.down_codes = at.take(l.fc2.code_bytes());
  l.down_scales = at.take(l.fc2.scale_bytes());
  l.floats = at.take(4 * sizeof(float));
  if (s.bias) {
    if (s.gated) l.gate_bias = at.take(padded_bias_bytes(l.fc1));
    l.up_bias = at.take(padded_bias_bytes(l.fc1));
    l.down_bias = at.take(padded_bias_bytes(l.fc2));
  }
  l.bytes = at.end();
  return l;
}

void pack_expert(const FfnShape& s, const ExpertLayout& l, const checkpoint::ExpertWeights& e,
                 float fc2_input_scale, std::span<std::byte> packed) {
  check_expert(s, e);
  ensure(packed.size() == l.bytes, "pack_expert: ", packed.size(), " bytes for a layout of ",
         l.bytes);
  if (s.gated) pack_matrix(*e.gate, l.fc1, l.gate_codes, l.gate_scales, packed);
  pack_matrix(e.up, l.fc1, l.up_codes, l.up_scales, packed);
  pack_matrix(e.down, l.fc2, l.down_codes, l.down_scales, packed);
  const float floats[4] = {s.gated ? e.gate->global_scale : 1.0f, e.up.global_scale,
                           e.down.global_scale, fc2_input_scale};
  std::memcpy(packed.data() + l.floats, floats, sizeof(floats));
  if (!s.bias) return;
  if (s.gated) pack_bias(e.gate_bias, l.fc1, l.gate_bias, packed);
  pack_bias(e.up_bias, l.fc1, l.up_bias, packed);
  pack_bias(e.down_bias, l.fc2, l.down_bias, packed);
}

}  // namespace switchyard::ops
