// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_ffn/tile_ffn.h"

#include <cstring>

#include "switchyard/base/arena.h"
#include "switchyard/base/check.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kAlignment = Arena::kAlign;

/// Columns of FC2 and of the intermediate, whole tiles.
std::int64_t padded_inter(const FfnShape& s) {
  return (s.inter + kTileCols - 1) / kTileCols * kTileCols;
}

class Offsets {
 public:
  std::size_t take(std::size_t bytes) {
    const std::size_t begin = end_;
    end_ = (end_ + bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }
  std::size_t end() const { return end_; }

 private:
  std::size_t end_ = 0;
};

std::span<std::byte> part(std::span<std::byte> packed, std::size_t at, const TileLayout& l) {
  return packed.subspan(at, l.bytes());
}

void pack_bias(const std::vector<float>& bias, std::size_t at, std::span<std::byte> packed) {
  if (!bias.empty()) std::memcpy(packed.data() + at, bias.data(), bias.size() * sizeof(float));
}

/// Every part of a forward's workspace.
struct Buffers {
  std::span<std::int32_t> offsets, counts, source, sorted_of;
  RowTiles x, inter;      // FC1's and FC2's input
  std::span<float> rows;  // FC2's rows
  std::int64_t rows_stride = 0;
};

RowTiles take_tiles(Arena& arena, std::int64_t capacity, std::int64_t cols) {
  RowTiles tiles{.data = nullptr, .capacity = capacity};
  tiles.data = arena.take<std::byte>(tiles.bytes(cols)).data();
  return tiles;
}

Buffers take_buffers(Arena& arena, const FfnShape& s, std::int64_t tokens) {
  const std::int64_t rows = tokens * s.top_k, capacity = sorted_capacity(rows, s.experts);
  Buffers b;
  b.rows_stride = (s.hidden + 3) / 4 * 4;
  b.offsets = arena.take<std::int32_t>(std::size_t(s.experts) + 1);
  b.counts = arena.take<std::int32_t>(std::size_t(s.experts));
  b.source = arena.take<std::int32_t>(std::size_t(capacity));
  b.sorted_of = arena.take<std::int32_t>(std::size_t(rows));
  b.x = take_tiles(arena, capacity, s.hidden);
  b.inter = take_tiles(arena, capacity, s.inter);
  b.rows = arena.take<float>(std::size_t(capacity * b.rows_stride));
  return b;
}

void check_device_args(const FfnArgs& a) {
  a.check();
  require(a.stream.handle != nullptr, "cuda: a forward needs its caller's stream, it has none");
  require(a.x_dtype == Dtype::kBf16 && a.shape->dtype == Dtype::kBf16, "cuda: hidden states are ",
          to_string(a.x_dtype), ", the sm_90 kernels of this version read bf16");
  require(a.out_dtype != Dtype::kFp16 && a.rows_dtype != Dtype::kFp16,
          "cuda: an fp16 output is not built in this version; ask for bf16 or f32");
  require(a.capture == nullptr, "cuda: a stage capture is not built in this version");
}

struct GemmInput {
  TileLayout tiles;
  std::size_t codes;
  RowTiles x;
};

DeviceGemm gemm_of(const FfnArgs& a, const GemmInput& in, const Buffers& b) {
  return {.weights = a.packed + in.codes,
          .expert_stride = std::int64_t(a.layout->bytes),
          .layout = in.tiles,
          .x = in.x,
          .offsets = b.offsets.data(),
          .counts = b.counts.data(),
          .experts = a.shape->experts,
          .max_tokens = a.tokens,
          .max_rows = a.tokens * a.shape->top_k};
}

void run_fc1(const FfnArgs& a, const Buffers& b) {
  const FfnShape& s = *a.shape;
  const ExpertLayout& l = *a.layout;
  gemm_activation_cuda(gemm_of(a, {fc1_tiles(s), l.up_codes, b.x}, b),
                       {.gate_bias = s.bias && s.gated ? a.packed + l.gate_bias : nullptr,
                        .up_bias = s.bias ? a.packed + l.up_bias : nullptr,
                        .bias_stride = std::int64_t(l.bytes),
                        .params = a.activation,
                        .out = b.inter,
                        .inter = s.inter,
                        .gated = s.gated},
                       a.stream);
}

void run_fc2(const FfnArgs& a, const Buffers& b) {
  const FfnShape& s = *a.shape;
  gemm_rows_cuda(gemm_of(a, {fc2_tiles(s), a.layout->down_codes, b.inter}, b),
                 {.bias = s.bias ? a.packed + a.layout->down_bias : nullptr,
                  .bias_stride = std::int64_t(a.layout->bytes),
                  .out = b.rows.data(),
                  .out_stride = b.rows_stride,
                  .hidden = s.hidden},
                 a.stream);
}

void finish(const FfnArgs& a, const Buffers& b) {
  const FfnShape& s = *a.shape;
  DeviceFinalize f{.rows = b.rows.data(),
                   .rows_stride = b.rows_stride,
                   .sorted_of = b.sorted_of.data(),
                   .ids = a.ids,
                   .weights = a.weights,
                   .tokens = a.tokens,
                   .hidden = s.hidden,
                   .top_k = s.top_k,
                   .unscaled_choices = s.unscaled_choices,
                   .experts = s.experts,
                   .zero_experts = s.zero_experts,
                   .weight_on_input = s.weight_on_input,
                   .factor = a.factor,
                   .x = static_cast<const std::uint16_t*>(a.x),
                   .x_stride = a.x_stride,
                   .addend = a.addend,
                   .out_dtype = a.out_dtype,
                   .out = a.out,
                   .out_stride = a.out_stride};
  if (a.out != nullptr) finalize_cuda(f, a.stream);
  if (a.rows == nullptr) return;
  f.out = a.rows;
  f.out_dtype = a.rows_dtype;
  write_rows_cuda(f, a.stream);
}

void check_matrix(const char* name, const formats::Matrix& m, std::int64_t rows,
                  std::int64_t cols) {
  require(m.rows == rows && m.cols == cols, name, " projection is [", m.rows, ", ", m.cols,
          "], this layer needs [", rows, ", ", cols, "]");
}

void check_bias(const char* name, const std::vector<float>& bias, std::int64_t size, bool wanted) {
  require(bias.empty() || (wanted && std::int64_t(bias.size()) == size), name, " bias holds ",
          bias.size(), " values, this layer needs ", wanted ? size : 0);
}

void check_expert(const FfnShape& s, const checkpoint::ExpertWeights& e) {
  require(e.gate.has_value() == s.gated, "expert ", s.gated ? "lacks a" : "has a",
          " gate projection; the layer's activation ", s.gated ? "needs one" : "takes none");
  if (s.gated) check_matrix("gate", *e.gate, s.inter, s.hidden);
  check_matrix("up", e.up, s.inter, s.hidden);
  check_matrix("down", e.down, s.hidden, s.inter);
  check_bias("gate", e.gate_bias, s.inter, s.bias && s.gated);
  check_bias("up", e.up_bias, s.inter, s.bias);
  check_bias("down", e.down_bias, s.hidden, s.bias);
}

}  // namespace

