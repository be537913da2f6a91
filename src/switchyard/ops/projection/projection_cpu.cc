// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "switchyard/base/arena.h"
#include "switchyard/base/check.h"
#include "switchyard/base/float_env.h"
#include "switchyard/base/span2d.h"
#include "switchyard/ops/projection/can_project.h"
#include "switchyard/ops/projection/projection.h"

namespace switchyard::ops {
namespace {

constexpr std::int64_t kChunkPanels = 4;  // panels per task
constexpr std::int64_t kRowBlock = 64;    // rows per tile buffer
constexpr std::int64_t kLanes = 16;       // partial sums of the norm

/// True where the GEMM reads fp32 rather than bf16 pairs.
bool reads_floats(const ProjectionShape& s) {
  return !s.rounds || s.dtype != Dtype::kBf16 || s.weights.element == formats::Element::kFp16;
}

/// The parts of a call's workspace.
struct Parts {
  std::span<std::uint16_t> pairs;
  std::span<float> floats;
  std::span<float> ones;   // [tokens] row scales
  std::span<float> stage;  // [threads] one fp32 row
  std::span<float> tiles;  // [threads][kRowBlock, chunk]
};

Parts take_parts(Arena& arena, const ProjectionShape& s, std::int64_t tokens, int threads) {
  const PanelLayout l = s.layout();
  Parts p;
  const std::size_t values = std::size_t(tokens * l.padded_cols());
  if (reads_floats(s)) {
    p.floats = arena.take<float>(values);
  } else {
    p.pairs = arena.take<std::uint16_t>(values);
  }
  p.ones = arena.take<float>(std::size_t(tokens));
  p.stage = arena.take<float>(std::size_t(threads * l.padded_cols()));
  p.tiles = arena.take<float>(std::size_t(threads * kRowBlock * kChunkPanels * kPanelRows));
  return p;
}

/// Mean square in sixteen partial sums, joined pairwise: one order per width.
float mean_square(const float* x, std::int64_t size) {
  float sums[kLanes] = {};
  for (std::int64_t i = 0; i < size; ++i) sums[i % kLanes] += x[i] * x[i];
  for (std::int64_t step = kLanes / 2; step > 0; step /= 2)
    for (std::int64_t i = 0; i < step; ++i) sums[i] += sums[i + step];
  return sums[0] / float(size);
}

class Projection {
 public:
  explicit Projection(const ProjectionArgs& a)
      : a_(a), s_(*a.shape), l_(s_.layout()), arena_(a.workspace) {
    parts_ = take_parts(arena_, s_, a.tokens, a.pool->size());
    w_ = {.layout = l_, .codes = a.packed, .scales = nullptr, .alpha = 1, .bias = nullptr};
    gemm_ = panel_twin(a.isa).gemm;
  }

  void run() {
    a_.pool->for_each(a_.tokens, [this](std::int64_t t, int m) { prepare(t, m); });
    const std::int64_t chunks = (l_.panels() + kChunkPanels - 1) / kChunkPanels;
    a_.pool->for_each(chunks, [this](std::int64_t c, int m) { multiply(c, m); });
  }

 private:
  void prepare(std::int64_t t, int member) {
    float* row = parts_.stage.data() + member * l_.padded_cols();
    for (std::int64_t k = 0; k < s_.in; ++k) row[k] = load_element(a_.x_dtype, a_.x, at(t, k));
    if (a_.norm != nullptr) {
      const float inverse = 1 / std::sqrt(mean_square(row, s_.in) + a_.norm_eps);
      for (std::int64_t k = 0; k < s_.in; ++k) row[k] = row[k] * inverse * a_.norm[k];
    }
    std::fill(row + s_.in, row + l_.padded_cols(), 0.0f);
    parts_.ones[std::size_t(t)] = 1;
    for (std::int64_t k = 0; k < l_.padded_cols(); ++k) {
      const std::size_t to = std::size_t(t * l_.padded_cols() + k);
      if (parts_.floats.empty()) {
        parts_.pairs[to] = float_to_bf16(row[k]);
      } else {
        parts_.floats[to] = rounded(row[k]);
      }
    }
  }

  float rounded(float v) const {
    if (!s_.rounds || s_.dtype == Dtype::kF32) return v;
    return s_.dtype == Dtype::kFp16 ? fp16_to_float(float_to_fp16(v))
                                    : bf16_to_float(float_to_bf16(v));
  }

