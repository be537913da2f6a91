// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/base/float_env.h"
#include "switchyard/ops/activation/activation.h"
#include "switchyard/ops/grouped_ffn/ffn_plan.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/quantize/quantize.h"
#include "switchyard/ops/quantize/quantize_math.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;

/// Asks for the first lines of a stream of weights that is read next: the processor's own
/// prefetcher starts only after some misses.
void prefetch_stream(const std::byte* p) {
  constexpr std::int64_t kBytes = 2048, kLine = 64;
  for (std::int64_t i = 0; i < kBytes; i += kLine) __builtin_prefetch(p + i, 0, 2);
}

struct QuantizeJob {
  const float* x;
  std::int64_t cols;
  std::int64_t row;  // of `out`
  float static_scale;
  const QuantizedRows* out;
};

FfnCall call_of(const FfnArgs& a) { return {a.shape, a.tokens, a.pool->size(), a.isa}; }

/// The caller's tactic, checked, or the plan's.
PanelTactic tactic_of(const FfnArgs& a) {
  if (a.tactic != nullptr) check_panel_tactic(call_of(a), *a.tactic);
  return std::get<PanelTactic>(a.tactic != nullptr ? *a.tactic : plan_panels(call_of(a)));
}

/// One forward's state; every member function is one stage.
class Forward {
 public:
  explicit Forward(const FfnArgs& a)
      : a_(a),
        s_(*a.shape),
        l_(*a.layout),
        tactic_(tactic_of(a)),
        sizes_(ffn_sizes(s_, a.tokens, a.isa)),
        arena_(a.workspace) {
    b_ = take_buffers(arena_, s_, l_, sizes_, a.pool->size());
    const PanelTwin twin = panel_twin(a.isa);
    gemm_ = twin.gemm;
    activate_ = activation_twin(a.isa);
    if (sizes_.fixed) fix_row_ = twin.fix_row;
  }

  void run() {
    active_ = sort_rows(a_, b_);
    if (s_.inter > 0) run_to_inter();
    fc2_ = {l_.fc2.panels(), tactic_.fc2_panels, 1, a_.pool->size(), tactic_.cuts};
    a_.pool->for_each(fc2_.count(), [this](std::int64_t i, int m) { fc2_task(i, m); });
  }

 private:
  /// Everything up to FC2's input. Whoever ends an expert's last panels quantises its rows, which
  /// leaves one barrier in front of FC1 and one behind it; rows that are more than a thread's part
  /// of all are left to all threads.
  void run_to_inter() {
    a_.pool->for_each(sizes_.x_rows, [this](std::int64_t i, int m) { quantize_input(i, m); });
    fc1_ = {l_.fc1.panels(), tactic_.fc1_panels, active_, a_.pool->size(), tactic_.cuts};
    std::fill(b_.open_panels.begin(), b_.open_panels.end(), std::int32_t(l_.fc1.panels()));
    a_.pool->for_each(fc1_.count(), [this](std::int64_t i, int m) { fc1_task(i, m); });
    for (const std::int32_t e : b_.active.first(std::size_t(active_))) {
      if (!is_large(e)) break;  // most rows first
      const std::int64_t first = b_.offsets[std::size_t(e)];
      a_.pool->for_each(rows_of(e), [&](std::int64_t i, int) { quantize_inter(e, first + i); });
    }
  }

  std::int64_t rows_of(std::int64_t e) const {
    return b_.offsets[std::size_t(e) + 1] - b_.offsets[std::size_t(e)];
  }
  bool is_large(std::int64_t e) const {
    constexpr std::int64_t kFew = 16;
    const std::int64_t rows = rows_of(e), all = b_.offsets[std::size_t(s_.experts)];
    return rows > kFew && rows * a_.pool->size() > all;
  }

  const float* floats_of(std::int64_t e) const {
    return reinterpret_cast<const float*>(expert(e) + l_.floats);
  }
  const std::byte* expert(std::int64_t e) const { return a_.packed + e * std::int64_t(l_.bytes); }

  PanelMatrix matrix(std::int64_t e, const PanelLayout& layout, std::size_t codes,
                     std::size_t scales, int alpha, std::size_t bias) const {
    return {.layout = layout,
            .codes = expert(e) + codes,
            .scales = expert(e) + scales,
            .alpha = floats_of(e)[alpha],
            .bias = s_.bias ? reinterpret_cast<const float*>(expert(e) + bias) : nullptr};
  }

