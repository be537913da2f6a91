// SPDX-License-Identifier: Apache-2.0
// The schedulers of a rank: exchange (route, dispatch, experts, combine, finalize) under dep, and
// reduce (route, [gather,] experts, sum of shares) in the other modes.
#include <algorithm>
#include <functional>

#include "switchyard/base/check.h"
#include "switchyard/base/float_env.h"
#include "switchyard/layer/rank_layer.h"
#include "switchyard/layer/single_rank.h"

namespace switchyard::layer {
namespace {

/// Dtype in which the experts can write a wire form themselves; F32 where it is encoded after them.
Dtype written_dtype(comm::Wire wire) {
  return wire == comm::Wire::kBf16   ? Dtype::kBf16
         : wire == comm::Wire::kFp16 ? Dtype::kFp16
                                     : Dtype::kF32;
}

bool written_in_place(comm::Wire wire) {
  return wire != comm::Wire::kFp8 && wire != comm::Wire::kNvfp4;
}

/// Finishes a token: factor, shared expert, the one rounding of the output.
struct Finisher {
  const ForwardArgs& args;
  Dtype dtype;
  std::int64_t hidden;
  float factor = 1;
  const float* shared = nullptr;  // [tokens, hidden]
  const Routed* zero = nullptr;   // where choices of zero experts are added here
  std::int64_t num_experts = 0;

  /// Element `h` of weight * x over the token's choices of zero experts, behind `sum`.
  float with_zero(float sum, std::int64_t token, std::int64_t h) const {
    for (std::int64_t j = 0; zero != nullptr && j < zero->width; ++j) {
      const std::size_t at = std::size_t(token * zero->width + j);
      if (zero->ids[at] >= num_experts)
        sum += zero->weights[at] * load_element(dtype, args.hidden, token * args.hidden_stride + h);
    }
    return sum;
  }