  void multiply(std::int64_t chunk, int member) {
    const std::int64_t begin = chunk * kChunkPanels;
    const std::int64_t end = std::min(begin + kChunkPanels, l_.panels());
    const std::int64_t cols = (end - begin) * kPanelRows;
    float* tile = parts_.tiles.data() + member * kRowBlock * kChunkPanels * kPanelRows;
    const PanelInput x{.pairs = parts_.floats.empty() ? parts_.pairs.data() : nullptr,
                       .floats = parts_.floats.empty() ? nullptr : parts_.floats.data(),
                       .stride = l_.padded_cols(),
                       .block_scales = nullptr,
                       .scale_stride = 0,
                       .row_scales = parts_.ones.data()};
    for (std::int64_t row = 0; row < a_.tokens; row += kRowBlock) {
      const std::int64_t rows = std::min(kRowBlock, a_.tokens - row);
      gemm_({.w = &w_,
             .panel_begin = begin,
             .panel_end = end,
             .x = x.from_row(row),
             .index = nullptr,
             .num_rows = rows,
             .y = tile,
             .y_stride = cols});
      store(row, rows, begin * kPanelRows, {tile, rows, cols, cols});
    }
  }

  void store(std::int64_t row, std::int64_t rows, std::int64_t c0, Span2d<const float> tile) const {
    const std::int64_t valid = std::min(tile.cols, s_.out - c0);
    for (std::int64_t t = row; t < row + rows; ++t)
      for (std::int64_t c = 0; c < valid; ++c) {
        float v = tile.data[(t - row) * tile.stride + c];
        if (a_.addend != nullptr) v += a_.addend[t * s_.out + c0 + c];
        store_element(a_.out_dtype, a_.out, t * a_.out_stride + c0 + c, v);
      }
  }

  std::int64_t at(std::int64_t t, std::int64_t k) const { return t * a_.x_stride + k; }

  const ProjectionArgs& a_;
  const ProjectionShape& s_;
  PanelLayout l_;
  Arena arena_;
  Parts parts_;
  PanelMatrix w_;
  PanelGemm gemm_ = nullptr;
};

}  // namespace

Eligibility can_project(const formats::WeightLayout& w) {
  if (w.scale == formats::ScaleType::kNone && !w.global_scale && formats::bits_of(w.element) == 16)
    return Eligibility::yes();
  return Eligibility::no(
      Reject::kQuantUnsupported,
      cat("projection weights are stored as ", to_string(w.element), " with ", to_string(w.scale),
          " scales; served are bf16 and fp16 without scales"));
}

PanelLayout ProjectionShape::layout() const {
  const Eligibility verdict = can_project(weights);
  require(verdict.eligible(), verdict.detail());
  return make_panel_layout(weights, out, in);
}

void pack_projection(const ProjectionShape& s, const char* what, const formats::Matrix& w,
                     std::span<std::byte> packed) {
  require(w.rows == s.out && w.cols == s.in, what, " is [", w.rows, ", ", w.cols,
          "], this layer needs [", s.out, ", ", s.in, "]");
  require(w.layout == s.weights, what, " is stored as ", to_string(w.layout.element), " with ",
          to_string(w.layout.scale), " scales, its shape says ", to_string(s.weights.element));
  w.check(what);
  pack_panels(w, s.layout(), packed, {});
}

void ProjectionArgs::check() const {
  require(tokens >= 0, "projection: tokens = ", tokens, " is negative");
  require(pool != nullptr, "projection: a CPU call needs a thread pool");
  require(tokens == 0 || (x != nullptr && out != nullptr && packed != nullptr),
          "projection: input, output or weights are null");
  require(x_stride >= shape->in, "projection: x stride ", x_stride, " is below its width ",
          shape->in);
  require(out_stride >= shape->out, "projection: output stride ", out_stride,
          " is below its width ", shape->out);
}

std::size_t projection_workspace_bytes(const ProjectionShape& shape, std::int64_t max_tokens,
                                       int threads) {
  Arena arena;
  take_parts(arena, shape, max_tokens, threads);
  return arena.used();
}

void projection_cpu(const ProjectionArgs& args) {
  args.check();
  if (args.tokens == 0) return;
  FloatEnvScope env;
  Projection(args).run();
}

}  // namespace switchyard::ops