  /// The part of a matrix that starts at `panel` is read next; its first codes.
  const std::byte* prefetch(std::int64_t e, const PanelLayout& layout, std::size_t codes,
                            std::size_t scales, std::int64_t panel) const {
    const std::byte* first = expert(e) + codes + panel * std::int64_t(layout.panel_code_bytes());
    prefetch_stream(first);
    if (layout.scale != formats::ScaleType::kNone)
      __builtin_prefetch(expert(e) + scales + panel * std::int64_t(layout.panel_scale_bytes()), 0,
                         2);
    return first;
  }

  const void* token(std::int64_t t) const {
    if (a_.x_rows.rows != nullptr) return a_.x_rows.rows[t];
    return static_cast<const std::byte*>(a_.x) +
           t * a_.x_stride * std::int64_t(size_of(a_.x_dtype));
  }

  std::byte* scratch(int member) const {
    return b_.scratch.empty() ? nullptr : b_.scratch.data() + member * b_.scratch_stride;
  }

  void quantize(const QuantizeJob& job) const {
    const QuantizedRows& q = *job.out;
    const std::int64_t at = job.row * q.stride;
    if (sizes_.floats) return quantize_to_floats(job, q.floats.data() + at);
    quantize_row_cpu(
        {.kind = s_.quant,
         .x = job.x,
         .cols = job.cols,
         .static_scale = job.static_scale,
         .values = q.pairs.data() + at,
         .block_scales =
             sizes_.block_scales ? q.block_scales.data() + job.row * q.scale_stride : nullptr,
         .row_scale = &q.row_scales[std::size_t(job.row)]},
        a_.isa);
    end_row(q, job.row, job.cols);
  }

  /// The padding of a row of pairs, and its fixed form.
  void end_row(const QuantizedRows& q, std::int64_t row, std::int64_t cols) const {
    std::uint16_t* pairs = q.pairs.data() + row * q.stride;
    std::fill(pairs + cols, pairs + q.stride, std::uint16_t(0));
    if (fix_row_ != nullptr)
      fix_row_(q.form, pairs, q.stride, q.fixed.data() + row * q.fixed_stride);
  }

  /// A row that came in codes.
  void decode_input(std::int64_t t) {
    const FfnInputRows& in = a_.x_rows;
    const QuantizedRows& q = b_.x;
    decode_row_cpu(
        {.kind = s_.quant,
         .codes = reinterpret_cast<const std::uint8_t*>(in.rows[t]),
         .scales =
             in.scales != nullptr ? reinterpret_cast<const std::uint8_t*>(in.scales[t]) : nullptr,
         .cols = s_.hidden,
         .static_scale = a_.fc1_input_scale,
         .values = q.pairs.data() + t * q.stride,
         .block_scales = sizes_.block_scales ? q.block_scales.data() + t * q.scale_stride : nullptr,
         .row_scale = &q.row_scales[std::size_t(t)]});
    end_row(q, t, s_.hidden);
  }

  void quantize_to_floats(const QuantizeJob& job, float* out) const {
    for (std::int64_t k = 0; k < job.cols; ++k) {
      float v = job.x[k];
      if (s_.quant == ActivationQuant::kNone) round_to_hidden(v);
      out[k] = v;
    }
    std::fill(out + job.cols, out + job.out->stride, 0.0f);
    job.out->row_scales[std::size_t(job.row)] = 1;
  }

  void round_to_hidden(float& v) const {
    if (s_.dtype == Dtype::kFp16) v = fp16_to_float(float_to_fp16(v));
    if (s_.dtype == Dtype::kBf16) v = bf16_to_float(float_to_bf16(v));
  }

  void quantize_input(std::int64_t i, int member) {
    if (a_.x_rows.quantised) return decode_input(i);
    const std::int64_t t = s_.weight_on_input ? i / s_.top_k : i;
    float* row = b_.stage.data() + member * b_.stage_stride;
    for (std::int64_t k = 0; k < s_.hidden; ++k) row[k] = load_element(a_.x_dtype, token(t), k);
    if (s_.weight_on_input)
      for (std::int64_t k = 0; k < s_.hidden; ++k) row[k] *= a_.weights[i];
    quantize({row, s_.hidden, i, a_.fc1_input_scale, &b_.x});
  }

