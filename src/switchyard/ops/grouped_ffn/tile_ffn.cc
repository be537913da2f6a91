// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_ffn/tile_ffn.h"

#include <algorithm>
#include <cstring>

#include "switchyard/base/arena.h"
#include "switchyard/base/check.h"
#include "switchyard/core/shard.h"
#include "switchyard/formats/slice.h"
#include "switchyard/formats/static_scale.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"
#include "switchyard/ops/grouped_ffn/expert_check.h"
#include "switchyard/ops/grouped_ffn/routing_launch.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;

constexpr std::int64_t kAlignment = Arena::kAlign;

/// Tokens up to which FC1's end quantises per 128 columns: there the launch's own choice is the
/// tier that counts.
constexpr std::int64_t kCountedTokens = kCountingTile;

/// How FC1's and FC2's matrices are stored. An empty TP shard cuts no block, wherever it begins.
formats::WeightLayout fc1_stored(const FfnShape& s) {
  return s.inter == 0 ? s.weights : s.fc1_weights();
}
formats::WeightLayout fc2_stored(const FfnShape& s) {
  return s.inter == 0 ? s.weights : s.fc2_weights();
}

/// Columns of FC2 and of the intermediate, whole tiles.
std::int64_t padded_inter(const FfnShape& s) {
  const std::int64_t cols = tile_cols(tile_code(fc2_stored(s), s.inter, s.quant));
  return (s.inter + cols - 1) / cols * cols;
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

/// Where one packed matrix lies.
struct MatrixPlace {
  TileLayout tiles;
  std::size_t codes, factors;
};

void pack_matrix(const formats::Matrix& m, const MatrixPlace& to, RowPlace place,
                 std::span<std::byte> packed) {
  pack_tiles(m, to.tiles, place, packed.subspan(to.codes, to.tiles.bytes()));
  if (to.tiles.factor_bytes() == 0) return;
  auto* factors = reinterpret_cast<float*>(packed.data() + to.factors);  // on a 64-byte boundary
  pack_factors(m, to.tiles, place, {factors, to.tiles.factor_bytes() / sizeof(float)});
}

void pack_bias(const std::vector<float>& bias, std::size_t at, std::span<std::byte> packed) {
  if (!bias.empty()) std::memcpy(packed.data() + at, bias.data(), bias.size() * sizeof(float));
}

/// fp16 takes two planes where nothing quantises it.
std::int64_t input_planes(const FfnShape& s) {
  return s.quant == ActivationQuant::kNone && s.dtype == Dtype::kFp16 ? 2 : 1;
}

/// Every part of a forward's workspace.
struct Buffers {
  std::span<std::int32_t> offsets, counts, source, sorted_of;
  std::span<std::int32_t> arrivals;  // of FC1's end
  DeviceRows x, inter;               // FC1's and FC2's input
  std::span<float> rows;  // FC2's rows; before that FC1's, where the quantiser reads rows
  std::int64_t rows_stride = 0;
};

DeviceRows take_rows(Arena& arena, const FfnShape& s, std::int64_t capacity, std::int64_t cols,
                     bool token_scales) {
  DeviceRows r{.tiles = {.data = nullptr,
                         .capacity = capacity,
                         .planes = input_planes(s),
                         .codes = multiplies_codes(s)}};
  r.tiles.data = arena.take<std::byte>(r.tiles.bytes(cols)).data();
  if (token_scales) r.token_scales = arena.take<float>(std::size_t(capacity)).data();
  if (has_block_scales(s.quant))
    r.block_scales = arena.take<float>(std::size_t((cols + 127) / 128 * capacity)).data();
  return r;
}

Buffers take_buffers(Arena& arena, const FfnShape& s, std::int64_t tokens) {
  const std::int64_t rows = tokens * s.top_k, capacity = sorted_capacity(rows, s.experts);
  const bool per_token = s.quant == ActivationQuant::kFp8Token;
  Buffers b;
  b.rows_stride = (s.hidden + 3) / 4 * 4;
  b.offsets = arena.take<std::int32_t>(std::size_t(s.experts) + 1);
  b.counts = arena.take<std::int32_t>(std::size_t(s.experts));
  b.source = arena.take<std::int32_t>(std::size_t(capacity));
  b.sorted_of = arena.take<std::int32_t>(std::size_t(rows));
  b.x = take_rows(arena, s, capacity, s.hidden, per_token || formats::is_static(s.quant));
  b.inter = take_rows(arena, s, capacity, s.inter, per_token);
  if (counts_blocks(s.quant, multiplies_codes(s))) {
    const std::int64_t most =
        sorted_capacity(std::min(tokens, kCountedTokens) * s.top_k, s.experts);
    b.arrivals = arena.take<std::int32_t>(std::size_t(most / 8 * (padded_inter(s) / 128)));
    if (tokens > kCountedTokens) b.arrivals = {};
  }
  const std::int64_t widest =
      ends_in_rows(s.quant) ? std::max(b.rows_stride, padded_inter(s)) : b.rows_stride;
  b.rows = arena.take<float>(std::size_t(capacity * widest));
  return b;
}

bool is_16_bit(Dtype t) { return t == Dtype::kBf16 || t == Dtype::kFp16; }

void check_device_args(const FfnArgs& a) {
  a.check();
  require(a.stream.handle != nullptr, "cuda: a forward needs its caller's stream, it has none");
  require(is_16_bit(a.x_dtype) && a.shape->dtype == a.x_dtype, "cuda: hidden states are ",
          to_string(a.x_dtype), " for a layer of ", to_string(a.shape->dtype),
          ", the sm_90 kernels read bf16 and fp16");
  require(!formats::is_static(a.shape->quant) || formats::serves_as_static_scale(a.fc1_input_scale),
          "cuda: static activation scale is ", a.fc1_input_scale,
          ": it and its reciprocal must be positive normal numbers; calibrate the layer");
  require(a.capture == nullptr || (a.capture->gate == nullptr && a.capture->up == nullptr),
          "cuda: of FC1's own output there is no stage capture in this version");
  require(a.x_rows.rows == nullptr,
          "cuda: input rows apart from each other, or quantised by their "
          "sender, are not built in this version; give x");
  require(
      a.route == nullptr || (a.route->ids.data == a.ids && a.route->weights.data == a.weights),
      "cuda: a call that routes writes the ids and weights that its experts read; give it those");
  if (a.tactic != nullptr) check_tile_tactic({.shape = a.shape, .tokens = a.tokens}, *a.tactic);
}

struct GemmInput {
  TileLayout tiles;
  std::size_t codes;
  const DeviceRows& x;
};

DeviceGemm gemm_of(const FfnArgs& a, const GemmInput& in, const Buffers& b) {
  return {.weights = a.packed + in.codes,
          .expert_stride = std::int64_t(a.layout->bytes),
          .layout = in.tiles,
          .x = in.x.tiles,
          .block_scales = in.x.block_scales,
          .offsets = b.offsets.data(),
          .counts = b.counts.data(),
          .experts = a.shape->experts,
          .max_tokens = a.tokens,
          .max_rows = a.tokens * a.shape->top_k};
}

/// Where the packed experts hold FC2's static input scale.
const std::byte* fc2_scale(const FfnArgs& a) {
  constexpr std::size_t kPlace = 3 * sizeof(float);  // behind the three alphas
  return formats::is_static(a.shape->quant) ? a.packed + a.layout->floats + kPlace : nullptr;
}

const std::byte* factors_of(const FfnArgs& a, const TileLayout& tiles, std::size_t at) {
  return tiles.factor_bytes() > 0 ? a.packed + at : nullptr;
}

/// The tier of FC1 or FC2; 0: as the launch chooses.
std::int64_t tile_of(const FfnArgs& a, std::int64_t TileTactic::*gemm) {
  return a.tactic == nullptr ? 0 : std::get<TileTactic>(*a.tactic).*gemm;
}

TileRouting routing_of(const FfnArgs& a) {
  return a.tactic == nullptr ? TileRouting::kPlanned
                             : TileRouting(std::get<TileTactic>(*a.tactic).routing);
}

/// Routes where that is this call's, sorts, and gathers the quantised rows.
void arrange(const FfnArgs& a, const Buffers& b) {
  const FfnShape& s = *a.shape;
  const DeviceSort sort{.ids = a.ids,
                        .tokens = a.tokens,
                        .top_k = s.top_k,
                        .experts = s.experts,
                        .offsets = b.offsets.data(),
                        .counts = b.counts.data(),
                        .source = b.source.data(),
                        .sorted_of = b.sorted_of.data(),
                        .arrivals = b.arrivals.data(),
                        .num_arrivals = std::int64_t(b.arrivals.size())};
  const DeviceGather gather{.x = static_cast<const std::uint16_t*>(a.x),
                            .dtype = a.x_dtype,
                            .x_stride = a.x_stride,
                            .hidden = s.hidden,
                            .weights = s.weight_on_input ? a.weights : nullptr,
                            .quant = s.quant,
                            .static_scale = a.fc1_input_scale,
                            .out = b.x};
  if (a.route == nullptr) return sort_and_gather_cuda(sort, gather, a.stream);
  const RoutingCall call{.spec = a.route->spec,
                         .tokens = a.tokens,
                         .choices = s.top_k,
                         .dtype = a.x_dtype,
                         .asked = routing_of(a)};
  if (routing_launch(call) == RoutingLaunch::kTogether)
    return route_and_arrange_cuda(*a.route, sort, gather, a.stream);
  route_cuda(*a.route, a.stream);
  sort_and_gather_cuda(sort, gather, a.stream);
}

void run_fc1(const FfnArgs& a, const Buffers& b) {
  const FfnShape& s = *a.shape;
  const ExpertLayout& l = *a.layout;
  const TileLayout tiles = fc1_tiles(s);
  const std::int64_t tile = tile_of(a, &TileTactic::fc1_tile);
  const bool counts = !b.arrivals.empty() && (tile == 0 || tile == kCountingTile);
  const bool written = gemm_activation_cuda(
      gemm_of(a, {tiles, l.up_codes, b.x}, b),
      {.scales = {factors_of(a, tiles, l.up_scales), b.x.token_scales, nullptr},
       .gate_bias = s.bias && s.gated ? a.packed + l.gate_bias : nullptr,
       .up_bias = s.bias ? a.packed + l.up_bias : nullptr,
       .stride = std::int64_t(l.bytes),
       .params = a.activation,
       .quant = s.quant,
       .static_scale = fc2_scale(a),
       .out = b.inter.tiles,
       .block_scales = b.inter.block_scales,
       .rows = ends_in_rows(s.quant) ? b.rows.data() : nullptr,
       .rows_stride = padded_inter(s),
       .arrivals = counts ? b.arrivals.data() : nullptr,
       .inter = s.inter,
       .gated = s.gated},
      a.stream, counts ? kCountingTile : tile);
  if (written) return;
  quantize_rows_cuda({.rows = b.rows.data(),
                      .stride = padded_inter(s),
                      .cols = s.inter,
                      .end = b.offsets.data() + s.experts,
                      .source = b.source.data(),
                      .quant = s.quant,
                      .out = b.inter,
                      .sorted_early = true},  // FC1 stands between
                     a.stream);
}

void run_fc2(const FfnArgs& a, const Buffers& b) {
  const FfnShape& s = *a.shape;
  const TileLayout tiles = fc2_tiles(s);
  DeviceGemm gemm = gemm_of(a, {tiles, a.layout->down_codes, b.inter}, b);
  gemm.sorted_early = true;  // FC1 stands between
  gemm_rows_cuda(
      gemm,
      {.scales = {factors_of(a, tiles, a.layout->down_scales), b.inter.token_scales, fc2_scale(a)},
       .bias = s.bias ? a.packed + a.layout->down_bias : nullptr,
       .stride = std::int64_t(a.layout->bytes),
       .out = b.rows.data(),
       .out_stride = b.rows_stride,
       .hidden = s.hidden},
      a.stream, tile_of(a, &TileTactic::fc2_tile));
}

/// An empty TP shard: as if every choice of an expert were skipped.
void arrange_nothing(const FfnArgs& a, const Buffers& b) {
  if (a.route != nullptr) route_cuda(*a.route, a.stream);
  skip_rows_cuda(b.sorted_of.data(), std::int64_t(b.sorted_of.size()), a.stream);
}

/// What the judge asks for: FC2's input, decoded.
void capture(const FfnArgs& a, const Buffers& b) {
  if (a.capture == nullptr || a.capture->inter == nullptr) return;
  capture_rows_cuda({.rows = b.inter,
                     .static_scale = fc2_scale(a),
                     .stride = std::int64_t(a.layout->bytes),
                     .sorted_of = b.sorted_of.data(),
                     .ids = a.ids,
                     .choices = a.tokens * a.shape->top_k,
                     .cols = a.shape->inter,
                     .out = a.capture->inter},
                    a.stream);
}

void finish(const FfnArgs& a, const Buffers& b, bool sorted_early) {
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
                   .x_dtype = a.x_dtype,
                   .x_stride = a.x_stride,
                   .addend = a.addend,
                   .out_dtype = a.out_dtype,
                   .out = a.out,
                   .out_stride = a.out_stride,
                   .sorted_early = sorted_early};
  if (a.out != nullptr) finalize_cuda(f, a.stream);
  if (a.rows == nullptr) return;
  f.out = a.rows;
  f.out_dtype = a.rows_dtype;
  write_rows_cuda(f, a.stream);
}

}  // namespace