  static void row(void* self, std::int64_t token, const float* sum) {
    const auto& f = *static_cast<const Finisher*>(self);
    const float* addend = f.shared != nullptr ? f.shared + token * f.hidden : nullptr;
    for (std::int64_t h = 0; h < f.hidden; ++h) {
      float value = f.with_zero(sum[h], token, h) * f.factor;
      if (addend != nullptr) value += addend[h];
      store_element(f.dtype, f.args.out, token * f.args.out_stride + h, value);
    }
  }
};

}  // namespace

/// The parts of a forward's workspace, and what routing said.
struct RankLayer::Scratch {
  Parts parts;
  Routed routed;
  std::span<float> rows;           // shares before their encoding, where the experts cannot encode
  std::span<std::int32_t> placed;  // slots of the choices, where they are not the ids
  std::span<std::int32_t> local_ids;  // of a reduction
  std::span<float> local_weights;
  std::span<std::int32_t> counts;  // of a balanced layer: this rank's choices by expert
};

/// Rows to run through this rank's experts, and where their shares go; strides in bytes.
struct RankLayer::Rows {
  std::int64_t count = 0;
  const void* hidden = nullptr;
  std::int64_t hidden_stride = 0;
  const std::int32_t* ids = nullptr;  // local
  const float* weights = nullptr;
  float factor = 1;
  const float* addend = nullptr;
  std::byte* shares = nullptr;
  std::int64_t share_stride = 0;
};

RankLayer::Scratch RankLayer::take_scratch(Arena& arena) const {
  const std::size_t capacity = std::size_t(options_.capacity);
  Scratch s;
  s.parts = take_parts(arena, *layer_, options_.capacity);
  if (!written_in_place(wire_)) s.rows = arena.take<float>(capacity * std::size_t(shape_.hidden));
  const std::size_t choices = capacity * std::size_t(layer_->problem().top_k());
  const bool as_chosen =
      options_.slot_experts.empty() && (reduction_ || layer_->problem().routing.zero_experts == 0);
  s.placed = as_chosen ? s.parts.ids : arena.take<std::int32_t>(choices);
  if (reduction_) {
    s.local_ids = arena.take<std::int32_t>(choices);
    s.local_weights = arena.take<float>(choices);
  }
  s.counts = arena.take<std::int32_t>(counts_.size());
  s.routed = {s.parts.ids, s.parts.weights, layer_->problem().top_k(),
              layer_->problem().routed_scaling_factor};
  return s;
}

std::size_t RankLayer::workspace_bytes() const {
  Arena arena;
  take_scratch(arena);
  return arena.used();
}

void RankLayer::run_rows(const Rows& r, const Scratch& scratch) const {
  const ExpertBank& bank = layer_->routed();
  const Dtype x_dtype = layer_->options().dtype, y_dtype = written_dtype(wire_);
  const bool direct = written_in_place(wire_);
  ops::FfnArgs f;
  f.shape = &shape_;
  f.layout = &bank.layout;
  f.packed = bank.packed.data();
  f.fc1_input_scale = bank.scales.fc1;
  f.activation = bank.activation.data();
  f.tokens = r.count;
  f.x_dtype = x_dtype;
  f.x = r.hidden;
  f.x_stride = r.hidden_stride / std::int64_t(size_of(x_dtype));
  f.ids = r.ids;
  f.weights = r.weights;
  f.factor = r.factor;
  f.addend = r.addend;
  f.out_dtype = y_dtype;
  f.out = direct ? static_cast<void*>(r.shares) : scratch.rows.data();
  f.out_stride = direct ? r.share_stride / std::int64_t(size_of(y_dtype)) : shape_.hidden;
  f.pool = layer_->options().pool.get();
  f.isa = layer_->options().isa;
  f.workspace = scratch.parts.stage;
  layer_->options().leaf->ffn->forward(f);
  for (std::int64_t i = 0; i < r.count && !direct; ++i)
    comm::encode_row(wire_, scratch.rows.data() + i * shape_.hidden, shape_.hidden,
                     r.shares + i * r.share_stride);
}

void RankLayer::run_received(const comm::Received& in, const Scratch& scratch) const {
  for (const comm::Segment& segment : in.runs)
    run_rows({.count = segment.rows,
              .hidden = in.hidden + segment.first * in.hidden_stride,
              .hidden_stride = in.hidden_stride,
              .ids = in.ids + segment.first * in.ids_per_row,
              .weights = in.weights + segment.first * in.ids_per_row,
              .shares = in.shares + segment.first * in.share_stride,
              .share_stride = in.share_stride},
             scratch);
}

void RankLayer::exchange(const ForwardArgs& a, Scratch& s) {
  const Layer& layer = *layer_;
  const std::int64_t element = std::int64_t(size_of(layer.options().dtype));
  if (a.tokens > 0 && layer.shared() != nullptr) run_shared(layer, a, s.parts);
  comm::Ticket ticket = exchange_->dispatch({.tokens = a.tokens,
                                             .hidden = a.hidden,
                                             .hidden_stride = a.hidden_stride * element,
                                             .row_bytes = layer.problem().hidden * element,
                                             .ids = s.placed.data(),
                                             .weights = s.routed.weights.data(),
                                             .stats = s.counts.empty() ? nullptr : s.counts.data(),
                                             .wire = wire_});
  if (options_.balanced) gather_counts(ticket.received().stats);
  run_received(ticket.received(), s);
  if (options_.balanced) cycle_.start_set();
  Finisher finisher{a, layer.options().dtype, layer.problem().hidden};
  finisher.factor = s.routed.factor;
  if (layer.shared() != nullptr) finisher.shared = s.parts.shared_out.data();
  if (layer.problem().routing.zero_experts > 0) finisher.zero = &s.routed;
  finisher.num_experts = num_experts_;
  exchange_->combine(std::move(ticket), {&finisher, Finisher::row});
}

/// The shares of one block: the held experts' sum times the factor, and this rank's shard of the
/// shared expert.
void RankLayer::run_block(int b, const ForwardArgs& a, Scratch& s) const {
  const comm::TokenBlock block = reduction_->block(b);
  if (block.tokens == 0) return;
  const std::int64_t element = std::int64_t(size_of(layer_->options().dtype));
  const std::size_t choices = std::size_t(block.tokens * shape_.top_k);
  const bool gathered = block.hidden != nullptr;
  ForwardArgs of_block = a;
  of_block.tokens = block.tokens;
  if (gathered) {
    of_block.hidden = block.hidden;
    of_block.hidden_stride = block.hidden_stride / element;
    of_block.capture = nullptr;  // it is for this rank's own tokens
  }
  localise({gathered ? block.ids : s.placed.data(), choices},
           {gathered ? block.weights : s.routed.weights.data(), choices}, b, s.local_ids.data(),
           s.local_weights.data());
  const bool shared = layer_->shared() != nullptr;
  if (shared) run_shared(*layer_, of_block, s.parts);
  run_rows({.count = block.tokens,
            .hidden = of_block.hidden,
            .hidden_stride = of_block.hidden_stride * element,
            .ids = s.local_ids.data(),
            .weights = s.local_weights.data(),
            .factor = block.factor,
            .addend = shared ? s.parts.shared_out.data() : nullptr,
            .shares = block.shares,
            .share_stride = block.share_stride},
           s);
}

void RankLayer::reduce(const ForwardArgs& a, Scratch& s) {
  const Layer& layer = *layer_;
  reduction_->begin(
      {.tokens = a.tokens,
       .hidden = a.hidden,
       .hidden_stride = a.hidden_stride * std::int64_t(size_of(layer.options().dtype)),
       .ids = s.placed.data(),
       .weights = s.routed.weights.data(),
       .factor = s.routed.factor,
       .wire = wire_});
  if (options_.balanced) see_counts(s);
  for (int b = 0; b < reduction_->num_blocks(); ++b) run_block(b, a, s);
  if (options_.balanced) cycle_.start_set();
  Finisher finisher{a, layer.options().dtype, layer.problem().hidden};
  reduction_->finish({&finisher, Finisher::row});
}

/// What this rank's tokens ask of each expert. Zero experts are nobody's load.
void RankLayer::count_choices(const ForwardArgs& a, Scratch& s) {
  std::fill(s.counts.begin(), s.counts.end(), 0);
  const std::int64_t k = layer_->problem().top_k();
  for (std::int32_t id : s.routed.ids.first(std::size_t(a.tokens * k)))
    if (id >= 0 && id < num_experts_) ++s.counts[std::size_t(id)];
  cycle_.count();
}

/// The counts of all ranks, as the exchange has carried them.
void RankLayer::gather_counts(const std::int32_t* stats) {
  const std::size_t experts = counts_.size();
  for (std::size_t i = 0; i < experts * std::size_t(group_.size()); ++i)
    counts_[i % experts] += stats[i];
  cycle_.gathered();
}

/// Under a reduction every rank sees all tokens' choices itself: its own under attention TP, else
/// every rank's, as slots.
void RankLayer::see_counts(const Scratch& s) {
  if (!own_tokens())
    std::transform(counts_.begin(), counts_.end(), s.counts.begin(), counts_.begin(), std::plus());
  for (int b = 0; own_tokens() && b < reduction_->num_blocks(); ++b) {
    const comm::TokenBlock block = reduction_->block(b);
    const std::size_t choices = std::size_t(block.tokens * layer_->problem().top_k());
    for (std::int32_t slot : std::span(block.ids, choices))
      if (slot >= 0 && slot < slots_.num_slots())
        ++counts_[std::size_t(slots_.experts()[std::size_t(slot)])];
  }
  cycle_.gathered();
}

void RankLayer::forward(const ForwardArgs& a) {
  const FloatEnvScope env;  // sums and roundings of the ranks are made on this thread
  const auto reading = layer_->reading();
  try {
    if (options_.balanced) {
      cycle_.start_wait();
      cycle_.done_wait();  // migrations are collective calls: none can be under way here
    }
    run(a);
    if (options_.balanced) cycle_.done_set();
  } catch (const std::exception& e) {
    cycle_.reset();
    group_.abort(e.what());  // or the others would wait for this rank
    throw;
  }
}

void RankLayer::run(const ForwardArgs& a) {
  const Layer& layer = *layer_;
  require(a.tokens <= options_.capacity, "forward of ", a.tokens, " tokens on rank ", group_.rank(),
          " exceeds the capacity ", options_.capacity,
          "; split the batch or build the layer for more");
  require(a.unfinalised == nullptr, "an unfinalised output is built for one rank only");
  require(!needs_calibration_, "forward: format ", layer.problem().format,
          " has static activation scales and this layer has none; calibrate it first, or ask for "
          "activations = bf16");
  check_forward(layer, a);
  write_trace(layer, a);
  Arena arena(a.workspace);
  Scratch scratch = take_scratch(arena);
  if (a.tokens > 0) choose_experts(layer, a, scratch.parts, scratch.routed);
  if (options_.balanced) count_choices(a, scratch);
  if (scratch.placed.data() != scratch.parts.ids.data())
    place(a.tokens, a.hidden, a.hidden_stride * std::int64_t(size_of(layer.options().dtype)),
          scratch.routed.ids, scratch.placed);
  if (options_.balanced) cycle_.route();
  exchange_ ? exchange(a, scratch) : reduce(a, scratch);
  report_routing(layer, a, scratch.routed);
  layer.load_counter().add(scratch.routed.ids.data(), a.tokens, layer.problem().top_k(),
                           scratch.routed.width);
}

}  // namespace switchyard::layer