  void fc1_task(std::int64_t task, int member) {
    const auto [of, begin, end] = fc1_.range(task);
    if (begin == end) return;
    const std::int64_t e = b_.active[std::size_t(of)];
    const std::int64_t first = b_.offsets[std::size_t(e)], last = b_.offsets[std::size_t(e) + 1];
    const std::byte* next = prefetch_fc1(task + a_.pool->size());  // likely this thread's next one
    const std::int64_t block = tactic_.row_block;
    for (std::int64_t row = first; row < last; row += block)
      fc1_block({e, begin, end, row, std::min(block, last - row), next}, member);
    const auto done = std::int32_t(end - begin);
    const std::atomic_ref open(b_.open_panels[std::size_t(e)]);
    if (open.fetch_sub(done, std::memory_order_acq_rel) == done && !is_large(e))
      for (std::int64_t row = first; row < last; ++row) quantize_inter(e, row);
  }

  /// Asks for the beginning of a task; its first codes, null where there are none.
  const std::byte* prefetch_fc1(std::int64_t task) const {
    if (task >= fc1_.count()) return nullptr;
    const PanelTasks::Range next = fc1_.range(task);
    if (next.begin == next.end) return nullptr;
    return prefetch(b_.active[std::size_t(next.matrix)], l_.fc1, l_.up_codes, l_.up_scales,
                    next.begin);
  }

  /// Rows of one expert times the panels [begin, end) of its FC1.
  struct Fc1Block {
    std::int64_t expert, begin, end, row, rows;
    const std::byte* next;  // codes of what follows
  };

  void fc1_block(const Fc1Block& block, int member) {
    const auto [e, begin, end, row, rows, next] = block;
    const std::int64_t cols = (end - begin) * kPanelRows;
    float* gate = b_.tiles.data() + member * b_.tile_stride;
    float* up = gate + tactic_.row_block * cols;
    PanelMatrix w = matrix(e, l_.fc1, l_.up_codes, l_.up_scales, 1, l_.up_bias);
    PanelGemmArgs g{.w = &w,
                    .panel_begin = begin,
                    .panel_end = end,
                    .x = b_.x.input(),
                    .index = b_.input_row.data() + row,
                    .num_rows = rows,
                    .y = up,
                    .y_stride = cols,
                    .next = next,
                    .scratch = scratch(member)};
    if (s_.gated) g.next = prefetch(e, l_.fc1, l_.gate_codes, l_.gate_scales, begin);
    gemm_(g);
    if (s_.gated) {
      w = matrix(e, l_.fc1, l_.gate_codes, l_.gate_scales, 0, l_.gate_bias);
      g.next = next;
      g.y = gate;
      gemm_(g);
    }
    if (a_.capture != nullptr) capture_fc1(row, begin, {up, rows, cols, cols}, gate);
    const std::int64_t stride = l_.fc1.panels() * kPanelRows;
    float* inter = b_.inter.data() + row * stride + begin * kPanelRows;
    const ActivationParams& params = a_.activation[e];
    activate_({.kind = params,
               .gate = {s_.gated ? gate : nullptr, s_.gated ? rows : 0, s_.gated ? cols : 0, cols},
               .up = {up, rows, cols, cols},
               .params = &params,
               .num_params = 1,
               .out = {inter, rows, cols, stride}},
              0, rows);
  }

  void quantize_inter(std::int64_t e, std::int64_t i) {
    quantize({b_.inter.data() + i * l_.fc1.panels() * kPanelRows, s_.inter, i, floats_of(e)[3],
              &b_.inter_quant});
    if (a_.capture != nullptr) capture_row(i);
  }

  /// A tile of FC1's sums, from sorted row `row` and panel `begin` on; gate has up's extents.
  void capture_fc1(std::int64_t row, std::int64_t begin, Span2d<const float> up,
                   const float* gate) const {
    const std::int64_t c0 = begin * kPanelRows, valid = std::min(up.cols, s_.inter - c0);
    for (std::int64_t i = 0; i < up.rows; ++i) {
      const std::int64_t to = std::int64_t(b_.sorted_row[std::size_t(row + i)]) * s_.inter + c0;
      if (a_.capture->up != nullptr) std::copy_n(up.row(i), valid, a_.capture->up + to);
      if (a_.capture->gate != nullptr && s_.gated)
        std::copy_n(gate + i * up.stride, valid, a_.capture->gate + to);
    }
  }