bool multiplies_codes(const FfnShape& s) {
  return s.weights.element == formats::Element::kE4m3 && has_e4m3_codes(s.quant);
}

TileLayout fc1_tiles(const FfnShape& s) {
  return {.rows = padded_inter(s) * (s.gated ? 2 : 1),
          .cols = s.hidden,
          .code = tile_code(fc1_stored(s), s.hidden, s.quant)};
}

TileLayout fc2_tiles(const FfnShape& s) {
  return {.rows = s.hidden, .cols = s.inter, .code = tile_code(fc2_stored(s), s.inter, s.quant)};
}

Eligibility can_tile_shards(const ShardedWeights& w) {
  for (std::int64_t rank = 0; rank < w.tp; ++rank) {
    const Shard shard = tp_shard(w.inter, w.tp, rank);
    if (shard.size == 0) break;  // has no weights, nor has any behind it
    const bool fc1 = has_tiles(formats::layout_from_row(w.layout, shard.begin), w.hidden, w.quant);
    const bool fc2 =
        has_tiles(formats::layout_from_col(w.layout, shard.begin), shard.size, w.quant);
    if (fc1 && fc2) continue;
    return Eligibility::no(
        Reject::kShapeUnaligned,
        cat("inter = ", w.inter, " over tp = ", w.tp, " gives TP rank ", rank, " the columns from ",
            shard.begin, " on, inside scale blocks of ", w.layout.block_rows, "x",
            w.layout.block_cols, "; the tiles of the GPU's kernels begin where a block does"));
  }
  return Eligibility::yes();
}