TileLayout fc1_tiles(const FfnShape& s) {
  return {.rows = padded_inter(s) * (s.gated ? 2 : 1), .cols = s.hidden};
}

TileLayout fc2_tiles(const FfnShape& s) { return {.rows = s.hidden, .cols = s.inter}; }

ExpertLayout tile_expert_layout(const FfnShape& s) {
  require(
      s.weights.element == formats::Element::kBf16 && s.quant == formats::ActivationQuant::kNone,
      "cuda: weights of ", to_string(s.weights.element), " with activations ", to_string(s.quant),
      " have no sm_90 kernels in this version, which serves bf16 only; use the cpu leaf");
  ExpertLayout l;
  Offsets at;
  l.up_codes = l.gate_codes = at.take(fc1_tiles(s).bytes());
  l.down_codes = at.take(fc2_tiles(s).bytes());
  if (s.bias) {
    if (s.gated) l.gate_bias = at.take(std::size_t(s.inter) * sizeof(float));
    l.up_bias = at.take(std::size_t(s.inter) * sizeof(float));
    l.down_bias = at.take(std::size_t(s.hidden) * sizeof(float));
  }
  l.bytes = at.end();
  return l;
}

void pack_expert_tiles(const FfnShape& s, const ExpertLayout& l, const checkpoint::ExpertWeights& e,
                       float, std::span<std::byte> packed) {
  check_expert(s, e);
  ensure(packed.size() == l.bytes, "pack_expert_tiles: ", packed.size(), " bytes for a layout of ",
         l.bytes);
  std::memset(packed.data(), 0, packed.size());
  const TileLayout fc1 = fc1_tiles(s), fc2 = fc2_tiles(s);
  if (s.gated) pack_tiles(*e.gate, fc1, RowPlace::kGate, part(packed, l.up_codes, fc1));
  pack_tiles(e.up, fc1, s.gated ? RowPlace::kUp : RowPlace::kPlain, part(packed, l.up_codes, fc1));
  pack_tiles(e.down, fc2, RowPlace::kPlain, part(packed, l.down_codes, fc2));
  if (!s.bias) return;
  if (s.gated) pack_bias(e.gate_bias, l.gate_bias, packed);
  pack_bias(e.up_bias, l.up_bias, packed);
  pack_bias(e.down_bias, l.down_bias, packed);
}

std::size_t tile_workspace_bytes(const FfnShape& shape, const ExpertLayout&,
                                 std::int64_t max_tokens, int) {
  Arena arena;
  take_buffers(arena, shape, max_tokens);
  return arena.used();
}

void grouped_ffn_cuda(const FfnArgs& a) {
  check_device_args(a);
  if (a.tokens == 0) return;
  const FfnShape& s = *a.shape;
  Arena arena(a.workspace);
  const Buffers b = take_buffers(arena, s, a.tokens);
  sort_and_gather_cuda({.ids = a.ids,
                        .tokens = a.tokens,
                        .top_k = s.top_k,
                        .experts = s.experts,
                        .offsets = b.offsets.data(),
                        .counts = b.counts.data(),
                        .source = b.source.data(),
                        .sorted_of = b.sorted_of.data()},
                       {.x = static_cast<const std::uint16_t*>(a.x),
                        .x_stride = a.x_stride,
                        .hidden = s.hidden,
                        .weights = s.weight_on_input ? a.weights : nullptr,
                        .out = b.x},
                       a.stream);
  run_fc1(a, b);
  run_fc2(a, b);
  finish(a, b);
}

}  // namespace switchyard::ops