  void capture_row(std::int64_t i) const {
    if (a_.capture->inter == nullptr) return;
    double* out = a_.capture->inter + std::int64_t(b_.sorted_row[std::size_t(i)]) * s_.inter;
    const QuantizedRows& q = b_.inter_quant;
    for (std::int64_t k = 0; k < s_.inter; ++k) {
      double v = sizes_.floats ? q.floats[std::size_t(i * q.stride + k)]
                               : bf16_to_float(q.pairs[std::size_t(i * q.stride + k)]);
      if (sizes_.block_scales) v *= q.block_scales[std::size_t(i * q.scale_stride + k / 128)];
      out[k] = v * q.row_scales[std::size_t(i)];
    }
  }

  void fc2_task(std::int64_t task, int member) {
    const auto [of, begin, end] = fc2_.range(task);
    if (begin == end) return;
    const std::int64_t cols = (end - begin) * kPanelRows;
    float* rows = b_.fc2.data() + member * b_.fc2_stride;
    if (s_.inter == 0)  // an empty TP shard
      std::fill_n(rows, b_.offsets[std::size_t(s_.experts)] * cols, 0.0f);
    for (std::int64_t i = 0; i < active_ && s_.inter > 0; ++i) {
      const std::int64_t e = b_.active[std::size_t(i)];
      const std::int64_t first = b_.offsets[std::size_t(e)];
      const PanelMatrix w = matrix(e, l_.fc2, l_.down_codes, l_.down_scales, 2, l_.down_bias);
      const std::byte* next = i + 1 < active_ ? prefetch(b_.active[std::size_t(i + 1)], l_.fc2,
                                                         l_.down_codes, l_.down_scales, begin)
                                              : prefetch_fc2(task + a_.pool->size());
      gemm_({.w = &w,
             .panel_begin = begin,
             .panel_end = end,
             .x = b_.inter_quant.input().from_row(first),
             .index = nullptr,
             .num_rows = b_.offsets[std::size_t(e) + 1] - first,
             .y = rows + first * cols,
             .y_stride = cols,
             .next = next,
             .scratch = scratch(member)});
    }
    const std::int64_t c0 = begin * kPanelRows, valid = std::min(cols, s_.hidden - c0);
    for (std::int64_t t = 0; t < a_.tokens; ++t) {
      if (a_.rows != nullptr) write_rows(t, rows, cols, c0, valid);
      if (a_.out != nullptr) combine(t, rows, cols, c0, valid);
    }
  }

  /// As prefetch_fc1().
  const std::byte* prefetch_fc2(std::int64_t task) const {
    if (task >= fc2_.count()) return nullptr;
    const PanelTasks::Range next = fc2_.range(task);
    if (next.begin == next.end) return nullptr;
    return prefetch(b_.active[0], l_.fc2, l_.down_codes, l_.down_scales, next.begin);
  }

  void write_rows(std::int64_t t, const float* rows, std::int64_t cols, std::int64_t c0,
                  std::int64_t valid) const {
    for (std::int64_t j = 0; j < s_.top_k; ++j) {
      const std::int64_t r = t * s_.top_k + j, sorted = b_.sorted_of[std::size_t(r)];
      const bool zero_expert = a_.ids[r] >= s_.experts;
      if (sorted < 0 && !zero_expert) continue;
      for (std::int64_t c = 0; c < valid; ++c)
        store_element(
            a_.rows_dtype, a_.rows, r * s_.hidden + c0 + c,
            zero_expert ? load_element(a_.x_dtype, token(t), c0 + c) : rows[sorted * cols + c]);
    }
  }

  void combine(std::int64_t t, const float* rows, std::int64_t cols, std::int64_t c0,
               std::int64_t valid) const {
    float sum[kMaxChunkCols] = {};
    const std::int64_t scaled = s_.top_k - s_.unscaled_choices;
    for (std::int64_t j = 0; j < s_.top_k; ++j) {
      if (j == scaled) scale(sum, valid);
      const std::int64_t r = t * s_.top_k + j, sorted = b_.sorted_of[std::size_t(r)];
      const float weight = s_.weight_on_input ? 1.0f : a_.weights[r];
      if (sorted >= 0) {
        add_row(sum, rows + sorted * cols, weight, cols);
      } else if (a_.ids[r] >= s_.experts) {
        for (std::int64_t c = 0; c < valid; ++c)
          sum[c] += a_.weights[r] * load_element(a_.x_dtype, token(t), c0 + c);
      }
    }
    if (s_.unscaled_choices == 0) scale(sum, valid);
    if (a_.addend != nullptr)
      for (std::int64_t c = 0; c < valid; ++c) sum[c] += a_.addend[t * s_.hidden + c0 + c];
    store_output(t * a_.out_stride + c0, sum, valid);
  }