ExpertLayout tile_expert_layout(const FfnShape& s) {
  require(s.quant != ActivationQuant::kF32,
          "cuda: f32 activations have no sm_90 kernels; use the cpu leaf");
  const TileLayout fc1 = fc1_tiles(s), fc2 = fc2_tiles(s);
  ExpertLayout l;
  Offsets at;
  l.up_codes = l.gate_codes = at.take(fc1.bytes());
  l.down_codes = at.take(fc2.bytes());
  l.up_scales = l.gate_scales = at.take(fc1.factor_bytes());
  l.down_scales = at.take(fc2.factor_bytes());
  l.floats = at.take(4 * sizeof(float));
  if (s.bias) {
    if (s.gated) l.gate_bias = at.take(std::size_t(s.inter) * sizeof(float));
    l.up_bias = at.take(std::size_t(s.inter) * sizeof(float));
    l.down_bias = at.take(std::size_t(s.hidden) * sizeof(float));
  }
  l.bytes = at.end();
  return l;
}

void pack_expert_tiles(const FfnShape& s, const ExpertLayout& l, const checkpoint::ExpertWeights& e,
                       float fc2_input_scale, std::span<std::byte> packed) {
  check_expert(s, e);
  ensure(packed.size() == l.bytes, "pack_expert_tiles: ", packed.size(), " bytes for a layout of ",
         l.bytes);
  std::memset(packed.data(), 0, packed.size());
  if (s.inter == 0) return;  // an empty TP shard: nothing of it is read
  const MatrixPlace fc1{fc1_tiles(s), l.up_codes, l.up_scales};
  if (s.gated) pack_matrix(*e.gate, fc1, RowPlace::kGate, packed);
  pack_matrix(e.up, fc1, s.gated ? RowPlace::kUp : RowPlace::kPlain, packed);
  pack_matrix(e.down, {fc2_tiles(s), l.down_codes, l.down_scales}, RowPlace::kPlain, packed);
  const float floats[4] = {1, 1, 1, fc2_input_scale};  // the alphas are in the rows' factors
  std::memcpy(packed.data() + l.floats, floats, sizeof(floats));
  if (!s.bias) return;
  if (s.gated) pack_bias(e.gate_bias, l.gate_bias, packed);
  pack_bias(e.up_bias, l.up_bias, packed);
  pack_bias(e.down_bias, l.down_bias, packed);
}

std::size_t tile_workspace_bytes(const FfnShape& shape, const ExpertLayout&,
                                 std::int64_t max_tokens, const CpuTeam&) {
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
  if (s.inter == 0) {
    arrange_nothing(a, b);
    return finish(a, b, /*sorted_early=*/false);
  }
  arrange(a, b);
  run_fc1(a, b);
  capture(a, b);
  run_fc2(a, b);
  finish(a, b, /*sorted_early=*/true);  // both GEMMs stand between
}

}  // namespace switchyard::ops