  /// Rounds `valid` sums into the output from element `at` on.
  void store_output(std::int64_t at, const float* sum, std::int64_t valid) const {
    if (a_.out_dtype != Dtype::kBf16) {
      for (std::int64_t c = 0; c < valid; ++c) store_element(a_.out_dtype, a_.out, at + c, sum[c]);
      return;
    }
    std::uint16_t rounded[kMaxChunkCols];  // in runs of a constant length, as add_row()
    for (std::int64_t c0 = 0; c0 < valid; c0 += kPanelRows)
      for (std::int64_t c = 0; c < kPanelRows; ++c) rounded[c0 + c] = bf16_bits(sum[c0 + c]);
    std::memcpy(static_cast<std::uint16_t*>(a_.out) + at, rounded, std::size_t(valid) * 2);
  }

  /// In runs of a constant length, which vectorise; the padded columns' sums are not read.
  static void add_row(float* sum, const float* row, float weight, std::int64_t cols) {
    for (std::int64_t c0 = 0; c0 < cols; c0 += kPanelRows)
      for (std::int64_t c = 0; c < kPanelRows; ++c) sum[c0 + c] += weight * row[c0 + c];
  }

  void scale(float* sum, std::int64_t valid) const {
    for (std::int64_t c = 0; c < valid; ++c) sum[c] *= a_.factor;
  }

  static constexpr std::int64_t kMaxChunkCols = kMostFc2Panels * kPanelRows;

  const FfnArgs& a_;
  const FfnShape& s_;
  const ExpertLayout& l_;
  PanelTactic tactic_;
  FfnSizes sizes_;
  Arena arena_;
  FfnBuffers b_;
  PanelGemm gemm_ = nullptr;
  ActivationRows activate_ = nullptr;
  FixRow fix_row_ = nullptr;  // null: this twin reads the pairs
  std::int64_t active_ = 0;
  PanelTasks fc1_, fc2_;
};

}  // namespace

void FfnArgs::check() const {
  require(tokens >= 0, "tokens = ", tokens, " is negative");
  require(tokens * shape->top_k <= INT32_MAX, "tokens x top_k = ", tokens * shape->top_k,
          " exceeds ", INT32_MAX, "; split the call");
  require(x_rows.rows != nullptr || x_stride >= shape->hidden, "x stride ", x_stride,
          " is below hidden = ", shape->hidden);
  require(!x_rows.quantised || (x_rows.rows != nullptr && quantises_ahead(*shape)),
          "the rows are said to be quantised already, and these experts quantise ",
          to_string(shape->quant), " behind what a sender could do");
  require(out == nullptr || out_stride >= shape->hidden, "output stride ", out_stride,
          " is below hidden = ", shape->hidden);
}

bool quantises_ahead(const FfnShape& s) {
  const bool in_floats = ffn_sizes(s, 1, CpuIsa::kPortable).floats;
  return s.quant != ActivationQuant::kNone && !in_floats && !s.weight_on_input;
}

std::size_t ffn_workspace_bytes(const FfnShape& shape, const ExpertLayout& layout,
                                std::int64_t max_tokens, const CpuTeam& team) {
  std::size_t bytes = 0;
  // Tasks of FC2 narrow past these rows, so the largest need can be just below one.
  for (std::int64_t panels = 1; panels <= kMostFc2Panels; panels *= 2) {
    const std::int64_t rows =
        std::min(max_tokens * shape.top_k, panels == 1 ? INT64_MAX : kMostFc2Values / panels);
    Arena arena;
    take_buffers(arena, shape, layout, ffn_sizes(shape, rows / shape.top_k, team.isa),
                 team.threads);
    bytes = std::max(bytes, arena.used());
  }
  return bytes;
}

void grouped_ffn_cpu(const FfnArgs& args) {
  args.check();
  require(args.pool != nullptr, "a CPU forward needs a thread pool");
  require(args.route == nullptr, "a CPU forward does not route; route in front of it");
  if (args.tokens == 0) return;
  FloatEnvScope env;
  Forward(args).run();
}

}  // namespace switchyard::ops
